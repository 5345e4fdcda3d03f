"""Which commands can be told to be quiet."""

from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command

from distilvec.cli.main import every_command

GROUP: Any = get_command(every_command())
#: Commands that only print what they are asked for.
INSTANT = {"recipes", "methods", "new-method", "doctor", "size", "clean"}


@pytest.mark.parametrize("name", sorted(set(GROUP.commands) - INSTANT))
def test_commands_that_work_take_quiet(name: str) -> None:
    options = {option for parameter in GROUP.commands[name].params for option in parameter.opts}
    assert {"--quiet", "-q"} <= options
