"""Training of one model on one supervised task, without teachers: what `finetune` runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PrinterCallback, TrainingArguments

from distilvec.errors import DataError
from distilvec.modules.task_head import sentence_vectors
from distilvec.tasks.base import Task
from distilvec.tasks.examples import Examples
from distilvec.training.checkpoints import CheckpointedTrainer
from distilvec.training.data import Rows
from distilvec.training.samplers import BucketedBatches
from distilvec.training.trainer import EpochLoader

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class TaskModel(nn.Module):
    """Model and head as one module: features of a batch to its loss."""

    def __init__(self, student: SentenceTransformer, task: Task) -> None:
        super().__init__()
        self.student, self.task = student, task

    def forward(self, features: list[dict[str, Any]], labels: Tensor) -> dict[str, Tensor]:
        """Features of the texts (with separate encoding first and second texts), labels [B] -> "loss" []."""
        vectors = [sentence_vectors(self.student, each)[None] for each in features]
        return {"loss": self.task.loss(self.task.head(*vectors), labels).mean()}


class TaskTrainer(CheckpointedTrainer):
    """transformers.Trainer for a `TaskModel`, with batches of similar length and whole, strictly loaded checkpoints.

    Args:
        module: what is trained.
        args: from `training_arguments`.
        examples: what it is trained on.
        labels: [n], as the task's loss takes them.
        heads_lr: learning rate of the head; None = the model's.
        measure: scores on validation data, or None.
    """

    save_student = None

    def __init__(
        self,
        module: TaskModel,
        args: TrainingArguments,
        examples: Examples,
        labels: Tensor,
        *,
        heads_lr: float | None,
        measure: Callable[[], dict[str, float]] | None,
        callbacks: list[Any],
    ) -> None:
        args._n_gpu = min(args.n_gpu, 1)
        self.distiller = cast(Any, module)  # what is saved and loaded: anything with a `student`
        self.module, self.examples, self.labels = module, examples, labels
        self.heads_lr, self.measure = heads_lr, measure
        student = module.student
        self.prompt = (student.prompts or {}).get(student.default_prompt_name or "") or None
        rows = Rows(np.arange(len(examples)))
        super().__init__(
            model=module,
            args=args,
            data_collator=self.collate,
            train_dataset=rows,
            eval_dataset=rows if measure else None,
            callbacks=callbacks,
        )
        self.model_accepts_loss_kwargs = False
        self.remove_callback(PrinterCallback)

    def collate(self, rows: Sequence[int]) -> dict[str, Any]:
        """Rows -> features and labels of a batch."""
        inputs = [self.examples.inputs[row] for row in rows]
        separate = self.module.task.encoding == "separate"
        sides: list[Any] = [list(side) for side in zip(*inputs)] if separate else [inputs]
        features = [dict(self.module.student.preprocess(side, prompt=self.prompt)) for side in sides]
        return {"features": features, "labels": self.labels[list(rows)]}

    def get_train_dataloader(self) -> Any:
        sizes = [len(item) if isinstance(item, str) else sum(map(len, item)) for item in self.examples.inputs]
        args = self.args
        seed = args.seed if args.data_seed is None else args.data_seed
        batches = BucketedBatches(
            np.array(sizes), args.per_device_train_batch_size, seed=seed, drop_last=args.dataloader_drop_last
        )
        return EpochLoader(
            cast(Any, self.train_dataset),
            batch_sampler=batches,
            collate_fn=self.collate,
            num_workers=args.dataloader_num_workers,
            generator=torch.Generator().manual_seed(seed),
        )

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            cls, options = self.get_optimizer_cls_and_kwargs(self.args)
            decayed = set(self.get_decay_parameter_names(cast(Any, self.module)))
            groups = []
            for head in (False, True):
                for decay in (False, True):
                    parameters = [
                        parameter
                        for name, parameter in self.module.named_parameters()
                        if parameter.requires_grad and name.startswith("task.") == head and (name in decayed) == decay
                    ]
                    rate = self.heads_lr if head and self.heads_lr else self.args.learning_rate
                    weight_decay = self.args.weight_decay if decay else 0.0
                    if parameters:
                        groups.append({"params": parameters, "lr": rate, "weight_decay": weight_decay})
            self.optimizer = cls(groups, **options)
        return self.optimizer

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        loss = model(**inputs)["loss"]
        if not torch.isfinite(loss):
            raise DataError(
                "the loss is not finite",
                where=f"step {self.state.global_step + 1}",
                remedy="Lower optimizer.lr. The last checkpoint is kept.",
            )
        return loss

    def evaluate(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> dict[str, float]:
        """Scores on the validation data."""
        if self.measure is None:
            return {}
        found = {f"{metric_key_prefix}_{name}": value for name, value in self.measure().items()}
        self.log(found)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, found)
        return found

    def _track_num_input_tokens(self, inputs: dict[str, Any]) -> None:
        super()._track_num_input_tokens(inputs["features"][0])

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        return 0
