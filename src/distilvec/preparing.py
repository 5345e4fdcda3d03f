"""What a recipe names, made: the corpus, the untrained student, the head of its task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from distilvec.corpus import Corpus, read_corpus
from distilvec.errors import DistilvecError
from distilvec.modules.aggregation import set_aggregation
from distilvec.modules.pipeline import limit_length
from distilvec.recipe import Recipe, StudentSection, TeacherSection
from distilvec.students import StudentTap, fresh, fresh_molecule, fresh_resnet, load_student, shrink, static, upcycle
from distilvec.tasks.base import Task
from distilvec.tasks.table import build_task

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def prepare_corpus(recipe: Recipe) -> Corpus:
    """Read, audit and split the corpus, or reuse what an equal section left."""
    options = recipe.corpus.model_dump(exclude={"path"})
    if recipe.task is not None:
        options |= {"label": recipe.task.label or recipe.corpus.label, "joint": recipe.task.joint}
    return read_corpus(recipe.corpus.path, recipe.place / "corpus", **options)


def make_student(
    section: StudentSection, teachers: Sequence[TeacherSection], corpus: Corpus, seed: int
) -> SentenceTransformer:
    """The untrained student; the same recipe always gives the same one."""
    named = {teacher.name: teacher for teacher in teachers if teacher.model}

    def source(name: str) -> SentenceTransformer:
        if name in named:
            return load_student(str(named[name].model), pooling=section.pooling or named[name].pooling)
        return load_student(name, pooling=section.pooling)

    torch.manual_seed(seed)
    if section.model is not None:
        student = load_student(section.model, pooling=section.pooling, trust_remote_code=section.trust_remote_code)
    elif section.shrink is not None:
        cut = section.shrink
        texts = corpus.texts(corpus.train_rows) if cut.vocabulary else None
        student, _ = shrink(source(cut.of), layers=cut.layers, vocabulary=cut.vocabulary, texts=texts)
    elif section.fresh is not None:
        size = section.fresh
        student = fresh(
            layers=size.layers,
            width=size.width,
            heads=size.heads,
            tokenizer=size.tokenizer,
            vocabulary=size.vocabulary,
            texts=corpus.texts(corpus.train_rows),
            init_from=source(size.embeddings_from) if size.embeddings_from else None,
        )
    elif section.static is not None:
        table = section.static
        student = static(
            source(table.of),
            dimensions=table.dimensions,
            vocabulary=table.vocabulary,
            texts=corpus.texts(corpus.train_rows),
            cache=corpus.folder.parent / "pieces",
        )
    elif section.resnet is not None:
        student = fresh_resnet(**section.resnet.model_dump())
    elif section.molecule is not None:
        student = fresh_molecule(**section.molecule.model_dump())
    else:
        raise DistilvecError(
            "it has not been chosen yet",
            where="student.auto",
            remedy="`distilvec plan RECIPE` names a student; `run` and `train` choose it themselves.",
        )
    if section.upcycle is not None:
        student = upcycle(student, **section.upcycle.model_dump(), seed=seed)
    if section.aggregation is not None:
        set_aggregation(student, section.aggregation, section.normalize_weights)
    if section.max_length:
        limit_length(student, section.max_length)
    return student


def make_task(recipe: Recipe, corpus: Corpus, student: SentenceTransformer) -> Task | None:
    """The recipe's supervised task with a fresh head for this student."""
    if recipe.task is None:
        return None
    torch.manual_seed(recipe.training.seed)
    return build_task(recipe.task, StudentTap(student).info.width, corpus.labels, corpus.label_names)
