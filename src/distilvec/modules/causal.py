"""A causal language model in the pipeline of all students and teachers.

The decision. A student or teacher that writes is, while it is trained and asked, a `SentenceTransformer` of two
modules: `Writer`, which holds the whole `AutoModelForCausalLM`, and `AnswerPooling`, whose vector is the last layer's
state at the last token of the answer (or the mean of the answer's). So tap, store, methods on token states, attention
and sentence vectors, distiller, trainer, checkpoints and attention kernels meet what they always meet. What is relaxed,
and where:

- `find_transformer` (blocks.py) takes a `Writer` for a transformer;
- token ids come from a prompt and its answer (spelling.py, kinds/writing/token_ids.py), and only the answer's own
  tokens are content;
- the pipeline leaves `answer_loss` and `answer_tokens` [N] in the features, from which the task takes its loss, and
  `next_logits` [N, A, C] where a method asks for them: what it predicts after the prompt and after each of the answer's
  tokens, with `next_ids` [N, A], what does follow (-100 = nothing). The shift by one is the model's and happens here
  only;
- it opens from, and ships as, a plain transformers folder (writing.py, kinds/writing/students.py), because that is what
  people generate with. Modules that a method appends (DistillMoE's experts on the answer's vector) play no part in the
  next token, so they teach the blocks below them and are left out of what ships.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from sentence_transformers.base.modules import InputModule
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor, nn
from torch.nn import functional

from distilvec.errors import DistilvecError
from distilvec.modules.spelling import ANSWER, SEPARATOR, AnswerSpeller, padded, split_items


class Writer(InputModule):
    """A causal model that reads a prompt and its answer, and says how likely it finds the answer.

    Args:
        model: an `AutoModelForCausalLM`.
        tokenizer: its own; one without a padding token pads with its end token.
        max_seq_length: tokens of prompt and answer together; None = any.
        separator: between prompt and answer.
        name: for messages.

    Attributes:
        next_logits: whether `forward` leaves `next_logits` in the features.
        spells: whether it leaves the loss there.
    """

    tokenizer: Any
    module_output_name = "token_embeddings"
    #: What `find_writer` knows it by, without importing this file.
    writes = True

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        max_seq_length: int | None = None,
        separator: str = SEPARATOR,
        name: str = "model",
    ) -> None:
        super().__init__()
        self.model, self.tokenizer, self.name = model, tokenizer, name
        self.max_seq_length, self.separator = max_seq_length, separator
        self.next_logits, self.spells = False, True
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        self._takes_positions = "position_ids" in inspect.signature(model.base_model.forward).parameters

    @property
    def answers(self) -> AnswerSpeller:
        """The speller of prompts with answers."""
        return AnswerSpeller(self.tokenizer, self.max_seq_length, self.separator, self.name)

    @property
    def token_head(self) -> nn.Linear:
        """The map from its last states to logits of the next token."""
        return self.model.get_output_embeddings()

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **_: Any) -> dict[str, Tensor]:
        """Pairs (prompt, answer) -> features [B, S] (`spelling.padded`)."""
        spelt = self.answers(split_items(inputs, self.separator, prompt or ""))
        return padded(spelt, int(self.tokenizer.pad_token_id), self.tokenizer.padding_side)

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Features [N, S] -> these with `token_embeddings` [N, S, H], and what the header says."""
        states = self.states(features["input_ids"], features["attention_mask"])
        features["token_embeddings"] = states
        if self.spells or self.next_logits:
            self._predict(features, states)
        return features

    def states(self, ids: Tensor, mask: Tensor) -> Tensor:
        """[N, S, H] the last states, after the final norm; padding may be on either side."""
        return self.model.base_model(**self._inputs(ids, mask), use_cache=False)[0]

    def _inputs(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        more = {"position_ids": positions} if self._takes_positions else {}
        return {"input_ids": ids, "attention_mask": mask, **more}

    def _predict(self, features: dict[str, Any], states: Tensor) -> None:
        kinds, ids = features["answer_mask"], features["input_ids"]
        places, real = answer_places(kinds)
        index = places.unsqueeze(-1).expand(-1, -1, states.shape[-1])
        logits = self.token_head(states.gather(1, index))  # [N, A, C]
        targets = ids.gather(1, (places + 1).clamp_max(ids.shape[1] - 1)).masked_fill(~real, -100)
        if self.next_logits:
            features["next_logits"], features["next_ids"] = logits, targets
        if not self.spells:
            return
        # Of each token and not of all at once: rows are averaged by whoever asks.
        losses = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
        count = real.sum(-1)
        features["answer_loss"] = losses.view(real.shape).sum(-1) / count.clamp_min(1)
        features["answer_tokens"] = count.float()

    def get_embedding_dimension(self) -> int:
        """H."""
        config = self.model.config
        return int((config.get_text_config() if hasattr(config, "get_text_config") else config).hidden_size)

    def save(self, output_path: str, *_: Any, safe_serialization: bool = True, **__: Any) -> None:
        """A plain transformers folder."""
        self.model.save_pretrained(output_path)
        self.tokenizer.save_pretrained(output_path)


class AnswerPooling(Pooling):
    """The state at the answer's last token, or the mean of the states of all its tokens; the end token is none of them.

    Nothing is trained to follow the end token, so that its state says nothing.
    """

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """`token_embeddings` [N, S, H] -> `sentence_embedding` [N, H]."""
        mask = (features["answer_mask"] == ANSWER).long()
        given = {"token_embeddings": features["token_embeddings"], "attention_mask": mask}
        features["sentence_embedding"] = super().forward(given)["sentence_embedding"]
        return features


def answer_places(kinds: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the answers' tokens are predicted.

    Args:
        kinds: int64 [N, S], PROMPT, ANSWER and END.

    Returns:
        int64 [N, A], the end of the prompt and the answer's tokens, A = 1 + the most of them; and bool [N, A], those
        behind which a token of the answer or its end follows. What is beyond an answer's length is anywhere in the row.
    """
    answered = kinds > 0
    most = int((kinds == ANSWER).sum(-1).max()) + 1
    steps = torch.arange(most, device=kinds.device)
    last = kinds.shape[1] - 1
    # Where there is no answer at all, nothing is real.
    places = (answered.int().argmax(-1, keepdim=True) - 1 + steps).clamp(0, last)
    return places, steps < answered.sum(-1, keepdim=True)


@torch.no_grad()
def check_predictions(writer: Writer, name: str) -> None:
    """Refuse a model whose logits are not the linear map of its last states that `Writer` takes them for."""
    features = writer.preprocess([("A prompt", "and an answer"), ("Another", "one")])
    features = {key: value.to(writer.model.device) for key, value in features.items()}
    ids, mask = features["input_ids"], features["attention_mask"]
    training = writer.model.training
    writer.model.eval()
    try:
        own = writer.model(**writer._inputs(ids, mask)).logits
        ours = writer.token_head(writer.states(ids, mask))
        same = ours.shape == own.shape and torch.allclose(own, ours, rtol=1e-2, atol=1e-2)
    except Exception as problem:  # whatever libraries raise over configurations that contradict the weights
        first = next(iter(str(problem).strip().splitlines()), type(problem).__name__)
        raise DistilvecError(
            f"it opens and cannot read a text: {first}", where=name, remedy="See its config.json."
        ) from problem
    finally:
        writer.model.train(training)
    if not same:
        raise DistilvecError(
            f"the logits of a {type(writer.model).__name__} are no linear map of its last states, and only such models "
            "can be trained to write",
            where=name,
            remedy="Take another architecture: GPT-2, OPT, Llama, Mistral and Qwen are known to be such.",
        )
