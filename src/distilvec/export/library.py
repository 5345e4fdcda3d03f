"""The JavaScript that a search page needs, from the npm registry: two packages of fixed versions, checked by hash.

Nothing of it is part of distilvec. Whoever has npm gets it by themselves; whoever has not, from a folder with the two
archives that `npm pack` makes on another machine.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import logging
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from distilvec.errors import DataError, DistilvecError, EnvironmentProblem

logger = logging.getLogger(__name__)
#: Seconds that npm may take.
PATIENCE = 600
MOST_BYTES = 100_000_000


@dataclass(frozen=True)
class Package:
    """One package of the registry.

    Attributes:
        name, version: as npm knows them.
        sha512: of its archive, base64: the registry's own "integrity".
        files: path in the archive -> name beside the page.
        licence: file of the folder `web` that goes along, as the archive has none.
    """

    name: str
    version: str
    sha512: str
    files: Mapping[str, str]
    licence: str | None = None

    @property
    def archive(self) -> str:
        """The file that `npm pack` writes."""
        return f"{self.name.removeprefix('@').replace('/', '-')}-{self.version}.tgz"


#: transformers.js and the runtime that this version was built with; of that, the smallest build that needs no GPU.
PACKAGES = (
    Package(
        "@huggingface/transformers",
        "4.3.1",
        "5+voSeUCFK6PCKlY15dPhNOKq3/zOTxDN7oC+Wy9dFb1QZ0TSQomZRRy7URRK8YRuUoE9fGMQTTPC5d/pWBJhA==",
        {"dist/transformers.web.min.js": "transformers.js", "LICENSE": "transformers-LICENSE.txt"},
    ),
    Package(
        "onnxruntime-web",
        "1.31.0-dev.20260914-8d85527a0",
        "Iy7rtadoBgxS/LLvDr3QW38DB1PNXRnr0GJMcL0TAt7c9qjgVQl83UlGCVyeAnK2InpmW8Uc3PL8XIuqtDeF6g==",
        {
            "dist/ort.wasm.min.mjs": "onnxruntime.js",
            "dist/ort-wasm-simd-threaded.mjs": "onnxruntime-wasm.js",
            "dist/ort-wasm-simd-threaded.wasm": "onnxruntime-wasm.bin",
        },
        licence="onnxruntime-web-LICENSE.txt",
    ),
)


def fetch_library(target: Path, archives: Path | None = None) -> None:
    """Put the library's files into a folder. Files that end with .bin are compressed there (gzip).

    Args:
        target: an empty folder.
        archives: folder with the packages' archives, as `npm pack` names them; None = ask npm for them.

    Raises:
        DistilvecError: `archives` lacks one of them.
        DataError: an archive is not the one that is meant.
        EnvironmentProblem: there is no npm, or the registry does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="distilvec-npm-") as place:
        if archives is None:
            archives = Path(place)
            _pack(archives)
        for package in PACKAGES:
            _unpack(archives / package.archive, package, target)


def _pack(place: Path) -> None:
    """Have npm fetch the archives, with the user's own registry and settings."""
    wanted = [f"{package.name}@{package.version}" for package in PACKAGES]
    remedy = f"Run `npm pack {' '.join(wanted)}` on a machine that has npm, and name the folder with --library."
    npm = shutil.which("npm")
    if npm is None:
        raise EnvironmentProblem(
            "the page needs transformers.js from the npm registry, and npm is not installed",
            where="--texts",
            remedy=remedy,
        )
    logger.info("fetching %s with npm", " and ".join(wanted))
    command = [npm, "pack", "--ignore-scripts", "--loglevel=error", *wanted]
    try:
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise EnvironmentProblem(f"npm gave no answer in {PATIENCE} seconds", where="--texts", remedy=remedy) from error
    if done.returncode:
        told = next((line for line in done.stderr.splitlines() if line.strip()), "no reason given")
        raise EnvironmentProblem(f"npm cannot fetch the page's library ({told[:200]})", where="--texts", remedy=remedy)


def _unpack(file: Path, package: Package, target: Path) -> None:
    """The wanted files of an archive that is the one that is meant; nothing else in it is looked at."""
    fetch = f"`npm pack {package.name}@{package.version}`"
    if not file.is_file():
        raise DistilvecError(
            f"there is no {file.name} in this folder",
            where=str(file.parent),
            remedy=f"Run {fetch} on a machine that has npm, and put the file here.",
        )
    with file.open("rb") as packed:
        known = file.stat().st_size <= MOST_BYTES and hashlib.file_digest(packed, "sha512").digest()
    if known != base64.b64decode(package.sha512):
        raise DataError(
            f"this is not {package.name} {package.version} as the registry has it",
            where=str(file),
            remedy=f"Fetch it again with {fetch}.",
        )
    with tarfile.open(file, "r:gz") as archive:
        for path, name in package.files.items():
            member = archive.extractfile(f"package/{path}")
            if member is None:
                raise DataError(f"there is no {path} in it", where=str(file))
            content = member.read()
            compressed = gzip.compress(content, 9, mtime=0) if name.endswith(".bin") else content
            (target / name).write_bytes(compressed)
    if package.licence is not None:
        (target / package.licence).write_bytes((files("distilvec.export") / "web" / package.licence).read_bytes())
