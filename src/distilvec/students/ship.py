"""Writing a student so that plain sentence-transformers of any version opens it, without this package."""

from __future__ import annotations

import copy
import json
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from distilvec.errors import DistilvecError
from distilvec.files import readable, temporary, writing
from distilvec.folders import aside_name, check_model, seal, strangers
from distilvec.modules.blocks import find_transformer
from distilvec.modules.guarded import OWN_MODULES, lacks_pooler
from distilvec.modules.pipeline import free_name, side_prompt, width_of
from distilvec.students.classic import write_classic
from distilvec.students.load import drop_pooler

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)


def ship(
    student: SentenceTransformer,
    folder: str | Path,
    *,
    teacher_map: nn.Linear | None = None,
    normalize: bool = True,
    beside: Sequence[Callable[[Path], None]] = (),
) -> None:
    """Save a student made of stock modules, or of such that bring their code. The folder appears whole or not at all.

    Args:
        student: what was trained; an unused pooler is dropped from it.
        folder: where it goes; a model that lies there is replaced, anything else is not.
        teacher_map: linear map [D, d] from the student's space to the teacher's, which is put behind it; None = the
            student as it is.
        normalize: whether vectors in the teacher's space are brought to length 1.
        beside: write into the folder what ships with the student, before the folder appears.

    Raises:
        DistilvecError: a module is neither stock nor brings its code, `teacher_map` is of another width, or the folder
            holds something that is not a model.
        EnvironmentProblem: the disk is full or the place cannot be written.
    """
    if teacher_map is not None:
        student = in_teacher_space(student, teacher_map, normalize=normalize)
    refuse_foreign(student)
    transformer = find_transformer(student)
    if transformer is not None:
        drop_pooler(transformer)
    with placed(folder) as partial:
        # A model that was cut out of another would bring that one's card along.
        student.save_pretrained(str(partial), create_model_card=False)
        # sentence-transformers saves a module's own code beside its weights, and looks for it in the model's folder.
        for code in [*partial.glob("[0-9]*_*/*.py")]:
            code.replace(partial / code.name)
        say_without_pooler(partial)
        write_classic(partial)
        for write in beside:
            write(partial)


def named(folder: str | Path) -> Path:
    """The path with a name to write beside, which "." and ".." have not."""
    return Path(os.path.abspath(folder)) if Path(folder).name in ("", "..") else Path(folder)


