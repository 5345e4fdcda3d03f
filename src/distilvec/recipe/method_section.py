"""The recipe's method: one entry, or a list of weighted entries; their options belong to each method's own schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, RootModel, model_serializer, model_validator

from distilvec import plain_yaml
from distilvec.errors import DistilvecError
from distilvec.late import Late

#: A method that is chosen by the kind of student.
AUTO = "auto"
#: Keys of an earlier form, whose methods are entries of the list now.
_EARLIER = ("matryoshka", "token_states", "beside")
_path_of = Late("distilvec.methods.own:path_of")


class MethodEntry(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str = Field(
        AUTO,
        description="of `distilvec methods`, or module:Class; from Python also the class itself; auto = by the student",
    )
    weight: float = Field(1.0, ge=0, allow_inf_nan=False, description="of its loss; 0 = left out")

    @model_validator(mode="before")
    @classmethod
    def _name_the_class(cls, given: Any) -> Any:
        return _named(given)

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})

    def written(self) -> dict[str, Any]:
        """Give the keys that a recipe needs to say: the weight if it is not 1."""
        weight = {} if self.weight == 1 else {"weight": self.weight}
        return {"name": self.name, **weight, **self.options}


class MethodSection(RootModel[list[MethodEntry]]):
    """The methods whose losses are added, each times its weight; of one, a recipe gives the entry without a list."""

    root: list[MethodEntry] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _listed(cls, given: Any) -> Any:
        if isinstance(given, MethodSection):
            return given
        if not isinstance(given, Mapping | list | tuple):
            name = given if isinstance(given, str) else "..."
            raise ValueError(f"keys belong here, not {given!r}. Write {{name: {name}}}")
        return [_without_earlier(entry) for entry in (given if isinstance(given, list | tuple) else [given])]

    @model_serializer
    def _as_written(self) -> dict[str, Any] | list[dict[str, Any]]:
        entries = self.entries
        return entries[0] if len(entries) == 1 else entries

    @property
    def entries(self) -> list[dict[str, Any]]:
        return [entry.written() for entry in self.root]

    @property
    def first(self) -> MethodEntry:
        return self.root[0]

    @property
    def name(self) -> str:
        """The names of all that have a weight."""
        return " + ".join(entry.name for entry in self.root if entry.weight) or self.first.name

    @property
    def is_open(self) -> bool:
        """Tell whether it is chosen by the kind of student."""
        return any(entry.name == AUTO for entry in self.root)

    def build(self) -> Any:
        """The methods as one `Method`, without heads yet.

        Raises:
            DistilvecError: an unknown method or option, or a value out of range; its place is the key.
        """
        from distilvec.methods.table import build_method, together

        methods = []
        for number, entry in enumerate(self.root):
            try:
                methods.append(build_method(entry.name, entry.options))
            except DistilvecError as error:
                option = (error.where or "").removeprefix(entry.name).removeprefix(", ")
                place = "method" if len(self.root) == 1 else f"method.{number}"
                raise DistilvecError(error.what, where=f"{place}.{option}".rstrip("."), remedy=error.remedy) from error
        return together(methods, [entry.weight for entry in self.root])


def _named(value: Any) -> Any:
    """A method's entry with the path of a class in the class's place, here and within."""
    if not isinstance(value, Mapping):
        return value
    plain = str | int | float | list | tuple | Mapping | None  # what YAML has, pydantic looks at
    named = {key: each if isinstance(each, plain) else _path_of(each) for key, each in value.items() if key == "name"}
    classes = {key: _path_of(each) for key, each in value.items() if isinstance(each, type)}
    return {key: _named(each) for key, each in value.items()} | named | classes


def _without_earlier(entry: Any) -> Any:
    """An entry without the keys of the earlier form that are null, as in recipes that its runs left."""
    if not isinstance(entry, Mapping):
        return entry
    earlier = [key for key in _EARLIER if entry.get(key) is not None]
    if earlier:
        raise ValueError(f"{', '.join(earlier)}: an entry of its own now. Write method: {_list_form(entry)}")
    return {key: value for key, value in entry.items() if key not in _EARLIER}


def _list_form(entry: Mapping[str, Any]) -> str:
    """Write an entry of the earlier form as it is now, as YAML."""
    first = {"name": AUTO, **{key: value for key, value in entry.items() if key not in _EARLIER}}
    if entry.get("matryoshka"):
        first = {"name": "matryoshka", "dims": entry["matryoshka"]} | ({"of": first} if first["name"] != AUTO else {})
    entries = [first]
    if entry.get("token_states") is not None:
        entries.append({"name": "token_states", "weight": entry["token_states"]})
    if isinstance(entry.get("beside"), Mapping):
        entries.append(dict(entry["beside"]))
    return plain_yaml.flow(entries[0] if len(entries) == 1 else entries)
