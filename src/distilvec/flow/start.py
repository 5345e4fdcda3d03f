"""The untrained student: made once, kept on disk in the run's folder, opened as often as somebody needs a copy.

A student that a recipe names as a model lies on disk already and is opened where it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from distilvec import folders
from distilvec.corpus import Corpus
from distilvec.corpus.lazy import LazyTexts
from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.files import temporary, writing
from distilvec.kinds.base import NETWORKS
from distilvec.modules.blocks import find_transformer
from distilvec.modules.pipeline import PoolingChoice, limit_length, named_prompt
from distilvec.recipe import Recipe, StudentSection, TeacherSection, given
from distilvec.recipe.places import or_a_teacher
from distilvec.students import PassCache, load_student
from distilvec.students.ship import say_without_pooler
from distilvec.teachers.cards import fingerprint, hash_files
from distilvec.teachers.sections import ModelSection, at_revision, models_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


FOLDER = "start"
#: Texts that a new tokenizer learns from, at most: more take minutes and change few of its pieces.
LEARNED = 200_000
#: With more domains than this all texts count together: each domain needs one number per piece of the tokenizer.
DOMAINS = 100
#: Keys of the section that say what becomes of the student, not what it is.
_LATER = {
    "space",
    "fold",
    "router",
    "router_balance",
    "remember",
    "interpolate",
    "lora",
    "extend_length",
    "cross_encoder",
}


@dataclass(frozen=True)
class Start:
    """The untrained student: `open()` gives a fresh copy, equal to all others."""

    open: Callable[[], SentenceTransformer]


def student_start(recipe: Recipe, corpus: Corpus) -> Start:
    """The untrained student of a recipe, made unless an equal one lies in `output/start` already."""
    section, teachers, seed = given(recipe.student, "student"), recipe.teachers, recipe.training.seed
    if section.model is not None:
        return Start(lambda: make_student(section, teachers, corpus, seed))
    folder = Path(recipe.output) / FOLDER / start_key(section, teachers, corpus, seed)
    if not folder.is_dir():
        _keep(make_student(section, teachers, corpus, seed), folder)
    return Start(lambda: with_dropout(_opened(folder, section.trust_remote_code), section.dropout))


def _opened(folder: Path, trusted: bool) -> SentenceTransformer:
    """A kept student, called "student": errors would name it by the key that is its folder's name."""
    student = load_student(folder, trust_remote_code=trusted)
    transformer = find_transformer(student)
    if transformer is not None:
        transformer.model.config._name_or_path = "student"
    return student


def start_key(section: StudentSection, teachers: Sequence[TeacherSection], corpus: Corpus, seed: int) -> str:
    """Equal for equal students: section, seed, texts that are trained on, and the content of what it is made of."""
    named, sources = models_of(teachers), []
    for name in _sources(section):
        teacher = named.get(name)
        folder = Path(teacher.model if teacher else name).expanduser()
        suffixes = (".safetensors", ".json", ".txt", ".model")
        files = [file for file in folder.rglob("*") if file.suffix in suffixes and file.is_file()]
        called = teacher.address if teacher else str(folder)
        sources.append([teacher.pooling if teacher else None, called, hash_files(folder, sorted(files))])
        if teacher and teacher.prompt is not None:
            sources[-1].append(teacher.prompt)
    made_of = section.model_dump(mode="json", exclude=_LATER)
    rows = hashlib.blake2b(np.ascontiguousarray(corpus.train_rows).data, digest_size=16).hexdigest()
    return fingerprint(version("distilvec"), made_of, sources, corpus.fingerprint, rows, seed)[:16]


def _sources(section: StudentSection) -> Iterator[str]:
    """Teachers, folders or hub ids that the student is made of."""
    if section.shrink is not None:
        yield given(section.shrink.of, "student.shrink.of")
    if section.static is not None:
        yield section.static.of
    if section.fresh is not None:
        yield from filter(None, (section.fresh.embeddings_from, section.fresh.tokenizer))


