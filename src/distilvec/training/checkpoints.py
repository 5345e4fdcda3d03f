"""Checkpoints that appear whole or not at all, are loaded strictly, and hold all that an exact resumption needs."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_model
from torch import nn
from transformers import EarlyStoppingCallback, Trainer
from transformers.trainer_utils import HubStrategy
from transformers.utils.hub import PushInProgress

from distilvec.errors import GO_ON, DataError, EnvironmentProblem
from distilvec.sealing import remove, seal, sealed
from distilvec.system_errors import system_problem
from distilvec.training.callbacks import StopPolitely
from distilvec.training.checkpoint_folders import DATA, PARTIAL, REMOVE, WEIGHTS, load_strictly, readable, step_of
from distilvec.training.distributed import barrier, rank

if TYPE_CHECKING:
    from distilvec.training.distiller import Distiller

logger = logging.getLogger(__name__)
#: Torch says by these names, in errors without a kind, that a file cannot be written.
_WRITERS = ("PytorchStreamWriter", "inline_container", "iostream error")


class CheckpointedTrainer(Trainer):
    """The part of the trainer that writes and reads: checkpoints of the distiller, the student for everybody else.

    Attributes:
        distiller: what is trained.
        save_student: (folder) -> None, writes the student as it ships; None saves it plainly.
        data: what is trained on, as `data_mark` says it; written into every checkpoint.
    """

    distiller: Distiller
    save_student: Callable[[Path], None] | None
    data: dict[str, Any] | None = None
    _partial: Path | None = None
    _unlogged: Path | None = None
    _begun = 0.0

    @property
    def home(self) -> Path:
        """Where checkpoints lie."""
        return Path(str(self.args.output_dir))

    def start_clock(self) -> None:
        """From here on `seconds` counts."""
        self._begun = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Wall clock of the training, with that of the calls before it up to the checkpoints that were gone on from."""
        return time.perf_counter() - self._begun

    # writing

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the student, by default to `student` beside the checkpoints."""
        super().save_model(output_dir or str(self.home / "student"), _internal_call)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.home / "student")
        if self._partial is not None:
            folder.mkdir(parents=True, exist_ok=True)
            save_model(self.distiller, str(folder / WEIGHTS))
        elif self.save_student is not None:
            self.save_student(folder)
        else:
            self.distiller.student.save(str(folder))

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._partial) if self._partial is not None else super()._get_output_dir(trial)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write under a temporary name, then rename: a checkpoint is whole or it is not there."""
        self._check_finite()
        home, name = self.home, f"checkpoint-{self.state.global_step}"
        partial = self._partial = home / f"{PARTIAL}{self.state.global_step}"
        try:
            super()._save_checkpoint(model, trial)
            (partial / name / f"unlogged-{rank()}.json").write_text(json.dumps(self.unlogged()))
            if self.data is not None and self.args.should_save:
                (partial / name / DATA).write_text(json.dumps(self.data))
            barrier()
            best = self.state.best_model_checkpoint
            if best and Path(best).parent == partial:
                self.state.best_model_checkpoint = str(home / Path(best).name)
            if self.args.should_save:
                self.state.save_to_json(str(partial / name / "trainer_state.json"))
                seal(partial / name, "checkpoint")
                shutil.rmtree(home / name, ignore_errors=True)
                os.replace(partial / name, home / name)
        except torch.OutOfMemoryError:
            raise
        except (OSError, RuntimeError, SafetensorError) as error:
            if isinstance(error, RuntimeError) and not any(each in str(error) for each in _WRITERS):
                raise  # of a GPU, or of other processes
            after = f"Then {GO_ON}; earlier checkpoints are untouched."
            raise system_problem(error, "the checkpoint cannot be written", home / name, after) from error
        finally:
            self._partial = None
            if self.args.should_save:
                shutil.rmtree(partial, ignore_errors=True)
        if self.args.should_save:
            self._rotate()
        barrier()
        if self.args.push_to_hub:
            self._push_progress(home / name)

    def _rotate(self) -> None:
        """Remove the oldest checkpoints beyond `save_total_limit`, never the best one or what somebody put there."""
        best, ours = Path(self.state.best_model_checkpoint or "").name, self._ours()
        beyond = len(ours) - (self.args.save_total_limit or len(ours))
        self._remove([each for each in ours[:-1] if each.name != best][: max(beyond, 0)])

    def _ours(self) -> list[Path]:
        """The checkpoints that distilvec wrote here, the oldest first."""
        return sorted((each for each in self.home.glob("checkpoint-*") if sealed(each)), key=step_of)

    def _remove(self, checkpoints: list[Path]) -> None:
        for each in checkpoints:
            with contextlib.suppress(OSError):
                remove(each)

    def unlogged(self) -> dict[str, Any]:
        """What has been summed up since the last line of the log, and the seconds so far."""
        loss, total = float(self._tr_loss), self._total_loss_scalar
        return {"loss": loss, "total": total, "last": self._globalstep_last_logged, "seconds": self.seconds}

    def take_up_unlogged(self, kept: dict[str, Any]) -> None:
        """Go on with what `unlogged` gave."""
        self._tr_loss += kept["loss"]
        self._total_loss_scalar, self._globalstep_last_logged = kept["total"], kept["last"]
        self._begun -= kept.get("seconds", 0.0)  # checkpoints of earlier versions have none

    # reading

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        folder = Path(resume_from_checkpoint)
        load_strictly(self.distiller, folder)
        for needed in ("optimizer.pt", "scheduler.pt"):
            if not (folder / needed).is_file():
                raise DataError(f"{needed} is missing from this checkpoint", where=str(folder), remedy=REMOVE)
        unlogged = folder / f"unlogged-{rank()}.json"
        self._unlogged = unlogged if unlogged.exists() else None

    def _load_best_model(self) -> None:
        load_strictly(self.distiller, Path(str(self.state.best_model_checkpoint)))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with readable(Path(str(checkpoint))):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with readable(Path(str(checkpoint))):
            super()._load_rng_state(checkpoint)

    def _load_callback_state(self) -> None:
        patience = {type(each): each.early_stopping_patience for each in self._stoppers()}
        with readable(self.home):
            super()._load_callback_state()
        for each in self._stoppers():  # how often it went by is the checkpoint's, how often it may the recipe's
            each.early_stopping_patience = patience.get(type(each), each.early_stopping_patience)
        best = f"checkpoint-{self.state.best_global_step}"
        if (self.home / best).is_dir():  # the folder may have been moved or copied
            self.state.best_model_checkpoint = str(self.home / best)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Every new best is saved: the weights that are loaded at the end are those of the best evaluation."""
        new: bool = super()._determine_best_metric(metrics, trial)
        if new and self.args.load_best_model_at_end:
            self.control.should_save = True
        return new

    def _stoppers(self) -> list[EarlyStoppingCallback]:
        return [each for each in self.callback_handler.callbacks if isinstance(each, EarlyStoppingCallback)]

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        self._take_up()
        if self._is_over():
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        self._take_up()  # no epoch was left to run
        # With a limit of 1 transformers would keep the best alone: after a stop, too, and whosever the others are.
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            train_output = super()._finalize_training(*args, **kwargs)
        finally:
            self.args.save_total_limit = limit
        self._check_finite()
        if limit == 1 and self.state.best_model_checkpoint and self.args.should_save and not self._was_stopped():
            self._remove([each for each in self._ours() if each.name != Path(self.state.best_model_checkpoint).name])
        return train_output

    def _was_stopped(self) -> bool:
        """Whether somebody ended the training, who goes on from the last checkpoint."""
        polite = [each for each in self.callback_handler.callbacks if isinstance(each, StopPolitely)]
        return any(each.stopped or each.signals.number is not None for each in polite)

    def _check_finite(self) -> None:
        """Refuse to keep weights that the last step broke: no loss after it would tell.

        Raises:
            DataError: a tensor has values that are not finite.
        """
        broken = [
            name
            for name, value in self.distiller.state_dict().items()
            if value.is_floating_point() and not torch.isfinite(value).all()
        ]
        if broken:
            raise DataError(
                f"{len(broken)} tensors of the trained model are not finite ({', '.join(broken[:3])} ...)",
                where=f"step {self.state.global_step}",
                remedy="Lower optimizer.lr and optimizer.heads_lr. Earlier checkpoints are kept.",
            )

    def _take_up(self) -> None:
        if self._unlogged is not None:
            with readable(self._unlogged):
                self.take_up_unlogged(json.loads(self._unlogged.read_text()))
            self._unlogged = None

    def _is_over(self) -> bool:
        """Whether the checkpoint that was taken up is the last one of its training."""
        out_of_patience = any(
            each.early_stopping_patience_counter >= each.early_stopping_patience for each in self._stoppers()
        )
        return self.state.global_step >= self.state.max_steps or out_of_patience

    # the hub

    def push_to_hub(  # type: ignore[override]  # what else transformers takes is for its own model card
        self, commit_message: str | None = "End of training", blocking: bool = True, **_: Any
    ) -> Any:
        """Upload the student (nothing else) to `hub_model_id`."""
        if self.hub_model_id is None:
            self.init_hf_repo()
        self._finish_current_push()
        self.save_model(_internal_call=True)
        if self.is_world_process_zero():
            return self._upload(self.home / "student", commit_message, run_as_future=not blocking)
        return None

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Nothing: at this point the checkpoint has no name yet. `_push_progress` does it."""

    def _push_progress(self, checkpoint: Path) -> None:
        strategy = self.args.hub_strategy
        if not self.is_world_process_zero() or strategy == HubStrategy.END:
            return
        if self.push_in_progress is not None and not self.push_in_progress.is_done():
            if not self.args.hub_always_push:
                return
            self._finish_current_push()
        message = f"Training in progress, step {self.state.global_step}"
        self._save(str(self.home / "student"))
        jobs = [self._upload(self.home / "student", message, run_as_future=True)]
        if strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            place = "last-checkpoint" if strategy == HubStrategy.CHECKPOINT else checkpoint.name
            jobs.append(self._upload(checkpoint, f"{message}, checkpoint", run_as_future=True, path_in_repo=place))
        pushing: Any = PushInProgress(jobs)  # type: ignore[arg-type]
        self.push_in_progress = pushing

    def _upload(self, folder: Path, message: str | None, **kwargs: Any) -> Any:
        from huggingface_hub import HfApi

        try:
            return HfApi().upload_folder(
                repo_id=str(self.hub_model_id),
                folder_path=str(folder),
                commit_message=message,
                token=self.args.hub_token,
                revision=self.args.hub_revision,
                **kwargs,
            )
        except Exception as error:  # of whatever client the hub's package uses
            raise EnvironmentProblem(
                f"the hub did not take the upload ({error})",
                where=str(self.hub_model_id),
                remedy="Run again with --resume to try once more; nothing is trained again.",
            ) from error
