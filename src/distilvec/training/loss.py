"""The methods as a loss for sentence-transformers' own trainer, for people who keep their own training script.

store = distilvec.SignalStore.open("out/stores/teacher")
dataset = store.attach(dataset, text="text")              # adds the column "label": rows of the store
loss = DistillationLoss(student, "talas", store, texts=dataset["text"])
trainer = loss.bind(SentenceTransformerTrainer(model=student, train_dataset=dataset, loss=loss, args=args))
trainer.train(resume_from_checkpoint=True)
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor

from distilvec.corpus import content_keys
from distilvec.errors import DataError, DistilvecError
from distilvec.evenly import sampled_rows
from distilvec.files import whole
from distilvec.methods.base import Method, Needs, Sample
from distilvec.methods.contract import check_needs
from distilvec.methods.own import path_of
from distilvec.methods.table import build_methods
from distilvec.store import SignalStore
from distilvec.students.output import StudentOutput
from distilvec.students.tap import StudentTap
from distilvec.teachers.signals import TeacherInfo, TeacherSignals
from distilvec.training.distributed import launched, world_size
from distilvec.training.items import PreparedCorpus
from distilvec.training.sample import make_sample
from distilvec.training.step import Distiller, mean_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)
HEADS = "distilvec_heads.safetensors"
SAMPLE = 2_000


class DistillationLoss(Distiller):
    """A `Distiller` as a sentence-transformers loss: (features, store rows) -> named scalars, which that trainer sums.

    The heads are parameters of the loss, so that trainer's optimizer trains them. `learning_rate_mapping` finds them
    under `method.`, and is where a rate that a method has for some of them (`head_rate` of distillmoe) has to be given.
    It does not save them: `bind(trainer)` does, and restores them on resume.

    Args:
        student: the model that is trained; one text column.
        method: name, dictionary with `name` and options, or a `Method` that was not built yet.
        store: the teacher's store, or its folder. Labels are rows of this very object: `store.attach` makes them.
        texts: texts of the store, of which at most 2,000 are encoded for the heads' ridge start; None where the
            method has no heads, or they start at random (`init: random`).

    Raises:
        DistilvecError: more than one process, an unknown method, or one that needs more than the store or student has.
        DataError: the store has none of the texts.
    """

    def __init__(
        self,
        student: SentenceTransformer,
        method: str | type[Method] | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Method,
        store: SignalStore | str | Path,
        texts: Sequence[str] | None = None,
    ) -> None:
        _refuse_processes()
        store = store if isinstance(store, SignalStore) else SignalStore.open(store)
        made, tap, teacher = _open_method(method), StudentTap(student), _teacher_info(store)
        needs = made.needs(tap.info, [teacher])
        beyond = None
        if needs.inside or needs.logits:
            beyond = "looks at the teacher's tokens, attention or classes, this loss at sentence vectors"
        elif needs.companions != 0:
            beyond = "learns from pairs of texts or their scores, this loss from single texts"
        if beyond is not None:
            remedy = "Train it with a recipe: distilvec run, or distilvec.train."
            raise DistilvecError(f"this method {beyond}", where=made.name, remedy=remedy)
        check_needs(made, needs, tap.info)
        try:
            made.build(tap.info, [teacher], _sample(tap, student, needs, store, texts))
        except DataError as error:
            if texts is not None:
                raise
            raise DistilvecError(
                "the heads of this method start from a fit to texts",
                where=made.name,
                remedy="Give texts=, or the method's option init: random (of distillmoe start: random, too).",
            ) from error
        made.lookup = lambda teacher, keys: torch.from_numpy(store.read(store.rows(keys.cpu().numpy())))
        made.attach(student)
        super().__init__(student, made.to(student.device), needs)
        self.store, self._trainer, self._file, self._warned = store, None, HEADS, False
        self._precision: torch.dtype | None = None

    def forward(  # type: ignore[override]  # as sentence-transformers calls a loss
        self, features: Sequence[dict[str, Tensor]], labels: Tensor | None
    ) -> dict[str, Tensor]:
        """The weighted terms of one batch.

        Args:
            features: one dictionary of B rows, as that trainer's collator gives it.
            labels: int64 [B], rows of the store.

        Returns:
            Term name -> [] weighted mean; their sum is the loss.

        Raises:
            DistilvecError: several text columns, no labels, or a method in stages without `bind`.
        """
        _refuse_processes()
        rows = self._rows(features, labels)
        self.method.train(self.student.training)  # that trainer evaluates with the model in eval mode, not the loss
        self.at(self._progress())
        device = next(self.student.parameters()).device
        signals = TeacherSignals(
            present=torch.ones(len(rows), dtype=torch.bool, device=device),
            sentence=torch.from_numpy(self.store.read(rows)).to(device),
        )
        # What accelerate wraps around the model's own forward, which the tap does not go through.
        narrow = torch.autocast(device.type, self._precision) if self._precision else contextlib.nullcontext()
        with narrow:
            terms, _ = self.terms(dict(features[0]), [signals], torch.from_numpy(self.store.keys(rows)).to(device))
        # What is only looked at (weight 0) is no part of a loss.
        return {name: term.weight * mean_of(term) for name, term in terms.items() if term.weight}

    def bind(self, trainer: Any) -> Any:
        """Keep the heads with the trainer's checkpoints, follow its progress and precision; returns the trainer.

        The heads' gradients are cleared after every step, which not every version of that trainer does by itself.
        Every folder that the trainer saves gets `distilvec_heads.safetensors` beside the student, which
        sentence-transformers ignores; resuming and loading the best checkpoint read it back. Of a trainer with a
        dictionary of losses the file is named after the loss: `distilvec_heads.NAME.safetensors` (quoted as in a URL).

        Raises:
            DistilvecError: a trainer of several processes or devices, or of another loss.
        """
        if trainer.args.world_size > 1 or trainer.args.n_gpu > 1:
            raise DistilvecError(
                f"this trainer works on {max(trainer.args.world_size, trainer.args.n_gpu)} devices, which would train "
                "the heads apart from each other",
                where="DistillationLoss",
                remedy="Use one device (CUDA_VISIBLE_DEVICES), or `distilvec train`, which can use several.",
            )
        from transformers.trainer_utils import get_last_checkpoint

        losses = trainer.loss if isinstance(trainer.loss, dict) else {"": trainer.loss}
        names = [name for name, loss in losses.items() if loss is self]
        if not names:
            raise DistilvecError(
                "this trainer trains another loss",
                where="DistillationLoss.bind",
                remedy="It has to be the trainer's loss itself; for several lengths of vector give the method "
                "`matryoshka` in place of MatryoshkaLoss.",
            )
        if names[0]:
            self._file = HEADS.replace(".", f".{quote(names[0], safe='')}.", 1)
        save, train = trainer.save_model, trainer.train

        def save_both(output_dir: str | None = None, *others: Any, **options: Any) -> None:
            save(output_dir, *others, **options)
            self.save_heads(output_dir if output_dir is not None else trainer.args.output_dir)

        def train_both(resume_from_checkpoint: str | bool | None = None, **options: Any) -> Any:
            place = resume_from_checkpoint
            place = get_last_checkpoint(trainer.args.output_dir) if place is True else place
            if place:
                self.load_heads(str(place))
            return train(resume_from_checkpoint, **options)

        trainer.save_model, trainer.train = save_both, train_both
        trainer.add_callback(_follows(self))
        self._trainer = trainer
        self._precision = torch.bfloat16 if trainer.args.bf16 else torch.float16 if trainer.args.fp16 else None
        return trainer

    def save_heads(self, folder: str | Path) -> Path:
        """Write the heads (and the method's other state) into a folder; returns the file."""
        file = Path(folder) / self._file
        with whole(file) as partial:
            save_model(self.method, str(partial), metadata={"method": self.method.name})
        return file

    def load_heads(self, folder: str | Path) -> None:
        """Read the heads from a folder that `save_heads` or a bound trainer wrote.

        Raises:
            DistilvecError: there are none, or they are another method's or student's.
        """
        file = Path(folder) / self._file
        if not file.is_file():
            raise DistilvecError(
                "this checkpoint has no heads, so training cannot go on from it",
                where=str(folder),
                remedy="Was its trainer bound (loss.bind(trainer))? Start anew with a bound one.",
            )
        try:
            load_model(self.method, str(file), strict=True)
        except Exception as error:  # safetensors raises its own kinds and torch RuntimeError
            raise DistilvecError(
                f"these heads do not fit the method and student ({str(error).splitlines()[0]})", where=str(file)
            ) from error

    def get_config_dict(self) -> dict[str, Any]:
        """Return what the model card says of the loss."""
        options = self.method.options.model_dump(mode="json")
        return {"method": self.method.name, "teacher": str(self.store.card.get("source", "")), **options}

    @property
    def citation(self) -> str:
        """The method's source, as BibTeX."""
        return f"@misc{{{self.method.name},\n    title={{{self.method.paper}}}\n}}"

    def _rows(self, features: Sequence[dict[str, Tensor]], labels: Tensor | None) -> np.ndarray:
        if len(features) != 1:
            raise DistilvecError(
                f"one text column is trained on, this batch has {len(features)}",
                where="DistillationLoss",
                remedy='Keep the attached column and the labels: dataset.select_columns(["text", "label"]).',
            )
        if labels is None or labels.dtype.is_floating_point or labels.dim() != 1:
            raise DistilvecError(
                "the labels of this loss are rows of the store",
                where="DistillationLoss",
                remedy='Make them with store.attach(dataset, text="...").',
            )
        return labels.cpu().numpy()

    def _progress(self) -> float:
        if self._trainer is not None:
            state = self._trainer.state
            return float(state.global_step) / max(state.max_steps, 1)
        if not self.method.trains_student(0.0):
            raise DistilvecError(
                "this method works in stages, so the loss has to know how far the training is",
                where=self.method.name,
                remedy="Bind it: trainer = loss.bind(trainer).",
            )
        if not self._warned and any(True for _ in self.method.parameters()):
            self._warned = True
            logger.warning(
                "the heads are not in the trainer's checkpoints, and not every version of it clears their gradients; "
                "trainer = loss.bind(trainer) sees to both"
            )
        return 0.0


class _StoredVectors:
    """A source of the sentence vectors of some rows of a store."""

    def __init__(self, store: SignalStore, numbers: np.ndarray) -> None:
        self.store, self.numbers = store, numbers

    def prepare(self, wanted: Any, tokens: Any) -> None:
        """Nothing has to be made ready."""

    def fetch(self, rows: Sequence[int] | np.ndarray) -> dict[str, Any]:
        """The fields of `TeacherSignals` for texts by their place."""
        vectors = torch.from_numpy(self.store.read(self.numbers[np.asarray(rows)]))
        return {"present": torch.ones(len(vectors), dtype=torch.bool), "sentence": vectors}


def _sample(
    tap: StudentTap, student: SentenceTransformer, needs: Needs, store: SignalStore, texts: Sequence[str] | None
) -> Sample:
    """Return what the untrained student and the store say about some texts, eval mode; empty without texts."""
    if texts is None:
        layers = torch.zeros(1, tap.info.layers or 0, 0, tap.pooled) if needs.student.layers else None
        nothing = TeacherSignals(present=torch.zeros(0, dtype=torch.bool), sentence=torch.zeros(0, store.width))
        return Sample(StudentOutput(torch.zeros(1, 0, tap.info.width), layers), [nothing])
    chosen = [texts[position] for position in sampled_rows(np.arange(len(texts)), SAMPLE)]
    numbers = store.rows(content_keys(chosen))
    if not (numbers >= 0).any():
        raise DataError("the store has none of these texts", where=str(store.path), remedy="Teach them first.")
    items = PreparedCorpus(student, lambda rows: [chosen[row] for row in rows], len(chosen))
    items.lengths = np.array([len(text) for text in chosen])
    return make_sample(
        student, items, [_StoredVectors(store, numbers)], np.flatnonzero(numbers >= 0), seed=0, needs=needs
    )


def _open_method(method: Any) -> Method:
    if isinstance(method, Method):
        return method
    listed = method if isinstance(method, list | tuple) else [method]
    entries = [dict(each) if isinstance(each, Mapping) else {"name": each} for each in listed]
    if any("name" not in entry for entry in entries):
        raise DistilvecError('the method needs a "name"', where="DistillationLoss")
    names = [entry["name"] for entry in entries]
    paths = [name if isinstance(name, str) else path_of(name) for name in names]
    return build_methods([{**entry, "name": path} for entry, path in zip(entries, paths, strict=True)])


def _follows(loss: DistillationLoss) -> Any:
    """A callback for what that trainer does for the student alone: heads of the best checkpoint are loaded with it, and
    gradients cleared (sentence-transformers 6.0 does the student's only; those of the heads would add up)."""
    from transformers import TrainerCallback

    class Follows(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            loss.method.zero_grad()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            loss.method.zero_grad()

        def on_train_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            if args.load_best_model_at_end and state.best_model_checkpoint:
                loss.load_heads(state.best_model_checkpoint)

    return Follows()


def _teacher_info(store: SignalStore) -> TeacherInfo:
    statistics, card = store.statistics(), store.card
    return TeacherInfo(
        name=str(card.get("name", "teacher")),
        width=store.width,
        layers=card.get("layers"),
        mean=torch.from_numpy(np.asarray(statistics.mean)).float(),
        std=torch.from_numpy(np.asarray(statistics.std)).float(),
    )


def _refuse_processes() -> None:
    processes = max(world_size(), launched()[1])
    if processes > 1:
        raise DistilvecError(
            f"the heads of this loss would not be the same in {processes} processes",
            where="DistillationLoss",
            remedy="Train in one process, or with `distilvec train`, which can use several.",
        )
