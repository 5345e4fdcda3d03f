"""The card of a teacher that a store keeps, and the fingerprint by which a changed teacher is noticed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distilvec import plain_yaml
from distilvec.errors import DataError
from distilvec.modules.settings import object_in

_TOKENIZER_FILES = (
    "added_tokens.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
#: Characters that are looked at: of a README, and of what it says of a licence.
_LONGEST_README, _LONGEST_LICENCE = 10_000_000, 10_000
#: A key of the front matter's top level, and the lines that belong to it.
_LICENCE = re.compile(r"^license\w*[ \t]*:.*(?:\n(?:[ \t-].*)?)*", re.MULTILINE)
# Written by whoever saved the folder; they change nothing about the vectors.
_PASSING_KEYS = {"_name_or_path", "transformers_version", "__version__", "dtype", "torch_dtype"}


@dataclass(frozen=True)
class TeacherCard:
    """The facts known of a teacher, and all that a store needs to recognise it.

    Attributes:
        name: the name in the recipe.
        kind: for readers: "model", "callable", "service", "vectors", "molecule" (a network over molecules), "combined"
            (of several teachers), "scorer" (of queries and documents) ...
        source: folder, hub id, module:function, "model at host" or file.
        fingerprint: hash over weights, tokenizer, pooling, prompt, maximum length and normalisation. The dtype of
            the computation is not part of it, so that machines with and without bfloat16 can fill one store; the
            store's card has the coarsest.
        width: D, the width of its sentence vectors.
        layers: number of transformer blocks; None where they cannot be seen.
        pooling: mode of the pooling; None where there is none or it cannot be seen.
        prompt: put before every text; None = nothing is.
        max_length: tokens per text, longer ones are cut; None = unlimited or unknown.
        normalized: whether its vectors have length one; None = unknown.
        dtype: of the computation.
        licence: as the model's files state it.
        parameters: number of weights.
        size_bytes: of the files that they lie in; None where there are none here.
    """

    name: str
    kind: str
    source: str
    fingerprint: str
    width: int
    layers: int | None = None
    pooling: str | None = None
    prompt: str | None = None
    max_length: int | None = None
    normalized: bool | None = None
    dtype: str = "float32"
    licence: str | None = None
    parameters: int | None = None
    size_bytes: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary that `from_dict` and JSON understand."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> TeacherCard:
        """The card of a dictionary; keys of later versions are left out.

        Raises:
            DataError: where name, kind, source, fingerprint or width is missing.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        try:
            return cls(**{key: value for key, value in given.items() if key in known})
        except TypeError as problem:
            raise DataError(f"this is not a teacher's card: {problem}") from problem


def fingerprint(*parts: object) -> str:
    """32 hex digits over a sequence of strings, numbers, None, lists and dictionaries.

    >>> fingerprint("a", 1) == fingerprint("a", 1), fingerprint("ab") == fingerprint("a", "b")
    (True, False)
    """
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def hash_files(folder: Path, files: Iterable[Path]) -> dict[str, str]:
    """Path within `folder` -> hash of the file's content."""
    return {file.relative_to(folder).as_posix(): hash_file(file) for file in sorted(set(files))}


def hash_file(file: Path) -> str:
    """32 hex digits over a file's content, read in pieces."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def describe_folder(folder: Path, modules: Iterable[str], further: Iterable[str] = ()) -> dict[str, Any]:
    """All that decides a model folder's vectors: weights and tokenizer files by hash, configurations by content.

    Args:
        folder: a sentence-transformers or transformers folder.
        modules: the sub-folders that modules are read from ("" or "." = the folder itself).
        further: names of configurations that decide this model's vectors, too.
    """
    told = {"config.json", "modules.json", "router_config.json", "sentence_bert_config.json", *further}
    places = {folder / module for module in {"", *modules}}
    files = [file for place in places if place.is_dir() for file in place.iterdir() if file.is_file()]
    exact = [file for file in files if file.suffix in (".safetensors", ".py") or file.name in _TOKENIZER_FILES]
    settings = [file for file in files if file.suffix == ".json" and file not in exact]
    return {
        "files": hash_files(folder, exact),
        "settings": {
            file.relative_to(folder).as_posix(): _without_passing_keys(file)
            for file in sorted(settings)
            if file.name in told
        },
    }


def bytes_of(folder: Path, modules: Iterable[str] = ()) -> int | None:
    """Size of the weights' files of a model folder and of its modules' folders; None where there are none."""
    places = {folder / module for module in {"", *modules}}
    sizes = [file.stat().st_size for place in places for file in place.glob("*.safetensors")]
    return sum(sizes) or None


def licence_of(folder: Path) -> str | None:
    """The licence that the README's front matter or config.json states; None where neither does."""
    for given in (_front_matter(folder / "README.md"), object_in(folder / "config.json")):
        licence = given.get("license_name") if given.get("license") == "other" else given.get("license")
        licence = licence or given.get("license")
        if isinstance(licence, list):
            licence = ", ".join(str(each) for each in licence)
        if licence:
            return str(licence)
    return None


def _front_matter(readme: Path) -> dict[str, Any]:
    """Read the keys of a README's front matter that begin with "license"; others may be long, and are not parsed."""
    import yaml

    if not readme.is_file():
        return {}
    with readme.open(encoding="utf-8", errors="replace") as file:
        text = file.read(_LONGEST_README)
    if not text.startswith("---"):
        return {}
    keys = "\n".join(found[0] for found in _LICENCE.finditer(text[: text.find("\n---", 3)]))
    try:
        header = plain_yaml.read(keys[:_LONGEST_LICENCE])
    except yaml.YAMLError:
        return {}
    return header if isinstance(header, dict) else {}


def _without_passing_keys(file: Path) -> Any:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as problem:
        raise DataError(f"this is not JSON: {problem}", where=str(file)) from problem
    if isinstance(content, dict):
        return {key: value for key, value in content.items() if key not in _PASSING_KEYS}
    return content
