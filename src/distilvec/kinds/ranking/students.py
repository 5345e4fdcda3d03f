"""Students that are cross-encoders: opened, cut, and shipped for sentence-transformers' `CrossEncoder`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from distilvec.corpus.lazy import LazyTexts
from distilvec.errors import DistilvecError
from distilvec.flow.start import Start, with_dropout
from distilvec.modules.cross_encoder import open_cross_encoder
from distilvec.modules.guarded import open_ranker
from distilvec.modules.opening import check_table, explained, locate
from distilvec.modules.pipeline import limit_length, set_length
from distilvec.modules.promised_tokens import put_into
from distilvec.modules.ranker import as_cross_encoder
from distilvec.modules.settings import read_json
from distilvec.recipe import Recipe, given
from distilvec.students.ship import placed
from distilvec.students.shrink import shrink
from distilvec.teachers.sections import at_revision

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder, SentenceTransformer

    from distilvec.corpus import Corpus
    from distilvec.flow.fit import Trained
    from distilvec.flow.lessons import Lessons
    from distilvec.flow.prepare import Prepared

#: In config.json: older versions of sentence-transformers look there, and would put a sigmoid behind the number.
_PLAIN_NUMBERS = {"activation_fn": "torch.nn.modules.linear.Identity"}


def load_ranker(
    model: str | Path, *, max_length: int | None = None, trust_remote_code: bool = False
) -> SentenceTransformer:
    """Open a cross-encoder in float32, or an encoder with a new head, ready to be trained.

    Args:
        model: folder or hub id.
        max_length: tokens of query and document together; None = what its positions allow.

    Raises:
        DistilvecError: no such model, one of several classes or one that writes, or `max_length` is more than its
            positions.
        DataError: the weights are damaged, or the encoder's are not all there.
        EnvironmentProblem: the hub cannot be reached.
    """
    from sentence_transformers import SentenceTransformer

    folder, name = locate(model, trust_remote_code), str(model)
    _check_kind(folder, name)
    with explained(name, "Does it load as a CrossEncoder of sentence-transformers?"):
        opened = SentenceTransformer(modules=[open_ranker(folder, trust_remote_code=trust_remote_code)])
        put_into(opened.tokenizer, folder, name)
        check_table(opened, name)
        set_length(opened, max_length, name)
        opened.encode([("a query", "a document")], show_progress_bar=False)  # sizes that do not fit are known now
    return opened


def _check_kind(folder: Path, name: str) -> None:
    """Refuse a folder without a single encoder in it, and heads that say something else than one number."""
    if not (folder / "config.json").is_file():
        raise DistilvecError(
            "a cross-encoder starts from one transformer, and there is no config.json of one in this folder",
            where=name,
            remedy="Give a cross-encoder, an encoder of transformers, or the sub-folder that holds it.",
        )
    config: Any = read_json(folder / "config.json")
    kinds = [str(kind) for kind in config.get("architectures") or []]
    classes = config.get("id2label") or {}
    if any(kind.endswith(("ForCausalLM", "LMHeadModel")) for kind in kinds):
        what = "this model writes, and a cross-encoder is an encoder with a head"
    elif any(kind.endswith("ForSequenceClassification") for kind in kinds) and len(classes) != 1:
        what = f"this model has a head for {len(classes) or 2} classes, and a cross-encoder says one number"
    else:
        return
    raise DistilvecError(what, where=name, remedy="Give a cross-encoder of one number, or the encoder alone.")


def ranking_start(recipe: Recipe, corpus: Corpus) -> Start:
    """The student before training: opened where it lies, or cut out of a larger one each time that it is opened."""
    section = given(recipe.student, "student")
    cut = section.shrink
    source = str(section.model if cut is None else cut.of)

    def opened() -> SentenceTransformer:
        torch.manual_seed(recipe.training.seed)  # of a head with random weights
        longer = section.max_length if section.extend_length else None
        student = load_ranker(
            at_revision(source, section.revision), max_length=longer, trust_remote_code=section.trust_remote_code
        )
        if cut is not None:
            texts = LazyTexts(corpus.texts, corpus.train_rows) if cut.vocabulary else None
            student = shrink(student, layers=cut.layers, vocabulary=cut.vocabulary, texts=texts)[0]
        if section.max_length:
            limit_length(student, section.max_length)
        return with_dropout(student, section.dropout)

    return Start(opened)


def ship_student(prepared: Prepared, lessons: Lessons, trained: Trained, folder: Path) -> None:
    """Save the trained student as a folder that `CrossEncoder` opens, whole or not at all."""
    model: Any = as_cross_encoder(trained.student)
    model[0].model.config.sentence_transformers = _PLAIN_NUMBERS
    with placed(folder) as partial:
        model.save_pretrained(str(partial), create_model_card=False)


def open_shipped(recipe: Recipe, folder: Path) -> CrossEncoder:
    """A student that was shipped; it predicts logits."""
    trusted = given(recipe.student, "student").trust_remote_code
    opened: CrossEncoder = open_cross_encoder(folder, name=str(folder), device=None, trust_remote_code=trusted)
    return opened