@contextmanager
def placed(folder: str | Path) -> Iterator[Path]:
    """A folder to write a model into, which takes its place when it is whole; an earlier model of ours is replaced.

    Raises:
        DistilvecError: the place holds something that is not a model.
        EnvironmentProblem: the disk is full or the place cannot be written.
    """
    target = named(folder)
    check_model(target)
    with writing("student", target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary(target.parent) as partial:
            yield partial
            readable(partial)
            put_in_place(partial, target)
    logger.debug("student saved to %s", target)


def in_teacher_space(
    student: SentenceTransformer, teacher_map: nn.Linear, *, normalize: bool = True
) -> SentenceTransformer:
    """The student with the teacher's map behind it, as a model that shares the student's weights; no identity is put.

    A final `Normalize` of the student is left out: the map was learnt on what comes before it.

    Args:
        student: d wide.
        teacher_map: weight [D, d].
        normalize: whether to bring the result to length 1.

    Raises:
        DistilvecError: the map takes vectors of another width.
    """
    from sentence_transformers.base.modules import Normalize

    from distilvec.modules.projection import dense, is_identity

    modules: Any = OrderedDict(student.named_children())
    if modules and isinstance(next(reversed(modules.values())), Normalize):
        modules.popitem()
    width = width_of(modules.values())
    if teacher_map.in_features != width:
        raise DistilvecError(
            f"the teacher's map takes vectors of width {teacher_map.in_features}, the student gives {width}"
        )
    if not is_identity(teacher_map):
        bias = None if teacher_map.bias is None else teacher_map.bias.detach().clone()
        modules[free_name(modules, "teacher_map")] = dense(teacher_map.weight.detach().clone(), bias)
    if normalize:
        modules[free_name(modules, "normalize")] = Normalize()
    return with_modules(student, modules).train(student.training)


def with_modules(model: SentenceTransformer, modules: OrderedDict[str, Any]) -> SentenceTransformer:
    """A model of these modules, with the prompts, the similarity and the card of another one."""
    from sentence_transformers import SentenceTransformer

    made = SentenceTransformer(
        modules=modules,  # type: ignore[arg-type]
        device=str(model.device),
        prompts={name: prompt for name, prompt in (model.prompts or {}).items() if prompt is not None},
        default_prompt_name=model.default_prompt_name,
        similarity_fn_name=model.similarity_fn_name,
    )
    made.model_card_data = copy.copy(model.model_card_data)
    made.model_card_data.register_model(made)
    return made


def router(student: SentenceTransformer, teacher: SentenceTransformer) -> SentenceTransformer:
    """One model that encodes queries with the student and documents with the teacher.

    Args:
        student: already in the teacher's space (`in_teacher_space`).
        teacher: the model that the documents' index was made with.

    Raises:
        DistilvecError: the two are not equally wide.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Router

    widths = student.get_embedding_dimension(), teacher.get_embedding_dimension()
    if widths[0] != widths[1]:
        raise DistilvecError(
            f"the student's vectors are {widths[0]} wide, the teacher's {widths[1]}",
            remedy="Bring the student into the teacher's space first (space: teacher).",
        )
    queries: list[Any] = list(student.children())
    documents: list[Any] = list(teacher.children())
    routes = Router.for_query_document(query_modules=queries, document_modules=documents)
    return SentenceTransformer(
        modules=[routes],
        device=str(student.device),
        # What `encode_query` and `encode_document` put before a text by themselves, so that they do it here too.
        prompts={"query": side_prompt(student, "query"), "document": side_prompt(teacher, "document")},
        similarity_fn_name=teacher.similarity_fn_name,
    )


def brings_its_code(module: Any) -> bool:
    """Tell whether a module is one of ours that saves its source with the model (`trust_remote_code=True` opens it)."""
    config = getattr(getattr(module, "model", None), "config", None)
    if getattr(config, "model_type", None) == "distilvec_moe":
        return True
    return f"{type(module).__module__}.{type(module).__name__}" in OWN_MODULES


def refuse_foreign(student: SentenceTransformer) -> None:
    """Refuse a student that would ship without the code of one of its modules."""
    # Code that came with a model, and was trusted, goes along with it.
    known = ("sentence_transformers.", "transformers_modules.")
    for name, module in student.named_children():
        if not type(module).__module__.startswith(known) and not brings_its_code(module):
            raise DistilvecError(
                f"module {name} is a {type(module).__name__}, which sentence-transformers alone cannot open",
                remedy="Ship a student made of sentence-transformers' own modules.",
            )


def say_without_pooler(folder: Path) -> None:
    """Tell whoever opens the folder not to build a pooler: it would be random, and count as parameters."""
    for file in folder.rglob("sentence_bert_config.json"):
        if lacks_pooler(file.parent):
            settings = json.loads(file.read_text(encoding="utf-8"))
            settings["model_kwargs"] = {**settings.get("model_kwargs", {}), "add_pooling_layer": False}
            file.write_text(json.dumps(settings, indent=4) + "\n", encoding="utf-8")


def put_in_place(partial: Path, target: Path, *, keep: bool = False) -> None:
    """Put a new folder where an old one is or none; both are on one disk, and the old one goes last.

    Args:
        keep: the old one stays, as `NAME.before-1` next to it, unless it is empty; it stays in any case if something
            lies in it that distilvec did not write.
    """
    seal(partial, "student", later=["README.md"])  # the card, which a run writes last
    before = None
    if target.exists():
        before = aside_name(target)
        target.rename(before)
    partial.rename(target)
    if before is None:
        return
    if (keep and any(before.iterdir())) or strangers(before):
        logger.warning("the model that was in %s is in %s now", target, before.name)
        return
    with temporary(target.parent) as going:  # so that a kill leaves what the next process removes
        before.rename(going)
