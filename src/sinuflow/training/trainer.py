"""The training loop."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..data.sources import Batches, RowSource
from ..errors import TrainingError
from ..flows.flow import Flow
from .checkpoint import Checkpoint
from .device_engine import make_engine
from .engine import EagerEngine, Snapshot, Weights, copy_weights
from .guard import Guard
from .history import History, Record
from .parts import Parts
from .progress import Progress, Status
from .schedules import Schedule
from .settings import Settings

#: The batch size of validation, and the number of rows on which the stability penalty is evaluated.
_VALIDATION_ROWS, _PENALTY_ROWS = 4096, 64
#: The factor of the learning rate after divergence, and the maximum number of restarts from the last good weights.
_BACK_OFF, _MAX_RESTARTS = 0.3, 3
#: Attributes of a trainer that checkpoints store by name; the scores are None there if they are infinite.
_STORED = ("step", "best_step", "finished", "rate_factor", "returns", "waited", "seconds", "best_nll", "best_score")
#: Groups of tensors in checkpoints: the current weights, the last good ones, and the best ones.
_GROUPS = ("weights", "optimizer", "average", "good", "good_optimizer", "good_average", "best")


@dataclass(eq=False)
class Trainer:
    """A training run.

    A step depends on nothing but the state that :meth:`state` returns: weights, their average and the best ones,
    optimizer, last good weights, position in the data, random state, schedule, guard and history.
    """

    flow: Flow
    train: RowSource
    validation: RowSource | None
    settings: Settings
    history: History
    progress: Progress
    part_steps: Sequence[int] | None = None  # after which the training of each part of the flow ends

    def __post_init__(self) -> None:
        settings = self.settings
        self._bits: Callable[[float], float] | None = getattr(self.validation, "bits_per_dimension", None)  # of images
        self._batches = Batches(self.train, settings.batch_size, settings.seed)
        per_epoch = max(1, self.train.rows // settings.batch_size)
        self._schedule = Schedule(settings.schedule, settings.steps, settings.warmup, settings.decay, per_epoch)
        self._guard = Guard(slack=float(self.flow.features))
        self._engine = make_engine(self.flow, self._batches, settings, self._guard, self._learning_rate, self._elapsed)
        self.parts = Parts(self.flow)
        self._good = self._engine.snapshot()
        self._loss_sum, self._loss_count = 0.0, 0
        self.step = self.best_step = self.returns = self.waited = 0
        self.rate_factor, self.seconds = 1.0, 0.0
        self.best_nll = self.best_score = math.inf  # the score includes the stability penalty
        self.finished = False

    def run(self, after_step: Callable[[], None], checkpoint_steps: int | None = None) -> None:
        """Train to the end, calling ``after_step`` between steps and at every multiple of ``checkpoint_steps``."""
        settings = self.settings
        self.flow.train()
        rows, earlier, started = 0, self.seconds, time.monotonic()
        if self.step == 0 and not self.history.records and self.validation is not None:
            self._validate(0.0)  # the initial weights may remain the best
        self._end_parts()
        while not self.out_of_budget and not self.finished:
            periods = [period for period in (settings.validate_every, checkpoint_steps) if period is not None]
            events = [
                settings.steps,
                *self._part_ends,
                *(self.step + period - self.step % period for period in periods),
            ]
            advance = self._engine.advance(self.step, min(event for event in events if event > self.step) - self.step)
            rows += advance.rows
            self.step += advance.steps
            self._loss_sum += advance.loss_sum
            self._loss_count += advance.loss_count
            elapsed = time.monotonic() - started
            self.seconds = earlier + elapsed
            rows_per_second = rows / max(1e-9, elapsed)
            if self._guard.diverged:
                self._restart_from_last_good()
            if self.step in self._part_ends:
                self._end_parts()
            if self.step % settings.validate_every == 0 or self.out_of_budget or self.finished:
                self._validate(rows_per_second)
            self._show(advance.loss, rows_per_second)
            after_step()
        self.finished = True

    def _elapsed(self) -> float:
        """The elapsed fraction of the time limit; 0 without a limit."""
        minutes = self.settings.minutes
        return 0.0 if minutes is None else min(1.0, self.seconds / (60 * minutes))

    @property
    def out_of_budget(self) -> bool:
        """Whether all steps have been taken, or the time is over."""
        return self.step >= self.settings.steps or self._elapsed() >= 1

    def _learning_rate(self, step: int) -> float:
        return self.settings.learning_rate * self.rate_factor * self._schedule.factor(step, self._elapsed())

    def _show(self, loss: float, rows_per_second: float) -> None:
        best, unit = self.best_nll if math.isfinite(self.best_nll) else None, ""
        if self._bits is not None:  # for the batch an estimate, with the Jacobian of the validation images
            loss, best, unit = self._bits(loss), None if best is None else self._bits(best), " bits/dim"
        status = Status(self.step, self.settings.limited_steps, loss, best, rows_per_second, unit, self._elapsed())
        self.progress.show(status)

    def _validate(self, rows_per_second: float) -> None:
        nlls, penalty = ([], 0.0) if self.validation is None else self._validation_scores(self.validation)
        nll = sum(nlls) if nlls else None
        record: Record = {
            "step": self.step,
            "train_nll": self._loss_sum / self._loss_count if self._loss_count else math.nan,
            "val_nll": nll,
            "learning_rate": self._learning_rate(max(0, self.step - 1)),
            "seconds": round(self.seconds, 3),
            "rows_per_second": round(rows_per_second, 1),
            "skipped": self._guard.skipped,
        }
        if nll is not None and self._bits is not None:
            record["val_bits_per_dimension"] = self._bits(nll)
        if nll is not None and self._engine.stability is not None:
            record["val_penalty"] = penalty
        self._loss_sum, self._loss_count = 0.0, 0
        self.history.add(record)
        if nll is not None and not math.isfinite(nll):
            self._restart_from_last_good()
            return
        if self._guard.bad_in_a_row == 0:
            self._good = self._engine.snapshot()
        if nll is None:
            self.best_step = self.step
            return
        improved = self.parts.update([score + penalty for score in nlls], self.step, self._weights())
        self._schedule.validated(improved)
        if improved:
            self.best_score = sum(self.parts.scores)
            self.best_nll, self.best_step = self.best_score - penalty, self.step
        self.waited = min(self.parts.waited)
        self._freeze()

    @property
    def _part_ends(self) -> Sequence[int]:
        """The step at which the training of each part ends."""
        return [self.settings.steps] * self.parts.count if self.part_steps is None else self.part_steps

    def _end_parts(self) -> None:
        """Freeze the parts whose last step was taken; without validation, store their weights as the best."""
        if self.part_steps is not None and self.validation is None:
            self.parts.store_best([self.step == end for end in self.part_steps], self.step, self._weights())
        self._freeze()

    def _freeze(self) -> None:
        """Freeze parts whose patience is exhausted or whose last step was taken; training ends with the last part."""
        # The stability penalty reaches its full weight at the last step, so there is no early stopping with it.
        patience = self.settings.patience if self._engine.stability is None else None
        stale = [patience is not None and waited >= patience for waited in self.parts.waited]
        frozen = [old or self.step >= end for old, end in zip(stale, self._part_ends, strict=True)]
        self.finished = self.finished or all(frozen)
        if self.parts.count > 1 and isinstance(self._engine, EagerEngine):
            self.parts.freeze(frozen)

    def _validation_scores(self, rows: RowSource) -> tuple[list[float], float]:
        """The mean negative log-likelihood of the validation rows by part, and the stability penalty at full weight."""
        current = copy_weights(self.flow.state_dict())
        self.flow.load_state_dict(self._weights())
        self.flow.eval()
        with torch.no_grad():
            sums, count = [], 0
            for batch in rows.in_order(_VALIDATION_ROWS):
                sums.append(self.parts.log_probs(*batch).double().sum(0))
                count += len(batch.x)
        penalty = 0.0
        if self._engine.stability is not None:
            batch = next(iter(rows.in_order(_PENALTY_ROWS)))
            penalty = self._engine.stability.evaluate(*batch.map(lambda t: t.mT))
        self.flow.load_state_dict(current)
        self.flow.train()
        totals = [math.fsum(terms) for terms in torch.stack(sums).mT.tolist()]
        return [-total / count for total in totals], penalty

    def _restart_from_last_good(self) -> None:
        """After divergence, restore the last good weights and lower the learning rate."""
        self.returns += 1
        if self.returns > _MAX_RESTARTS:
            raise TrainingError(
                f"the loss diverged {self.returns} times, the last time at step {self.step}: try a learning rate "
                f"below {self.settings.learning_rate * self.rate_factor:.1g}, clip=1.0, "
                + ("less stability, " if self.settings.stability is not None else "")
                + "or look for extreme values in the data"
            )
        self.rate_factor *= _BACK_OFF
        self._engine.restore(self._good)
        self._guard.restart()
        message = (
            f"the loss diverged at step {self.step}: back to the last good weights, "
            f"with {self.rate_factor:.2g} of the learning rate"
        )
        warnings.warn(message, stacklevel=2)
        self.progress.say(message)

    def _weights(self) -> Weights:
        average = self._engine.average
        return self.flow.state_dict() if average is None else average

    def finish(self) -> None:
        """Load the best weights into the flow, in evaluation mode."""
        if self.validation is None:
            self.parts.store_best([self.step <= end for end in self._part_ends], self.step, self._weights())
        weights = self._weights() if self.parts.best is None else self.parts.best
        self.flow.load_state_dict(weights)
        self.flow.eval()
        if not all(bool(t.isfinite().all()) for t in weights.values()):
            raise TrainingError(
                "training ended with weights that are NaN or infinite: try a lower learning rate, or give "
                "validation rows, so that the best weights are kept"
            )

    def close(self) -> None:
        self.parts.freeze([False] * self.parts.count)
        self._engine.close()

    def state(self, fingerprint: dict[str, Any]) -> Checkpoint:
        """The complete state of the run, as a checkpoint."""
        current = self.flow.state_dict(), self._engine.optimizer_state(), self._engine.average
        groups = zip(_GROUPS, (*current, *self._good, self.parts.best), strict=True)
        tensors = {name: group for name, group in groups if group is not None}
        tensors["random"] = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            tensors["random"]["cuda"] = torch.cuda.get_rng_state()
        stored = {name: getattr(self, name) for name in _STORED}
        numbers = {name: None if value == math.inf else value for name, value in stored.items()} | {
            "fingerprint": fingerprint,
            "position": list(self._batches.position),
            "loss": [self._loss_sum, self._loss_count],
            "plateau": [self._schedule.plateau, self._schedule.waited],
            "guard": self._guard.state(),
            "history": self.history.records,
            "parts": self.parts.state(),
        }
        return Checkpoint(numbers, tensors)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the result of :meth:`state`."""
        numbers, tensors = checkpoint
        self._good = Snapshot(tensors["good"], tensors.get("good_optimizer", {}), tensors.get("good_average"))
        self._engine.restore(Snapshot(tensors["weights"], tensors.get("optimizer", {}), tensors.get("average")))
        torch.set_rng_state(tensors["random"]["cpu"])
        if torch.cuda.is_available() and "cuda" in tensors["random"]:
            torch.cuda.set_rng_state(tensors["random"]["cuda"])
        numbers = {"best_score": numbers["best_nll"]} | numbers  # 0.1.0 had no best_score
        for name in _STORED:
            setattr(self, name, math.inf if numbers[name] is None else numbers[name])
        single = {"scores": [numbers["best_score"]], "steps": [self.best_step], "waited": [self.waited]}  # as in 0.1.0
        self.parts.restore(numbers.get("parts", single), tensors.get("best"))
        self._batches.position = tuple(numbers["position"])
        self._loss_sum, self._loss_count = numbers["loss"]
        self._schedule.plateau, self._schedule.waited = numbers["plateau"]
        self._guard.restore(numbers["guard"])
        self.history.start(numbers["history"])
