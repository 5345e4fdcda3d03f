"""Relations of the tokens of one text in teacher and student: attention, or cosines of the token states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from distilvec.corpus import Corpus
from distilvec.corpus.keys import split_pair
from distilvec.functional import relation_matrix
from distilvec.modules.pipeline import default_prompt
from distilvec.report.plots import MUTED, canvas
from distilvec.report.sections.base import Block, Data, Heading, Outcome, Picture, TaughtTeacher, clip
from distilvec.students import StudentTap
from distilvec.teachers.signals import Wanted
from distilvec.training.sample import on_device

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from sentence_transformers import SentenceTransformer

#: Tokens that are named at the axes; of more the names could not be read.
NAMED = 26


class Tokens(Data):
    """maps[i][j][k]: how much token j of one text has to do with token k, for several models.

    `quantity` says what the numbers are, `tokens[i]` how model i cuts the text.
    """

    quantity: str
    names: list[str]
    tokens: list[list[str]]
    maps: list[list[list[float]]]

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        """Take the maps of one text if the method looks at tokens or attention."""
        first = next((each for each in outcome.taught if each.wanted.attention or each.wanted.tokens), None)
        if first is None or outcome.trained is None:
            return None
        found = token_maps(example_text(outcome.corpus), first, outcome.untrained, outcome.trained)
        return None if found is None else cls(**found)

    def blocks(self) -> list[Block]:
        caption = "The last block's map of one text: teacher, student before training, student after."
        return [Heading("How tokens relate"), Picture("tokens", caption, self.figure)]

    def figure(self) -> Figure:
        """One panel per model; rows look at columns. Each panel has its own scale, as maps of other lengths differ."""
        figure = canvas(3.3 * len(self.maps), 3.9)
        for number, (name, tokens, values) in enumerate(zip(self.names, self.tokens, self.maps, strict=True), start=1):
            axes = figure.add_subplot(1, len(self.maps), number)
            shown = np.asarray(values, dtype=float)
            low = min(0.0, float(shown.min(initial=0)))
            axes.pcolormesh(shown, cmap="cividis", vmin=low, vmax=max(float(shown.max(initial=0)), 1e-6))
            axes.set_aspect("equal")
            axes.invert_yaxis()
            axes.set_title(name)
            axes.tick_params(length=0, labelsize=6)
            places = np.arange(len(tokens)) + 0.5
            words = [clip(token.replace("Ġ", "").replace("▁", ""), 10) for token in tokens]
            if len(tokens) > NAMED:
                axes.set(xticks=[], yticks=[])
            else:
                axes.set_xticks(places, words, rotation=90)
                axes.set_yticks(places, words)
            axes.spines[:].set_visible(False)
        figure.supxlabel(self.quantity, color=MUTED, fontsize=9)
        return figure


def example_text(corpus: Corpus) -> str:
    """A text of the corpus, held out if there is one: long enough to show something, short enough to be read."""
    rows = corpus.holdout_rows if len(corpus.holdout_rows) else corpus.train_rows
    return min(corpus.texts(np.asarray(rows)[:200]), key=lambda each: abs(len(each) - 90))


@torch.no_grad()
def token_maps(
    text: str, taught: TaughtTeacher, untrained: SentenceTransformer, student: SentenceTransformer
) -> dict[str, Any] | None:
    """The fields of `Tokens`, from the last blocks of teacher, student before and after; None if a model has no blocks.

    Attention averaged over heads if the method looks at attention, else the cosines of the token states.
    """
    wanted, layers = taught.wanted, taught.teacher.card.layers
    if layers is None:
        return None
    asked = Wanted(attention=(layers,)) if wanted.attention else Wanted(tokens=(layers,))
    seen = taught.teacher.signals([text], asked)
    assert seen.ids is not None and seen.mask is not None
    maps = [_map(seen.attention[layers][0] if wanted.attention else seen.tokens[layers][0], seen.mask[0], asked)]
    vocabulary = taught.teacher.vocabulary
    tokens = [[vocabulary[int(i)] for i in seen.ids[0][seen.mask[0]]]]
    for model in (untrained, student):
        training = model.training
        tap, features = StudentTap(model.eval()), features_of(model, [text])
        last = tap.info.layers
        if last is None:
            return None
        output = tap(
            features, views=1, tokens=() if asked.attention else (last,), attention=(last,) if asked.attention else ()
        )
        model.train(training)
        assert output.mask is not None
        # [V, B, S, S] or [V, B, S, d] -> one view, one text
        values = output.attention[last][0, 0] if asked.attention else output.tokens[last][0, 0]
        maps.append(_map(values, output.mask[0], asked))
        ids = features["input_ids"][0][output.mask[0]].tolist()
        tokens.append([str(token) for token in model.tokenizer.convert_ids_to_tokens(ids)])
    return {
        "quantity": "attention" if asked.attention else "cosine of token states",
        "names": [taught.teacher.card.name, "student before", "student after"],
        "tokens": tokens,
        "maps": [np.round(each, 4).tolist() for each in maps],
    }


def features_of(model: SentenceTransformer, texts: Sequence[str]) -> dict[str, Any]:
    """Prepare texts as in training, on the model's device: joint items as pairs, with the default prompt."""
    features = model.preprocess([split_pair(text) for text in texts], prompt=default_prompt(model) or None)
    return on_device(dict(features), model.device)


def _map(values: Tensor, mask: Tensor, asked: Wanted) -> np.ndarray:
    """[T, T] of the real tokens."""
    mask = mask.to(values.device)
    if asked.attention:
        return np.asarray(values[mask][:, mask].float().cpu())
    return np.asarray(relation_matrix(values[mask].float()).cpu())
