"""Get the data of the experiments from public repositories into the folder that DISTILVEC_DATA names.

    python -m experiments.data.get --to FOLDER              # every set; continues where it stopped
    python -m experiments.data.get --to FOLDER stsb sick    # these sets, and those that they are cut from
    python -m experiments.data.get --to FOLDER --check      # what equals the manifest, what differs, what is not there
    python -m experiments.data.get --list                   # sets, files, sources, licences
    python -m experiments.data.get --to FOLDER --mirror M   # without a network: from clones at M/<owner>/<name>

Raw files stay in FOLDER/raw and can be deleted. FOLDER/checksums.json has the sha256 of what was written; a set whose
files still have it is not built again. What could not be had is named at the end (exit status 1).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from experiments.data import networks, other_sets, pools, text_sets
from experiments.data.manifest import MANIFEST, SOURCES, check
from experiments.data.sources import DataSet, Missing, Raw, Sources

Builder = Callable[[Raw], dict[str, bytes]]
BUILDERS: dict[str, Builder] = {
    "banking77": text_sets.banking77,
    "tweeteval_sentiment": text_sets.tweeteval_sentiment,
    "emotion": text_sets.emotion,
    "mrpc": text_sets.mrpc,
    "scitail": text_sets.scitail,
    "wic": text_sets.wic,
    "sick": text_sets.sick,
    "sts12": text_sets.sts12,
    "stsb": text_sets.stsb,
    "control": text_sets.control,
    "anli_r2": text_sets.anli_r2,
    "rte": text_sets.rte,
    "sst2": text_sets.sst2,
    "ag_news": text_sets.ag_news,
    "imdb": text_sets.imdb,
    "cranfield": text_sets.cranfield,
    "talas_corpus": text_sets.talas_corpus,
    "sentences": pools.sentences,
    "pairs": pools.pairs,
    "tokenizers": other_sets.tokenizers,
    "images": other_sets.images,
    "molecules": other_sets.molecules,
    "cifar_resnets": networks.cifar_resnets,
    "keras_images": networks.keras_images,
    "tflite_images": networks.tflite_images,
    "molecule_graphs": networks.molecule_graphs,
    "molecule_strings": networks.molecule_strings,
}


def main() -> int:
    options = arguments()
    sources = Sources.read(options.sources)
    unknown = sorted(set(options.sets) - set(sources.sets))
    if unknown:
        raise SystemExit(f"no set {', '.join(unknown)}; there are {', '.join(sources.sets)}")
    chosen = with_parents(options.sets or list(sources.sets), sources)
    if options.list:
        print("\n".join(describe_set(part, sources) for part in chosen))
        return 0
    if options.check:
        named = [sources.sets[name] for name in options.sets] or chosen
        page, equal = check(options.to, named, json.loads(options.manifest.read_text()))
        print(page, end="")
        return int(equal < len(named))
    raw = Raw(sources, options.to / "raw", options.to, options.mirror)
    failed = {}
    for part in chosen:
        print(describe_set(part, sources), flush=True)
        try:
            print("  already there" if done(options.to, part) else build(options.to, part, raw), flush=True)
        except Missing as error:
            failed[part.name] = str(error)
            print(f"  could not be had: {error}", flush=True)
    print(f"{len(chosen) - len(failed)} of {len(chosen)} sets are in {options.to}.")
    if failed:
        print("Could not be had: " + "; ".join(failed) + ". Run the same command again to go on.")
    return int(bool(failed))


def arguments() -> argparse.Namespace:
    beside = Path(__file__).parents[3] / "shared"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", metavar="SET", help="sets to get (default: all)")
    parser.add_argument("--to", type=Path, default=Path(os.environ.get("DISTILVEC_DATA", beside)), metavar="FOLDER")
    parser.add_argument("--mirror", type=Path, help="folder with clones at <owner>/<name>, read instead of the net")
    parser.add_argument("--check", action="store_true", help="compare what is there with the manifest; fetch nothing")
    parser.add_argument("--list", action="store_true", help="say what there is and under which licence; fetch nothing")
    parser.add_argument("--sources", type=Path, default=SOURCES, help="another file of sources")
    parser.add_argument("--manifest", type=Path, default=MANIFEST, help="another manifest")
    return parser.parse_args()


def with_parents(names: list[str], sources: Sources) -> list[DataSet]:
    """The sets with those that they are cut from, in the order of the file of sources."""
    wanted, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        wanted.add(name)
        waiting += [parent for parent in sources.sets[name].after if parent not in wanted]
    return [part for name, part in sources.sets.items() if name in wanted]


def describe_set(part: DataSet, sources: Sources) -> str:
    """Name, licence and sources of a set."""
    lines = [f"{part.name}: {part.licence}"]
    for name in part.repositories:
        found = sources.repositories[name]
        lines.append(f"  from github.com/{found.address} at {found.commit[:12]} (repository: {found.licence})")
    return "\n".join(lines + [f"  cut from {name}" for name in part.after])


def build(folder: Path, part: DataSet, raw: Raw) -> str:
    """Write a set's files and their checksums. A file has its name only once it is whole."""
    files = BUILDERS[part.name](raw)
    if set(files) != set(part.files):
        raise RuntimeError(f"{part.name} made {sorted(files)}; the file of sources names {sorted(part.files)}")
    written = recorded(folder)
    for name, data in files.items():
        file = folder / part.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(file.name + ".part")
        partial.write_bytes(data)
        partial.replace(file)
        written[f"{part.folder}/{name}"] = hashlib.sha256(data).hexdigest()
    partial = folder / "checksums.json.part"
    partial.write_text(json.dumps(written, indent=1, sort_keys=True) + "\n")
    partial.replace(folder / "checksums.json")
    return "  wrote " + ", ".join(files)


def done(folder: Path, part: DataSet) -> bool:
    """Whether every file of the set is there with the checksum that was written down."""
    written = recorded(folder)
    files = {f"{part.folder}/{name}": folder / part.folder / name for name in part.files}
    return all(
        file.exists() and hashlib.sha256(file.read_bytes()).hexdigest() == written.get(name)
        for name, file in files.items()
    )


def recorded(folder: Path) -> dict[str, str]:
    file = folder / "checksums.json"
    return json.loads(file.read_text()) if file.exists() else {}


if __name__ == "__main__":
    sys.exit(main())
