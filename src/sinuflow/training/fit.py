"""Train a flow with one call."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..checks import whole, whole_numbers
from ..data.sources import as_source, fingerprint, fingerprint_of_head, hash_tensors
from ..errors import ArgumentError, StorageError
from ..flows.flow import Flow
from ..flows.storage import check_separate
from .checkpoint import CheckpointFolder
from .history import History, Record
from .interrupt import Interrupt
from .parts import parts_of
from .progress import make_progress
from .schedules import ScheduleName
from .settings import MOST_RECORDS, OptimizerName, Settings
from .stability import Stability
from .trainer import Trainer

#: The number of rows from which data-dependent parameters are initialized.
_INITIALIZATION_ROWS = 10_000
#: The default number of steps.
_STEPS = 5000


@dataclass(frozen=True)
class FitResult:
    """Result of :func:`sinuflow.fit`."""

    flow: Flow  # trained
    history: list[Record]  # a record of each validation
    best_step: int  # the step of the returned weights
    best_nll: float | None  # their mean negative log-likelihood on the validation rows, if there are any
    steps: int  # the number of steps taken
    stopped_early: bool  # whether the patience was exhausted before the steps or the time ran out
    part_steps: list[int]  # the step of the returned weights, for each part of the flow


def fit(
    flow: Flow,
    train: Any,
    val: Any = None,
    *,
    steps: int | None = None,
    minutes: float | None = None,
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
    initialize: bool = True,
    part_steps: Sequence[int] | None = None,
) -> FitResult:
    """Train a flow by maximum likelihood.

    Args:
        flow: trained in place. It ends with the best weights, in evaluation mode.
        train: rows, or a pair of rows and context: tensors, arrays or frames of numbers, or an Arrow
            dataset (features first, then context), which is streamed. Columns should be standardized.
        val: validation rows. With them, the weights with the best validation score are returned.
        steps: the maximum number of steps; by default 5000, or with ``minutes`` as many as there is time for.
        minutes: the maximum training time, including that before an interruption. The learning rate depends on the
            larger of the elapsed fractions of steps and of time, so that it is annealed at either limit. None for no
            limit, so that the result does not depend on the machine's speed.
        batch_size: rows per step.
        learning_rate: the largest learning rate.
        optimizer: ``"adam"`` or ``"adamw"``.
        schedule: of the learning rate: ``"cosine"``, ``"exponential"``, ``"plateau"`` or ``"constant"``.
        decay: of the exponential schedule, the factor per epoch, such as 0.99; by default the learning rate falls to a
            hundredth over all steps.
        warmup: steps of linear warm-up; by default a twentieth of all steps, at most 500. It takes a twentieth of
            ``minutes`` at most.
        weight_decay: of the optimizer.
        clip: the maximum norm of the likelihood's gradient; None for no limit. The gradient of the ``stability``
            penalty is multiplied by the same factor.
        ema: the decay of an exponential moving average of the weights, such as 0.999, which is then
            validated and returned instead; None for none.
        stability: of image flows, the weight of a penalty on shifts whose inverse amplifies errors, such as 500, which
            it reaches quadratically at the last step. It reduces reconstruction errors by orders of magnitude, for two
            to three hundredths of a bit per dimension (on MNIST) and steps that take up to twice as long. All ``steps``
            are then taken, whatever the ``patience``, and the best weights minimize likelihood loss plus penalty on
            ``val``. None for no penalty.
        patience: stop after this many validations without improvement; None never stops early.
        validate_every: steps between validations; an epoch by default, but at least 20 and at most 500.
        checkpoint: a folder for checkpoints and the history.
        checkpoint_steps: steps between checkpoints.
        checkpoint_minutes: minutes between checkpoints.
        resume: continue from the folder's checkpoint, if there is one. On a CPU the final weights are bitwise those of
            a run without interruption.
        history: a JSONL file; by default ``history.jsonl`` in the checkpoint folder.
        tensorboard: a folder for TensorBoard.
        progress: whether to show progress, as a bar in a terminal and as lines elsewhere.
        device: ``"auto"`` takes a GPU if there is one.
        seed: determines the order of the rows, dropout, and the stability penalty.
        initialize: whether to initialize data-dependent parameters from the first rows. Use False to train a trained
            flow further; its initial weights are returned if no later ones are better on ``val``.
        part_steps: of a :class:`~sinuflow.flows.mixed.MixedFlow`, the step at which the training of each part ends;
            without ``val``, the part's weights at that step are returned.

    A step is skipped if its loss is not finite or an outlier. If that persists, training restarts from the last good
    weights with a lower learning rate; after three restarts it raises a :class:`~sinuflow.TrainingError`. On SIGINT
    (Ctrl-C), SIGTERM and SIGHUP a checkpoint is saved between two steps before the signal takes effect: Ctrl-C raises
    KeyboardInterrupt, the others end the process.

    Example:
        >>> import sinuflow
        >>> flow = sinuflow.SinusoidalFlow(features=2, blocks=2, hidden=(16,))
        >>> result = fit(flow, torch.randn(256, 2), torch.randn(64, 2), steps=20, progress=False)
        >>> result.history[-1]["step"]
        20
    """
    target = find_device(device)
    first = next(flow.parameters(), None)
    if first is None:
        raise ArgumentError("the flow has no parameters to train")
    original, dtype = first.device, first.dtype
    rows = as_source(train, flow.features, flow.context, dtype, "train")
    val_rows = None if val is None else as_source(val, flow.features, flow.context, dtype, "val")
    unlimited = steps is None and minutes is not None
    steps = _STEPS if steps is None else steps
    if validate_every is None:
        per_epoch = max(1, rows.rows // batch_size) if isinstance(batch_size, int) and batch_size > 0 else 1
        least = -(-steps // MOST_RECORDS) if isinstance(steps, int) else 1
        validate_every = max(least, min(500, max(20, per_epoch)))
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
        validate_every=validate_every,
        seed=seed,
        decay=decay,
        stability=stability,
        minutes=minutes,
    )
    if unlimited:
        settings = replace(settings, steps=MOST_RECORDS * settings.validate_every)
    if part_steps is not None:
        part_steps = _steps_of_parts(part_steps, len(parts_of(flow)))
    if checkpoint is not None:
        check_separate(checkpoint, flow.state_dict())
    try:
        if isinstance(flow, Flow):  # and not one of zuko's
            flow.check_storable("the trained flow")
    except StorageError as error:
        warnings.warn(str(error), stacklevel=2)
    if stability is not None:
        Stability(flow, stability)  # raises before anything is changed if it does not fit the flow
    if checkpoint_steps is not None:
        checkpoint_steps = whole("checkpoint_steps", checkpoint_steps, least=1)
    if not checkpoint_minutes >= 0:
        raise ArgumentError(f"checkpoint_minutes must be 0 or more; got {checkpoint_minutes}")
    folder = None if checkpoint is None else CheckpointFolder(Path(checkpoint), checkpoint_steps, checkpoint_minutes)
    if folder is not None:
        folder.prepare(resume)
    records = Path(history) if history is not None else None if folder is None else folder.history
    log = History(records, None if tensorboard is None else Path(tensorboard))
    display = make_progress(progress)
    identity: dict[str, Any] = {}
    if folder is not None:  # it is stored in checkpoints only
        sources = {"train": rows, "val": val_rows}
        hashes = {k: None if source is None else fingerprint(source, display.say) for k, source in sources.items()}
        identity = {**asdict(settings), "flow": flow.config, "rows": rows.rows, **hashes}
        identity |= {} if initialize else {"start": hash_tensors(flow.state_dict().values())}
        identity |= {} if part_steps is None else {"part_steps": part_steps}
    cuda = [torch.cuda.current_device() if target.index is None else target.index] if target.type == "cuda" else []
    cuda_device = torch.cuda.device(cuda[0]) if cuda else contextlib.nullcontext()
    lock = contextlib.nullcontext() if folder is None else folder.locked()
    with Interrupt(folder is not None) as interrupt, lock, cuda_device, torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        flow.to(target)
        rows, val_rows = rows.to(target), None if val_rows is None else val_rows.to(target)
        resumed = folder is not None and folder.exists()
        if initialize and not resumed:
            flow.initialize(*rows.head(_INITIALIZATION_ROWS))
        trainer = Trainer(flow, rows, val_rows, settings, log, display, part_steps)
        if folder is not None and resumed:
            trainer.restore(folder.read(identity, lambda: fingerprint_of_head(rows), flow, ema is not None))
            display.say(f"resuming at step {trainer.step}")
        else:
            log.start([])

        def after_step() -> None:
            if folder is not None and (interrupt.received or folder.due(trainer.step)):
                folder.save(trainer.state(identity))
            interrupt.check()

        try:
            interrupt.check()
            trainer.run(after_step, checkpoint_steps)
            if folder is not None:
                folder.save(trainer.state(identity))
            trainer.finish()
        finally:
            trainer.close()
            display.close()
            log.close()
    flow.to(original)
    best_nll = None if val is None else trainer.best_nll
    stopped_early = not trainer.out_of_budget
    return FitResult(flow, log.records, trainer.best_step, best_nll, trainer.step, stopped_early, trainer.parts.steps)


def _steps_of_parts(part_steps: Any, count: int) -> list[int]:
    """``part_steps`` as a list with one entry for each part, or an error."""
    steps = list(whole_numbers("part_steps", part_steps, 0))
    if len(steps) != count:
        raise ArgumentError(f"part_steps must have one entry for each of the flow's {count} parts; got {len(steps)}")
    return steps


def find_device(device: str | torch.device) -> torch.device:
    """The device of a name; ``"auto"`` is a GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        result = torch.device(device)
    except RuntimeError as error:
        raise ArgumentError(f"device must be auto, cpu or cuda; got {device!r}") from error
    if result.type == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("device is cuda, but PyTorch sees no GPU here: use device='cpu' or 'auto'")
    return result
