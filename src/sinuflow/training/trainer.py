"""The training loop."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..data.batches import Batches
from ..data.image_rows import ImageRows
from ..data.sources import RowSource
from ..errors import TrainingError
from ..flows.flow import Flow
from .checkpoint import Checkpoint
from .device_engine import make_engine
from .engine import Snapshot, Weights, copied
from .guard import Guard
from .history import History
from .progress import Progress, Standing
from .schedules import Schedule
from .settings import Settings
from .stability import Stability

#: Rows that are scored at a time when validating, and those by which a penalty is judged, which takes inverses.
_VALIDATION_ROWS, _JUDGED_ROWS = 4096, 64
#: What is left of the learning rate after going back, and how often that is tried.
_BACK_OFF, _MOST_RETURNS = 0.3, 3


class Trainer:
    """One run: its state, and the steps that change it.

    All of the state can be stored and restored: weights, optimiser, averaged and best weights, the
    last good ones, the position in the data, random state, schedule, guard and history. A step
    depends on nothing else.
    """

    def __init__(
        self,
        flow: Flow,
        train: RowSource,
        validation: RowSource | None,
        settings: Settings,
        history: History,
        progress: Progress,
        slack: float,
    ) -> None:
        self._flow, self._validation, self._settings = flow, validation, settings
        self._history, self._progress = history, progress
        # Of images, the measure that means something to people.
        self._bits = validation.bits_per_dimension if isinstance(validation, ImageRows) else None
        self._batches = Batches(train, settings.batch_size, settings.seed)
        per_epoch = max(1, train.rows // settings.batch_size)
        self._schedule = Schedule(settings.schedule, settings.steps, settings.warmup, settings.decay, per_epoch)
        self._guard = Guard(slack)
        self._engine = make_engine(flow, self._batches, settings, self._guard, self._rate)
        self._stability = None if settings.stability is None else Stability(flow, settings.stability)
        self._best: Weights | None = None
        self._best_score = math.inf
        self._good = self._engine.snapshot()
        self._rate_factor = 1.0
        self._returns = 0
        self._waited = 0
        self._seconds = 0.0
        self._loss_sum, self._loss_count = 0.0, 0
        self.step = 0
        self.best_step = 0
        self.best_nll = math.inf
        self.finished = False

    # ---------------------------------------------------------------- running

    def run(self, save: Callable[[], None], save_every: int | None = None) -> None:
        """Train to the end; ``save`` is called between steps, and decides when to do something.

        It is called at least after every ``save_every`` steps.
        """
        settings = self._settings
        self._flow.train()
        started, rows = time.monotonic() - self._seconds, 0
        begun = time.monotonic()
        if self.step == 0 and not self._history.records and self._validation is not None:
            self._validate(0.0)  # the start may be better than anything that follows
        while self.step < settings.steps and not self.finished:
            brought = self._engine.advance(self.step, self._steps_until_something(save_every))
            rows += brought.rows
            self.step += brought.steps
            self._loss_sum += brought.loss_sum
            self._loss_count += brought.loss_count
            self._seconds = time.monotonic() - started
            if self._guard.lost:
                self._return()
            if self.step % settings.validate_every == 0 or self.step == settings.steps:
                self._validate(rows / max(1e-9, time.monotonic() - begun))
            self._progress.show(self._standing(brought.loss, rows / max(1e-9, time.monotonic() - begun)))
            save()
        self.finished = True

    def _standing(self, loss: float, rows_per_second: float) -> Standing:
        best = self.best_nll if math.isfinite(self.best_nll) else None
        if self._bits is None:
            return Standing(self.step, self._settings.steps, loss, best, rows_per_second)
        # Of the batch's loss this is an estimate: its own Jacobian is not that of the validation images.
        told, best = self._bits(loss), None if best is None else self._bits(best)
        return Standing(self.step, self._settings.steps, told, best, rows_per_second, " bits/dim")

    def _steps_until_something(self, save_every: int | None) -> int:
        """How many steps there are until the next validation, checkpoint, or the end."""
        left = self._settings.steps - self.step
        for period in (self._settings.validate_every, save_every):
            if period is not None:
                left = min(left, period - self.step % period)
        return left

    def _rate(self, step: int) -> float:
        return self._settings.learning_rate * self._rate_factor * self._schedule.share(step)

    # ---------------------------------------------------------------- looking how good it is

    def _validate(self, rows_per_second: float) -> None:
        nll, penalty = self._validation_scores()
        record = {
            "step": self.step,
            "train_nll": self._loss_sum / self._loss_count if self._loss_count else math.nan,
            "val_nll": nll if self._validation is not None else None,
            **({} if self._bits is None else {"val_bits_per_dimension": self._bits(nll)}),
            **({} if self._stability is None or self._validation is None else {"val_penalty": penalty}),
            "learning_rate": self._rate(max(0, self.step - 1)),
            "seconds": round(self._seconds, 3),
            "rows_per_second": round(rows_per_second, 1),
            "skipped": self._guard.skipped,
        }
        self._loss_sum, self._loss_count = 0.0, 0
        self._history.add(record)
        if self._validation is None:
            if self._guard.bad_in_a_row == 0:
                self._good = self._engine.snapshot()
            self.best_step = self.step
            return
        if not math.isfinite(nll):
            self._return()
            return
        improved = nll + penalty < self._best_score
        if improved:
            self.best_nll, self.best_step, self._waited = nll, self.step, 0
            self._best_score = nll + penalty
            self._best = copied(self._weights())
        else:
            self._waited += 1
        if self._guard.bad_in_a_row == 0:
            self._good = self._engine.snapshot()
        self._schedule.validated(improved)
        patience = self._settings.patience
        # A penalty grows to its weight until the last step: who stops before has less.
        self.finished = patience is not None and self._waited >= patience and self._stability is None

    def _validation_scores(self) -> tuple[float, float]:
        """The negative log-likelihood, and the penalty by its full weight, if there is one."""
        if self._validation is None:
            return math.nan, 0.0
        average = self._engine.average
        own = copied(self._flow.state_dict()) if average is not None else None
        if average is not None:
            self._flow.load_state_dict(average)
        self._flow.eval()
        with torch.no_grad():
            sums, count = list[Tensor](), 0
            for batch in self._validation.in_order(_VALIDATION_ROWS):
                log_density = self._flow(batch.context, validate_args=False).log_prob(batch.x)
                sums.append(log_density.double().sum())
                count += len(batch.x)
        penalty = 0.0
        if self._stability is not None:
            few = next(iter(self._validation.in_order(_JUDGED_ROWS)))
            penalty = self._stability.judged(few.x.mT, None if few.context is None else few.context.mT)
        if own is not None:
            self._flow.load_state_dict(own)
        self._flow.train()
        total: float = sum(torch.stack(sums).tolist())
        return -total / count, penalty

    # ---------------------------------------------------------------- when it goes wrong

    def _return(self) -> None:
        """Go back to the last good weights, with a lower learning rate."""
        self._returns += 1
        if self._returns > _MOST_RETURNS:
            raise TrainingError(
                f"the loss diverged {self._returns} times, the last time at step {self.step}: try a learning rate "
                f"below {self._settings.learning_rate * self._rate_factor:.1g}, clip=1.0, "
                + ("less stability, " if self._settings.stability is not None else "")
                + "or look for extreme values in the data"
            )
        self._rate_factor *= _BACK_OFF
        self._engine.restore(self._good)
        self._guard.restart()
        message = (
            f"the loss diverged at step {self.step}: back to the last good weights, "
            f"with {self._rate_factor:.2g} of the learning rate"
        )
        warnings.warn(message, stacklevel=2)
        self._progress.say(message)

    # ---------------------------------------------------------------- what there is in the end

    def _weights(self) -> Weights:
        average = self._engine.average
        return self._flow.state_dict() if average is None else average

    def finish(self) -> None:
        """Give the flow its best weights, for evaluation."""
        weights = self._weights() if self._best is None else self._best
        self._flow.load_state_dict(weights)
        self._flow.eval()
        if not all(bool(t.isfinite().all()) for t in weights.values()):
            raise TrainingError(
                "training ended with weights that are NaN or infinite: try a lower learning rate, or give "
                "validation rows, so that the best weights are kept"
            )

    def close(self) -> None:
        """Leave the flow as any other, whatever became of the run."""
        self._engine.close()

    def state(self, fingerprint: dict[str, Any]) -> Checkpoint:
        """Everything, to be stored."""
        tensors: dict[str, Weights] = {
            "weights": self._flow.state_dict(),
            "optimizer": self._engine.optimizer_state(),
            "good": self._good.weights,
            "good_optimizer": self._good.optimizer,
            "random": {"cpu": torch.get_rng_state()},
        }
        if self._best is not None:
            tensors["best"] = self._best
        if self._engine.average is not None and self._good.average is not None:
            tensors["average"], tensors["good_average"] = self._engine.average, self._good.average
        if torch.cuda.is_available():
            tensors["random"]["cuda"] = torch.cuda.get_rng_state()
        numbers = {
            "fingerprint": fingerprint,
            "step": self.step,
            "best_step": self.best_step,
            "best_nll": self.best_nll if math.isfinite(self.best_nll) else None,
            "best_score": self._best_score if math.isfinite(self._best_score) else None,
            "finished": self.finished,
            "position": list(self._batches.position),
            "rate_factor": self._rate_factor,
            "returns": self._returns,
            "waited": self._waited,
            "seconds": self._seconds,
            "loss": [self._loss_sum, self._loss_count],
            "plateau": [self._schedule.plateau, self._schedule.waited],
            "guard": self._guard.state(),
            "history": self._history.records,
        }
        return Checkpoint(numbers, tensors)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from what :meth:`state` gave."""
        numbers, tensors = checkpoint
        device = next(self._flow.parameters()).device
        self._best = _to(tensors.get("best"), device)
        average, good_average = (_to(tensors.get(name), device) for name in ("average", "good_average"))
        self._good = Snapshot(_to(tensors["good"], device) or {}, tensors.get("good_optimizer", {}), good_average)
        self._engine.restore(Snapshot(tensors["weights"], tensors.get("optimizer", {}), average))
        torch.set_rng_state(tensors["random"]["cpu"])
        if torch.cuda.is_available() and "cuda" in tensors["random"]:
            torch.cuda.set_rng_state(tensors["random"]["cuda"])
        self.step, self.best_step, self.finished = numbers["step"], numbers["best_step"], numbers["finished"]
        self.best_nll = math.inf if numbers["best_nll"] is None else numbers["best_nll"]
        score = numbers.get("best_score", numbers["best_nll"])
        self._best_score = math.inf if score is None else score
        epoch, taken = numbers["position"]
        self._batches.position = (epoch, taken)
        self._rate_factor, self._returns = numbers["rate_factor"], numbers["returns"]
        self._waited, self._seconds = numbers["waited"], numbers["seconds"]
        self._loss_sum, self._loss_count = numbers["loss"]
        self._schedule.plateau, self._schedule.waited = numbers["plateau"]
        self._guard.restore(numbers["guard"])
        self._history.start(numbers["history"])


def _to(state: Weights | None, device: torch.device) -> Weights | None:
    return None if state is None else {name: t.to(device) for name, t in state.items()}
