"""A finished supervised model: it answers in label names or scores, and is an embedder as before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from distilvec.corpus.keys import split_pair
from distilvec.errors import DataError, DistilvecError
from distilvec.modules.opening import locate
from distilvec.modules.pipeline import default_prompt
from distilvec.modules.task_head import TaskHead, sentence_vectors
from distilvec.students.load import load_student
from distilvec.tasks.examples import Examples, Input
from distilvec.tasks.scores import classification_scores, regression_scores

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class Predictor:
    """A sentence-transformers model with a task head.

    Args:
        model: gives sentence vectors; its default prompt applies.
        batch_size: texts per forward pass.
        prompt: before every text, in place of the model's default.

    Raises:
        DataError: the head reads vectors of another width.
    """

    def __init__(
        self, model: SentenceTransformer, head: TaskHead, *, batch_size: int = 32, prompt: str | None = None
    ) -> None:
        self.model, self.head, self.batch_size = model, head, batch_size
        self._prompt = (default_prompt(model) if prompt is None else prompt) or None
        width = self._width()
        if width != head.width:
            raise DataError(f"the task head reads vectors of width {head.width}, the model gives {width}")

    def _width(self) -> int:
        """d of the sentence vectors; a text is tried only where no module says it, for the model may read no texts."""
        asks = (getattr(module, "get_embedding_dimension", None) for module in reversed(list(self.model.children())))
        width = next((size for ask in asks if callable(ask) and (size := ask()) is not None), None)
        return int(self._vectors(["A probe."]).shape[-1] if width is None else width)

    @classmethod
    def load(cls, folder: str | Path, *, device: str | None = None, trust_remote_code: bool = False) -> Predictor:
        """Open the student of a supervised run (`out/student`), or a fine-tuned model.

        Args:
            folder: or model id on the hub.
            device: default is the best there is.
            trust_remote_code: whether code that comes with the model may run.

        Raises:
            DistilvecError: there is no such model.
            DataError: it has no task head, or a file is damaged.
        """
        head = TaskHead.load(locate(folder, trust_remote_code))
        model = load_student(str(folder), device=device, trust_remote_code=trust_remote_code)
        model.eval()
        return cls(model, head.to(model.device).eval())

    @property
    def labels(self) -> list[str] | None:
        """Names of the classes in order of `logits`; None for a regression."""
        return self.head.labels

    def predict(self, inputs: Sequence[Input]) -> list[str] | list[float]:
        """The label name of each text or pair, or its score in the units of the training data.

        Raises:
            DistilvecError: texts where pairs are needed, or the reverse.
        """
        return self.head.meaning(torch.from_numpy(self.logits(inputs)))

    def probabilities(self, inputs: Sequence[Input]) -> np.ndarray:
        """float32 [n, C], columns in the order of `labels`.

        Raises:
            DistilvecError: as `predict`; the model gives scores, not classes.
        """
        if self.head.labels is None:
            raise DistilvecError(
                f"a model with a {self.head.kind} head gives scores, not classes", remedy="Use predict."
            )
        return torch.from_numpy(self.logits(inputs)).softmax(-1).numpy()

    def encode(self, sentences: Any, **options: Any) -> Any:
        """Sentence vectors, as the model alone gives them (`SentenceTransformer.encode`)."""
        return self.model.encode(sentences, **options)

    def evaluate(self, examples: Examples) -> dict[str, float]:
        """Accuracy, macro F1, precision and recall; or Spearman's and Pearson's correlation.

        Raises:
            DataError: a label that the head does not know.
        """
        truth, logits = examples.targets(self.head), self.logits(examples.inputs)
        if self.head.labels is not None:
            return classification_scores(truth, logits.argmax(-1))
        return regression_scores(truth, logits[:, 0])

    def logits(self, inputs: Sequence[Input]) -> np.ndarray:
        """Return what the head says: float32 [n, C], or [n, 1] for a regression.

        Raises:
            DistilvecError: as `predict`.
        """
        items = self._checked(inputs)
        if not items:
            return np.zeros((0, self.head.classes or 1), np.float32)
        training = self.head.training
        self.head.eval()
        with torch.inference_mode():
            if self.head.encoding == "separate":
                vectors = self._vectors([side for item in items for side in item])
                logits = self.head(vectors[0::2], vectors[1::2])
            else:
                logits = self.head(self._vectors(items))
        self.head.train(training)
        return logits.float().cpu().numpy()

    def _checked(self, inputs: Sequence[Input]) -> list[Any]:
        if isinstance(inputs, str):
            raise DistilvecError(
                f"a list of inputs is needed, not one text, {inputs[:40]!r}", remedy="Put it into a list."
            )
        if isinstance(inputs, Mapping) or hasattr(inputs, "columns") or not isinstance(inputs, Iterable):
            raise DistilvecError(
                f"a list of inputs is needed, not a {type(inputs).__name__}",
                remedy='Of a table give the column, frame["text"], or the two of a pair, list(zip(first, second)).',
            )
        paired = self.head.encoding != "single"
        items: list[Any] = []
        for row, given in enumerate(inputs):
            item = split_pair(given) if isinstance(given, str) else given
            pair = isinstance(item, list | tuple) and len(item) == 2 and all(isinstance(side, str) for side in item)
            if not (pair if paired else isinstance(item, str)):
                needed = "pairs (first text, second text)" if paired else "single texts"
                raise DistilvecError(f"this model answers about {needed}, and input {row} is {given!r:.80}")
            items.append(tuple(item) if paired else item)
        return items

    @torch.inference_mode()
    def _vectors(self, texts: Sequence[Any]) -> Tensor:
        """[n, d] in the given order, encoded in batches of similar length."""
        from sentence_transformers.util import batch_to_device

        training = self.model.training
        self.model.eval()
        sizes = [len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts]
        order = np.argsort(sizes, kind="stable")[::-1]
        parts = []
        for start in range(0, len(order), self.batch_size):
            batch = [texts[row] for row in order[start : start + self.batch_size]]
            features = batch_to_device(self.model.preprocess(batch, prompt=self._prompt), self.model.device)
            parts.append(sentence_vectors(self.model, features))
        self.model.train(training)
        vectors = torch.cat(parts)
        return vectors[torch.from_numpy(np.argsort(order)).to(vectors.device)]
