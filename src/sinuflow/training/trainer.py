"""The training loop."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import TrainingError
from .checkpoint import Checkpoint
from .guard import Guard
from .history import History
from .progress import Progress, Standing
from .schedules import Schedule
from .settings import Settings
from .sources import Batch, RowSource

#: Rows that are scored at a time when validating.
_VALIDATION_ROWS = 4096
#: What is left of the learning rate after going back, and how often that is tried.
_BACK_OFF, _MOST_RETURNS = 0.3, 3

Weights = dict[str, Tensor]


class Trainer:
    """One run: its state, and the steps that change it.

    All of the state can be stored and restored: weights, optimiser, averaged and best weights, the
    last good ones, the position in the data, random state, schedule, guard and history. A step
    depends on nothing else.
    """

    def __init__(
        self,
        flow: nn.Module,
        train: RowSource,
        validation: RowSource | None,
        settings: Settings,
        history: History,
        progress: Progress,
        slack: float,
    ) -> None:
        self._flow, self._train, self._validation, self._settings = flow, train, validation, settings
        self._history, self._progress = history, progress
        self._parameters = list(flow.parameters())
        self._optimizer = _optimizer(self._parameters, settings)
        self._schedule = Schedule(settings.schedule, settings.steps, settings.warmup)
        self._guard = Guard(slack)
        self._average = _copy(flow.state_dict()) if settings.ema else None
        self._best: Weights | None = None
        self._good: dict[str, Any] = self._snapshot()
        self._position = [0, 0]  # epoch, batches taken from it
        self._batches: Iterator[Batch] | None = None
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

    def run(self, save: Callable[[], None]) -> None:
        """Train to the end; ``save`` is called between steps, and decides when to do something."""
        settings = self._settings
        self._flow.train()
        started, rows = time.monotonic() - self._seconds, 0
        begun = time.monotonic()
        if self.step == 0 and not self._history.records and self._validation is not None:
            self._validate(0.0)  # the start may be better than anything that follows
        while self.step < settings.steps and not self.finished:
            batch = self._next_batch()
            loss = self._step(batch)
            rows += len(batch.x)
            self.step += 1
            self._seconds = time.monotonic() - started
            if self.step % settings.validate_every == 0 or self.step == settings.steps:
                self._validate(rows / max(1e-9, time.monotonic() - begun))
            best = self.best_nll if math.isfinite(self.best_nll) else None
            speed = rows / max(1e-9, time.monotonic() - begun)
            self._progress.show(Standing(self.step, settings.steps, loss, best, speed))
            save()
        self.finished = True

    def _step(self, batch: Batch) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate(self.step)
        loss = -self._flow(batch.context, validate_args=False).log_prob(batch.x).mean()
        loss.backward()
        limit = math.inf if self._settings.clip is None else self._settings.clip
        norm = float(nn.utils.clip_grad_norm_(self._parameters, limit))
        value = float(loss.detach())
        if self._guard.good(value, norm):
            self._optimizer.step()
            if self._average is not None:
                self._update_average()
            self._loss_sum += value
            self._loss_count += 1
        elif self._guard.lost:
            self._return()
        self._optimizer.zero_grad()
        return value

    def _rate(self, step: int) -> float:
        return self._settings.learning_rate * self._rate_factor * self._schedule.share(step)

    def _next_batch(self) -> Batch:
        seed, size = self._settings.seed, self._settings.batch_size
        while True:
            epoch, taken = self._position
            if self._batches is None:
                self._batches = self._train.epoch(epoch, size, seed, skip=taken)
            batch = next(self._batches, None)
            if batch is not None:
                self._position = [epoch, taken + 1]
                return batch
            if taken == 0:
                raise TrainingError("the training data have run out: there are no rows in them")
            self._position, self._batches = [epoch + 1, 0], None

    def _update_average(self) -> None:
        assert self._average is not None
        # Early on, the average is over what there is so far.
        decay = min(self._settings.ema or 0.0, (1 + self.step) / (10 + self.step))
        state = self._flow.state_dict()
        names = [name for name, t in state.items() if t.is_floating_point()]
        torch._foreach_lerp_([self._average[n] for n in names], [state[n] for n in names], 1 - decay)

    # ---------------------------------------------------------------- looking how good it is

    def _validate(self, rows_per_second: float) -> None:
        nll = self._validation_nll()
        record = {
            "step": self.step,
            "train_nll": self._loss_sum / self._loss_count if self._loss_count else math.nan,
            "val_nll": nll if self._validation is not None else None,
            "learning_rate": self._rate(max(0, self.step - 1)),
            "seconds": round(self._seconds, 3),
            "rows_per_second": round(rows_per_second, 1),
            "skipped": self._guard.skipped,
        }
        self._loss_sum, self._loss_count = 0.0, 0
        self._history.add(record)
        if self._validation is None:
            if self._guard.bad_in_a_row == 0:
                self._good = self._snapshot()
            self.best_step = self.step
            return
        if not math.isfinite(nll):
            self._return()
            return
        improved = nll < self.best_nll
        if improved:
            self.best_nll, self.best_step, self._waited = nll, self.step, 0
            self._best = _copy(self._weights())
        else:
            self._waited += 1
        if self._guard.bad_in_a_row == 0:
            self._good = self._snapshot()
        self._schedule.validated(improved)
        patience = self._settings.patience
        self.finished = patience is not None and self._waited >= patience

    def _validation_nll(self) -> float:
        if self._validation is None:
            return math.nan
        own = _copy(self._flow.state_dict()) if self._average is not None else None
        if self._average is not None:
            self._flow.load_state_dict(self._average)
        self._flow.eval()
        total, count = 0.0, 0
        with torch.no_grad():
            for batch in self._validation.in_order(_VALIDATION_ROWS):
                log_density = self._flow(batch.context, validate_args=False).log_prob(batch.x)
                total -= float(log_density.double().sum())
                count += len(batch.x)
        if own is not None:
            self._flow.load_state_dict(own)
        self._flow.train()
        return total / count

    # ---------------------------------------------------------------- when it goes wrong

    def _snapshot(self) -> dict[str, Any]:
        return {
            "weights": _copy(self._flow.state_dict()),
            "optimizer": copy.deepcopy(self._optimizer.state_dict()["state"]),
            "average": None if self._average is None else _copy(self._average),
        }

    def _return(self) -> None:
        """Go back to the last good weights, with a lower learning rate."""
        self._returns += 1
        if self._returns > _MOST_RETURNS:
            raise TrainingError(
                f"the loss diverged {self._returns} times, the last time at step {self.step}: try a learning rate "
                f"below {self._settings.learning_rate * self._rate_factor:.1g}, clip=1.0, or look for extreme values "
                "in the data"
            )
        self._rate_factor *= _BACK_OFF
        self._flow.load_state_dict(self._good["weights"])
        self._load_optimizer(self._good["optimizer"])
        self._average = None if self._good["average"] is None else _copy(self._good["average"])
        self._guard.restart()
        message = (
            f"the loss diverged at step {self.step}: back to the last good weights, "
            f"with {self._rate_factor:.2g} of the learning rate"
        )
        warnings.warn(message, stacklevel=2)
        self._progress.say(message)

    def _load_optimizer(self, state: dict[int, dict[str, Tensor]]) -> None:
        whole = self._optimizer.state_dict()
        whole["state"] = copy.deepcopy(state)
        self._optimizer.load_state_dict(whole)

    # ---------------------------------------------------------------- what there is in the end

    def _weights(self) -> Weights:
        return self._flow.state_dict() if self._average is None else self._average

    def finish(self) -> None:
        """Give the flow its best weights, for evaluation."""
        self._flow.load_state_dict(self._weights() if self._best is None else self._best)
        self._flow.eval()

    def state(self, fingerprint: dict[str, Any]) -> Checkpoint:
        """Everything, to be stored."""
        tensors: dict[str, Weights] = {
            "weights": self._flow.state_dict(),
            "optimizer": _flatten(self._optimizer.state_dict()["state"]),
            "good": self._good["weights"],
            "good_optimizer": _flatten(self._good["optimizer"]),
            "random": {"cpu": torch.get_rng_state()},
        }
        if self._best is not None:
            tensors["best"] = self._best
        if self._average is not None:
            tensors["average"], tensors["good_average"] = self._average, self._good["average"]
        if torch.cuda.is_available():
            tensors["random"]["cuda"] = torch.cuda.get_rng_state()
        numbers = {
            "fingerprint": fingerprint,
            "step": self.step,
            "best_step": self.best_step,
            "best_nll": self.best_nll if math.isfinite(self.best_nll) else None,
            "finished": self.finished,
            "position": self._position,
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
        self._flow.load_state_dict(tensors["weights"])
        self._load_optimizer(_unflatten(tensors.get("optimizer", {})))
        device = self._parameters[0].device
        self._best = _to(tensors.get("best"), device)
        self._average = _to(tensors.get("average"), device)
        self._good = {
            "weights": _to(tensors["good"], device),
            "optimizer": _unflatten(tensors.get("good_optimizer", {})),
            "average": _to(tensors.get("good_average"), device),
        }
        torch.set_rng_state(tensors["random"]["cpu"])
        if torch.cuda.is_available() and "cuda" in tensors["random"]:
            torch.cuda.set_rng_state(tensors["random"]["cuda"])
        self.step, self.best_step, self.finished = numbers["step"], numbers["best_step"], numbers["finished"]
        self.best_nll = math.inf if numbers["best_nll"] is None else numbers["best_nll"]
        self._position, self._batches = list(numbers["position"]), None
        self._rate_factor, self._returns = numbers["rate_factor"], numbers["returns"]
        self._waited, self._seconds = numbers["waited"], numbers["seconds"]
        self._loss_sum, self._loss_count = numbers["loss"]
        self._schedule.plateau, self._schedule.waited = numbers["plateau"]
        self._guard.restore(numbers["guard"])
        self._history.start(numbers["history"])


def _optimizer(parameters: list[nn.Parameter], settings: Settings) -> torch.optim.Optimizer:
    kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    return kind(parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True)


def _copy(state: Weights) -> Weights:
    return {name: t.detach().clone() for name, t in state.items()}


def _to(state: Weights | None, device: torch.device) -> Weights | None:
    return None if state is None else {name: t.to(device) for name, t in state.items()}


def _flatten(state: dict[int, dict[str, Tensor]]) -> Weights:
    return {f"{index}/{name}": torch.as_tensor(t) for index, part in state.items() for name, t in part.items()}


def _unflatten(tensors: Weights) -> dict[int, dict[str, Tensor]]:
    state: dict[int, dict[str, Tensor]] = {}
    for key, t in tensors.items():
        index, _, name = key.partition("/")
        state.setdefault(int(index), {})[name] = t
    return state
