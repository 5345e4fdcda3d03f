"""What the data folder must hold: rows, content hash and a sample of row hashes of every file.

    python -m experiments.data.manifest FOLDER    # writes manifest.json from a folder that is known to be right

`manifest.json` was made from the folder with which the committed results were made.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from experiments.data.formats import SKETCH, describe, read_lines, row_hashes
from experiments.data.sources import DataSet, Sources

HERE = Path(__file__).parent
MANIFEST = HERE / "manifest.json"
SOURCES = HERE / "sources.toml"


def make(folder: Path, sources: Sources) -> dict[str, Any]:
    """The description of every file of every set, by its name below the folder."""
    names = [f"{part.folder}/{name}" for part in sources.sets.values() for name in part.files]
    return {name: describe(name, (folder / name).read_bytes()) for name in names}


def compare(folder: Path, name: str, expected: dict[str, Any]) -> str:
    """One file against the manifest, in words."""
    file = folder / name
    if not file.exists():
        return "not there"
    found = describe(name, file.read_bytes())
    if found["sha256"] == expected["sha256"]:
        return "equal"
    if "sketch" not in expected:
        return "differs"
    if found["sorted"] == expected["sorted"]:
        return "the same rows in another order"
    both = len(row_hashes(read_lines(file)) & set(expected["sketch"]))
    share = f"{both} of {len(expected['sketch'])} sampled rows of the original are in it"
    return f"differs: {found['rows']:,} rows for {expected['rows']:,}; {share}"


def check(folder: Path, sets: list[DataSet], manifest: dict[str, Any]) -> tuple[str, int]:
    """A page (Markdown) that says set by set what equals the manifest, and how many sets do."""
    lines = ["| set | file | rows | against the manifest |", "| --- | --- | --- | --- |"]
    equal = 0
    for part in sets:
        verdicts = {
            name: compare(folder, f"{part.folder}/{name}", manifest[f"{part.folder}/{name}"]) for name in part.files
        }
        equal += all(verdict == "equal" for verdict in verdicts.values())
        for name, verdict in verdicts.items():
            rows = manifest[f"{part.folder}/{name}"].get("rows")
            lines.append(f"| {part.name} | {part.folder}/{name} | {'' if rows is None else f'{rows:,}'} | {verdict} |")
    head = f"{equal} of {len(sets)} sets equal the manifest, file by file.\n\n"
    notes = [f"- {part.name}: {part.note}" for part in sets if part.note]
    tail = "\n\nWhat is known about the others:\n\n" + "\n".join(notes) if notes else ""
    return head + "\n".join(lines) + tail + "\n", equal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    made = make(parser.parse_args().folder, Sources.read(SOURCES))
    MANIFEST.write_text(json.dumps(made, separators=(",", ":")).replace('},"', '},\n"') + "\n")
    print(f"{len(made)} files; up to {SKETCH} row hashes of each")


if __name__ == "__main__":
    main()