def _keep(student: SentenceTransformer, folder: Path) -> None:
    """Write it whole or not at all; of several processes that make the same one, the first wins. Others go."""
    try:
        with writing("untrained student", folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with temporary(folder.parent) as partial:
                student.save_pretrained(str(partial), create_model_card=False)
                say_without_pooler(partial)
                folders.seal(partial, "student")
                if not folder.is_dir():
                    partial.rename(folder)
                for place in folder.parent.iterdir():  # of an earlier recipe in the same output
                    if place.name != folder.name and not place.name.startswith("."):
                        folders.remove(place, "student")
    except EnvironmentProblem:
        if not folder.is_dir():
            raise


def teacher_model(section: ModelSection, pooling: PoolingChoice | None = None) -> SentenceTransformer:
    """The model of a teacher, to cut students out of."""
    if section.adapters or section.causal is False:
        raise DistilvecError(
            "students are cut out of a model as its folder holds it, without adapters and without causal: false",
            where=f"teacher {section.name}",
            remedy="Write the merged model into a folder (see the page on LLM2Vec), and name that.",
        )
    model = load_student(
        section.address, pooling=pooling or section.pooling, trust_remote_code=section.trust_remote_code
    )
    if section.prompt is not None:  # the stored vectors have it, so the student is trained and served with it
        prompt = named_prompt(model, section.prompt)
        model.prompts, model.default_prompt_name = {"query": prompt, "document": prompt}, "query"
    return model


def source_model(name: str, section: StudentSection, teachers: Sequence[TeacherSection]) -> SentenceTransformer:
    """Return what students are made of: the model of a teacher of this recipe, of a folder, or of the hub."""
    if (teacher := models_of(teachers).get(name)) is not None:
        return teacher_model(teacher, section.pooling)
    with or_a_teacher(name, teachers):
        return load_student(
            at_revision(name, section.revision), pooling=section.pooling, trust_remote_code=section.trust_remote_code
        )


def make_student(
    section: StudentSection,
    teachers: Sequence[TeacherSection],
    corpus: Corpus,
    seed: int,
    seen: PassCache | None = None,
) -> SentenceTransformer:
    """The untrained student; the same recipe always gives the same one.

    Args:
        seen: keeps the models that students are cut from, and what they gave for the corpus' texts, for many cuts.
    """
    torch.manual_seed(seed)
    student = _made(section, teachers, corpus, PassCache() if seen is None else seen)
    if section.upcycle is not None:
        from distilvec.students import upcycle

        student = upcycle(student, **section.upcycle.model_dump(), seed=seed)
    if section.aggregation is not None:
        from distilvec.modules.aggregation import set_aggregation

        set_aggregation(student, section.aggregation, section.normalize_weights)
    if section.max_length:
        limit_length(student, section.max_length)
    if corpus.prompts:  # its texts have them, so the student is trained and served with them
        student.prompts, student.default_prompt_name = dict(corpus.prompts), None
    return with_dropout(student, section.dropout)


def _made(
    section: StudentSection, teachers: Sequence[TeacherSection], corpus: Corpus, seen: PassCache
) -> SentenceTransformer:
    """The student as its section names it, before what is done to any of them."""
    texts = LazyTexts(corpus.texts, corpus.train_rows)

    def source(name: str) -> SentenceTransformer:
        return source_model(name, section, teachers)

    if section.model is not None:
        return load_student(
            at_revision(section.model, section.revision),
            max_length=section.max_length if section.extend_length else None,
            pooling=section.pooling,
            trust_remote_code=section.trust_remote_code,
        )
    if section.shrink is not None:
        from distilvec.students import shrink

        cut, of = section.shrink, given(section.shrink.of, "student.shrink.of")
        sizes = cut.model_dump(exclude={"of", "parameters"})
        fitted = any(sizes[name] for name in ("vocabulary", "embedding", "inner", "heads", "width"))
        model = seen.get(("model", of, section.pooling, section.revision), lambda: source(of))
        return shrink(model, **sizes, texts=texts if fitted else None, domains=_domains(corpus), seen=seen)[0]
    if section.fresh is not None:
        from distilvec.students.fresh_models import FRESH_LENGTH, fresh

        sizes = section.fresh.model_dump(exclude={"embeddings_from"})
        init_from = source(section.fresh.embeddings_from) if section.fresh.embeddings_from else None
        longest = section.max_length or FRESH_LENGTH
        return fresh(**sizes, texts=texts.sampled(LEARNED), init_from=init_from, max_length=longest)
    if section.static is not None:
        from distilvec.students import static

        sizes = section.static.model_dump(exclude={"of"})
        pieces = corpus.folder.parent / "pieces"
        return static(source(section.static.of), **sizes, texts=texts, domains=_domains(corpus), cache=pieces)
    if (network := next((name for name in NETWORKS if getattr(section, name) is not None), None)) is not None:
        return NETWORKS[network](**getattr(section, network).model_dump())
    raise DistilvecError(
        "it has not been chosen yet",
        where="student.auto",
        remedy="`distilvec plan RECIPE` names a student; `run` and `train` choose it themselves.",
    )


def _domains(corpus: Corpus) -> np.ndarray | None:
    """The domain of each training text; None without domains, or with too many of them."""
    if corpus.domains is None or len(corpus.domain_names or ()) > DOMAINS:
        return None
    return np.asarray(corpus.domains)[corpus.train_rows]


#: How transformers' blocks call the share of what they drop.
_DROPOUTS = ("dropout", "attention_dropout", "activation_dropout", "hidden_dropout")


def with_dropout(student: SentenceTransformer, share: float | None) -> SentenceTransformer:
    """The student with another dropout while it is trained; the configuration that ships stays as it is."""
    if share is None:
        return student
    for module in student.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = share
    transformer = find_transformer(student)
    for module in () if transformer is None else transformer.model.modules():
        for name in _DROPOUTS:  # blocks that drop out by a function: Qwen's and Mistral's attention, OPT, BLOOM
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, share)
    return student
