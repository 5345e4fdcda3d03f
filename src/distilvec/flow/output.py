"""The folder of a run: taken, compared with the run that is there, and kept with the resolved recipe."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from distilvec import folders, plain_yaml
from distilvec.errors import DistilvecError
from distilvec.files import whole, write_text
from distilvec.recipe import Recipe
from distilvec.recipe.places import find_files
from distilvec.training.checkpoint import newest_checkpoint, refuse_other_code, tidy
from distilvec.training.checks import data_mark
from distilvec.training.distributed import launched

if TYPE_CHECKING:
    from distilvec.flow.prepare import Prepared

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OutputPlace:
    """An output folder that a run may take.

    Attributes:
        other: whether the run that is there is of another recipe, so that it is set aside.
        own: whether its recipe.yaml is the file that this recipe was read from.
        known: what tells the corpus of the run that is there from others; None without one.
    """

    out: Path
    other: bool
    own: bool
    known: dict[str, Any] | None


def look_at_output(recipe: Recipe, resume: bool) -> OutputPlace:
    """Compare the output folder with the recipe; nothing in it is changed.

    Raises:
        DistilvecError: the folder has files of somebody else's, a run of another recipe that is to be resumed, a
            finished run without checkpoints, or the recipe's own file.
    """
    out = folders.claim(recipe.output)
    saved, wanted = out / "recipe.yaml", recipe.to_yaml()
    folders.check_model(out / "student")  # now, not when hours of training are to be saved there
    before = _read(saved)
    other = saved.is_file() and all(each.to_yaml() != wanted for each in before)
    own = recipe.source is not None and saved.exists() and recipe.source.samefile(saved)
    changed: list[str] = []
    if other and resume:
        from distilvec.recipe.same_student import differences

        told = (differences(each, recipe) for each in before)
        changed = min(told, key=len, default=["the saved one cannot be read"])
        other = bool(changed)  # else it continues, and is judged, asked or logged in another way, or in another place
    if other and own:
        raise DistilvecError(
            "the resolved recipe would replace the file that it was read from",
            where=str(saved),
            remedy="Choose another output, or copy the recipe elsewhere first.",
        )
    if changed:
        raise DistilvecError(
            f"this folder holds a run of another recipe ({'; '.join(changed[:3])})",
            where=str(saved),
            remedy="Resume with the recipe that is saved there, or choose another output.",
        )
    if resume and not saved.is_file():
        logger.warning("%s holds no run to resume; this one starts from the beginning", out)
    if resume and _starts(out, resume) and folders.is_finished(out):
        raise DistilvecError(
            "this run is finished, and its checkpoints are gone, so that resuming would train again",
            where=str(out),
            remedy=f"`distilvec evaluate {out / 'student'}` judges the student that is there; without --resume it is "
            "trained again.",
        )
    return OutputPlace(out, other, own, folders.read(out).get("data"))


def take_output(place: OutputPlace, recipe: Recipe, resume: bool, data: dict[str, Any] | None = None) -> Path:
    """Take the folder, and save the resolved recipe there; a run of another recipe or corpus is set aside.

    Args:
        data: tells this corpus, and a method that is not ours, from another: under an equal recipe, a run of another
            corpus is another run.
    """
    out, saved = place.out, place.out / "recipe.yaml"
    if resume and data is not None:
        refuse_other_code(place.known, data, out)
    if launched()[0]:
        return out
    known = place.known
    other = place.other or (_starts(out, resume) and known is not None and data is not None and known != data)
    if not resume and (other or not saved.is_file()):
        # While the recipe before still lies there, so that a kill in between is seen by whoever resumes: to resume
        # with a recipe must not mean to continue from another one's checkpoints.
        tidy(out / "checkpoints", resume=False)
    if other:
        folders.set_aside(out)
    folders.update(out, finished=False, data=known if data is None else data)
    if not place.own:
        write_text(saved, recipe.to_yaml())
    return out


def output_folder(recipe: Recipe, resume: bool) -> Path:
    """Look at the folder of a training and take it."""
    return take_output(look_at_output(recipe, resume), recipe, resume)


def begin(place: OutputPlace, prepared: Prepared, resume: bool) -> None:
    """Take the folder of a run whose checks have passed."""
    take_output(place, prepared.recipe, resume, data_mark(prepared.corpus, prepared.code))
    with whole(prepared.output / "rejected.jsonl") as partial:
        shutil.copyfile(prepared.corpus.folder / "rejected.jsonl", partial)


def _starts(out: Path, resume: bool) -> bool:
    """Tell whether training starts from the beginning."""
    return not resume or newest_checkpoint(out / "checkpoints") is None


def _read(saved: Path) -> list[Recipe]:
    """A saved recipe as it reads today: keys that are newer than it have their defaults. [] where it is none.

    As it stands, and as it is when it is loaded: one from Python may name files from the working folder.
    """
    try:
        content = saved.read_text(encoding="utf-8")
        stands, loaded = plain_yaml.read(content), plain_yaml.read(content)
        find_files(loaded, saved.parent)
        return [Recipe.build(stands), Recipe.build(loaded)]
    except (OSError, DistilvecError, yaml.YAMLError, AttributeError, TypeError, ValueError):  # as UnicodeDecodeError
        return []
