"""Training a flow, as one call."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..data.fingerprint import fingerprint, fingerprint_of_head
from ..data.sources import as_source
from ..errors import ArgumentError, TrainingError
from ..flows.sinusoidal import SinusoidalFlow
from .checkpoint import CheckpointFolder
from .history import History, Record
from .interrupt import Interrupt
from .progress import make_progress
from .schedules import ScheduleName
from .settings import MOST_RECORDS, OptimizerName, Settings
from .stability import Stability
from .trainer import Trainer

#: Rows that data-dependent parameters are initialised from.
_INITIAL_ROWS = 10_000


@dataclass(frozen=True)
class FitResult:
    """A trained flow, and how it came about."""

    flow: SinusoidalFlow
    history: list[Record]
    best_step: int
    best_nll: float | None
    steps: int


def fit(
    flow: SinusoidalFlow,
    train: Any,
    val: Any = None,
    *,
    steps: int = 5000,
    batch_size: int = 512,
    learning_rate: float = 1e-3,
    optimizer: OptimizerName = "adam",
    schedule: ScheduleName = "cosine",
    decay: float | None = None,
    warmup: int | None = None,
    weight_decay: float = 0.0,
    clip: float | None = 5.0,
    ema: float | None = None,
    stability: float | None = None,
    patience: int | None = None,
    validate_every: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_steps: int | None = None,
    checkpoint_minutes: float = 5.0,
    resume: bool = False,
    history: str | os.PathLike[str] | None = None,
    tensorboard: str | os.PathLike[str] | None = None,
    progress: bool = True,
    device: str | torch.device = "auto",
    seed: int = 0,
) -> FitResult:
    """Train a flow by maximum likelihood.

    Args:
        flow: it is trained in place, and left with the best weights, ready for evaluation.
        train: rows, or a pair of rows and context: tensors, arrays or frames of numbers, or an Arrow
            dataset (features first, then context), which is streamed. Columns should be standardised.
        val: rows to watch. With them, the weights that do best on them are returned.
        steps: at most this many.
        batch_size: rows for each step.
        learning_rate: the largest one.
        optimizer: ``"adam"`` or ``"adamw"``.
        schedule: of the learning rate: ``"cosine"``, ``"exponential"``, ``"plateau"`` or ``"constant"``.
        decay: of the exponential schedule, what is left of the learning rate after every epoch, such as 0.99; by
            default it falls to a hundredth over all steps.
        warmup: steps in which the learning rate rises; a twentieth of all, at most 500, by default.
        weight_decay: of the optimiser.
        clip: the largest norm of the likelihood's gradient; None for no limit. What ``stability`` adds is multiplied
            by the same factor, and not limited otherwise.
        ema: the decay of an exponential moving average of the weights, such as 0.999, which is then
            validated and returned instead; None for none.
        stability: of flows of images, the weight of a penalty on shifts whose inverse would magnify errors, such as
            500, to which it grows with the square of the steps: images then come back from noise far more exactly, for
            two to three hundredths of a bit per dimension (of MNIST) and steps that take up to twice as long. None for
            no penalty. All ``steps`` are made then, whatever the ``patience``, and weights are chosen on ``val`` by
            likelihood and penalty together.
        patience: stop after this many validations without a better one; None never stops early.
        validate_every: steps between validations and records; an epoch, within 20 and 500, by default.
        checkpoint: a folder for checkpoints, and for the history.
        checkpoint_steps: steps between checkpoints.
        checkpoint_minutes: minutes between checkpoints.
        resume: go on from the folder's checkpoint, if there is one. On a CPU the weights come out
            bit for bit as if the run had not been interrupted.
        history: a JSONL file; by default ``history.jsonl`` in the checkpoint folder.
        tensorboard: a folder for TensorBoard.
        progress: whether to show it: a bar in a terminal, lines elsewhere.
        device: ``"auto"`` takes a GPU if there is one.
        seed: of the order of the rows, of dropout, and of the penalty's errors.

    A step whose loss is not a number or far above the usual is skipped. If that persists, training
    returns to the last good weights with a lower learning rate; after three times it ends with a
    :class:`~sinuflow.TrainingError`. On SIGINT (Ctrl-C), SIGTERM and SIGHUP a checkpoint is saved between two steps
    before the signal takes effect: Ctrl-C raises KeyboardInterrupt, the others end the process.

    Example:
        >>> import sinuflow
        >>> flow = sinuflow.SinusoidalFlow(features=2, blocks=2, hidden=(16,))
        >>> result = fit(flow, torch.randn(256, 2), torch.randn(64, 2), steps=20, progress=False)
        >>> result.history[-1]["step"]
        20
    """
    place = find_device(device)
    first = next(flow.parameters())
    home, dtype = first.device, first.dtype
    rows = as_source(train, flow.features, flow.context, dtype, "train")
    watched = None if val is None else as_source(val, flow.features, flow.context, dtype, "val")
    per_epoch = max(1, rows.rows // batch_size) if isinstance(batch_size, int) and batch_size > 0 else 1
    settings = Settings(
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        optimizer=optimizer,
        schedule=schedule,
        warmup=min(500, steps // 20) if warmup is None else warmup,
        weight_decay=weight_decay,
        clip=clip,
        ema=ema,
        patience=patience,
        validate_every=_validation_period(steps, per_epoch) if validate_every is None else validate_every,
        seed=seed,
        decay=decay,
        stability=stability,
    )
    if stability is not None:
        Stability(flow, stability)  # refuses flows that it is not for, before anything is changed
    if not checkpoint_minutes >= 0:
        raise ArgumentError(f"checkpoint_minutes must be 0 or more; got {checkpoint_minutes}")
    folder = None if checkpoint is None else CheckpointFolder(Path(checkpoint))
    if folder is not None:
        folder.prepare()
        if folder.exists() and not resume:
            raise TrainingError(
                f"{folder.folder} holds a checkpoint already: go on from it with resume=True, or use another folder"
            )
    record = Path(history) if history is not None else folder.history if folder is not None else None
    log = History(record, None if tensorboard is None else Path(tensorboard))
    described = {**settings.as_dict(), "flow": flow.config, "rows": rows.rows}
    shown = make_progress(progress)
    if folder is not None:  # only checkpoints need the hashes
        described |= {"train": fingerprint(rows, shown.say)}
        described |= {"val": None if watched is None else fingerprint(watched, shown.say)}
    cuda = [torch.cuda.current_device() if place.index is None else place.index] if place.type == "cuda" else []
    current = torch.cuda.device(cuda[0]) if cuda else contextlib.nullcontext()
    locked = contextlib.nullcontext() if folder is None else folder.locked()
    with Interrupt(folder is not None) as interrupt, locked, current, torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        flow.to(place)
        rows, watched = rows.to(place), None if watched is None else watched.to(place)
        going_on = folder is not None and folder.exists()
        if not going_on:
            head = rows.head(_INITIAL_ROWS)
            flow.initialize(head.x, head.context)
        trainer = Trainer(flow, rows, watched, settings, log, shown, slack=float(flow.features))
        if folder is not None and going_on:
            trainer.restore(folder.read(described, lambda: fingerprint_of_head(rows), flow, ema is not None))
            shown.say(f"going on from step {trainer.step}")
        else:
            log.start([])
        saver = _Saver(trainer, folder, described, checkpoint_steps, checkpoint_minutes, interrupt)
        try:
            interrupt.check()
            trainer.run(saver, checkpoint_steps)
            saver.save()
            trainer.finish()
        finally:
            trainer.close()
            shown.close()
            log.close()
    flow.to(home)
    best = trainer.best_nll if watched is not None else None
    return FitResult(flow, log.records, trainer.best_step, best, trainer.step)


def _validation_period(steps: int, per_epoch: int) -> int:
    """Steps between validations: an epoch, within bounds, and few enough validations for a history."""
    fewest = -(-steps // MOST_RECORDS) if isinstance(steps, int) else 1
    return max(fewest, min(500, max(20, per_epoch)))


class _Saver:
    """Saves a checkpoint when it is time, and when a signal asks to stop."""

    def __init__(
        self,
        trainer: Trainer,
        folder: CheckpointFolder | None,
        fingerprint: dict[str, Any],
        steps: int | None,
        minutes: float,
        interrupt: Interrupt,
    ) -> None:
        self._trainer, self._folder, self._fingerprint = trainer, folder, fingerprint
        self._steps, self._seconds, self._interrupt = steps, 60 * minutes, interrupt
        self._saved = time.monotonic()

    def __call__(self) -> None:
        due = self._steps is not None and self._trainer.step % self._steps == 0
        if due or self._interrupt.wanted or time.monotonic() - self._saved >= self._seconds:
            self.save()
        self._interrupt.check()

    def save(self) -> None:
        if self._folder is not None:
            self._folder.save(self._trainer.state(self._fingerprint))
        self._saved = time.monotonic()


def find_device(device: str | torch.device) -> torch.device:
    """The device of a name; "auto" is a GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ArgumentError(f"device must be auto, cpu or cuda; got {device!r}") from error
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("device is cuda, but PyTorch sees no GPU here: use device='cpu' or 'auto'")
    return place
