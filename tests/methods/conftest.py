"""The world of the methods' tests, alone and with two teachers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.methods import world as parts
from torch import Tensor


@pytest.fixture
def world() -> parts.World:
    return parts.World()


@pytest.fixture
def two_teachers() -> parts.World:
    return parts.World(2)


@pytest.fixture
def loss() -> Callable[[dict[str, Any]], Tensor]:
    return parts.total


@pytest.fixture
def mean() -> Callable[[Any], Tensor]:
    return parts.mean


@pytest.fixture
def swap() -> Callable[..., Any]:
    return replace
