"""The data needed to repeat a run: recipe, seed, versions of libraries, machine."""

from __future__ import annotations

from typing import Any, Self

import yaml
from pydantic import Field

from distilvec.report.sections.base import Block, Data, Listing, Outcome, Table, clip, facts, short_source, table
from distilvec.report.surroundings import Machine, git_state, library_versions, machine

RECIPE_LENGTH, LIST_LENGTH, VALUE_LENGTH = 20_000, 50, 500


class Rerun(Data):
    recipe: dict[str, Any] = Field({})
    seed: int | None = None
    versions: dict[str, str] = Field({})
    git: str | None = None
    machine: Machine | None = None

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        return cls(
            recipe=outcome.recipe.model_dump(mode="json"),
            seed=outcome.recipe.training.seed,
            versions=library_versions(),
            git=git_state(),
            machine=machine(outcome.shipped),
        )

    def blocks(self) -> list[Block]:
        found: list[Block] = []
        if self.recipe:
            # As YAML, without whole corpora given as lists and without paths of this machine.
            text = yaml.safe_dump(_shown(self.recipe), sort_keys=False, allow_unicode=True, width=100)
            found.append(Listing("The resolved recipe (also in recipe.yaml)", [clip(text, RECIPE_LENGTH)]))
        versions = self.versions | ({"git": self.git} if self.git else {})
        if versions:
            found.append(table(["package", "version"], versions.items(), kind="facts", folded="Versions"))
        return found

    def made_with(self) -> Table:
        """Method, seed and versions, for the model card."""
        given = self.recipe.get("method")
        methods = given if isinstance(given, list) else [given]
        name = " + ".join(str(each.get("name", "")) for each in methods if isinstance(each, dict))
        return facts(("method", name), ("seed", "" if self.seed is None else str(self.seed)), *self.versions.items())


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _shown(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        cut = [_shown(entry) for entry in value[:LIST_LENGTH]]
        return cut if len(value) <= LIST_LENGTH else [*cut, f"… and {len(value) - LIST_LENGTH:,} more"]
    if isinstance(value, str):
        return clip(short_source(value), VALUE_LENGTH)
    return value if isinstance(value, bool | int | float) or value is None else str(value)
