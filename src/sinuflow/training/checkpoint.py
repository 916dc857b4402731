"""Checkpoints: the complete state of a run on disk."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..checks import anything, fields, flag, integer, items, number, optional, shortened
from ..errors import StorageError, TrainingError
from ..files import locked
from ..flows.storage import Model, grouped, read_model, write_model
from .history import RECORD
from .parts import parts_of

_KIND = "checkpoint"
#: The hashes in a fingerprint, and what differs if they do.
_DATA = {"train": "other data", "val": "other validation data", "start": "another starting model"}


class Checkpoint(NamedTuple):
    """The state of a run: ``numbers`` for JSON, and tensors by group and name."""

    numbers: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]


class CheckpointFolder:
    """The folder of a run's checkpoint and history.

    A new checkpoint replaces the old one atomically, so that one of them is complete whenever the process is killed.
    ``steps`` and ``minutes`` are the periods of checkpoints.
    """

    def __init__(self, folder: Path, steps: int | None = None, minutes: float = math.inf) -> None:
        self.folder = folder
        self.file = folder / "checkpoint.safetensors"
        self.history = folder / "history.jsonl"
        self._steps, self._seconds, self._saved = steps, 60 * minutes, time.monotonic()

    def prepare(self, resume: bool) -> None:
        """Create the folder; a checkpoint in it is an error unless the run resumes."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot use {self.folder} for checkpoints: {error.strerror or error}") from error
        if self.exists() and not resume:
            raise TrainingError(f"{self.folder} holds a checkpoint: continue with resume=True, or use another folder")

    def locked(self) -> AbstractContextManager[None]:
        """Lock the folder against other processes."""
        return locked(self.folder / ".lock", self.folder)

    def exists(self) -> bool:
        return self.file.exists()

    def due(self, step: int) -> bool:
        return (self._steps is not None and step % self._steps == 0) or time.monotonic() - self._saved >= self._seconds

    def save(self, checkpoint: Checkpoint) -> None:
        tensors = {f"{group}/{name}": t for group, part in checkpoint.tensors.items() for name, t in part.items()}
        write_model(self.file, Model(_KIND, checkpoint.numbers, tensors))
        self._saved = time.monotonic()

    def read(self, fingerprint: Mapping[str, Any], head: Callable[[], str], flow: nn.Module, ema: bool) -> Checkpoint:
        """The checkpoint, if its run had the same settings and data, and its tensors fit the flow.

        The ``fingerprint`` has the settings of the run and the hashes of its data. Checkpoints of version 0.1.0 have
        only that of the first rows, which ``head`` computes.
        """
        model = read_model(self.file)
        if model.kind != _KIND:
            raise StorageError(f"{self.file} is not a checkpoint but a {model.kind[:60]}")
        state, groups = model.config, grouped(model.tensors)
        try:
            _STATE(state, "checkpoint")
            self._compare(state["fingerprint"], fingerprint, head)
            if state["step"] > fingerprint["steps"] or state["best_step"] > state["step"]:
                raise ValueError(f"step {state['step']} is not in a run of {fingerprint['steps']} steps")
            scored, kept = state["best_nll"] is not None, "best" in groups
            # Weights of parts that have had their steps are kept without a score.
            if scored != kept and not (kept and "part_steps" in fingerprint):
                raise ValueError("it must have both the best weights and their score, or neither")
            count = len(parts_of(flow))
            if any(len(of_parts) != count for of_parts in state.get("parts", {}).values()) or (
                count > 1 and "parts" not in state
            ):
                raise ValueError(f"it must have the scores of {count} parts of the flow")
            _check_tensors(groups, flow, ema)
        except (ValueError, RuntimeError) as error:
            raise StorageError(f"{self.file} is not a checkpoint of this run: {error}") from error
        return Checkpoint(state, groups)

    def _compare(self, stored: Mapping[str, Any], fingerprint: Mapping[str, Any], head: Callable[[], str]) -> None:
        if "data" in stored and not stored.keys() & _DATA.keys():  # of version 0.1.0
            fingerprint = {name: value for name, value in fingerprint.items() if name not in _DATA} | {"data": head()}
        different = {k for k in fingerprint.keys() | stored.keys() if fingerprint.get(k) != stored.get(k)}
        for name, what in {**_DATA, "data": "other data"}.items():
            if name in different:
                raise TrainingError(f"{self.folder} holds a run with {what}: use another folder to start over")
        if different:
            # A seed explains another flow, but not the other way round.
            name = min(different, key=lambda k: (isinstance(fingerprint.get(k), Mapping), k))
            place, before, now = _first_difference(name, stored.get(name), fingerprint.get(name))
            raise TrainingError(
                f"{self.folder} holds a run with other settings ({place[:100]} was {shortened(before, 300)}, "
                f"now {shortened(now, 300)}): use the same settings to resume, or another folder to start over"
            )


def _first_difference(place: str, before: Any, now: Any) -> tuple[str, Any, Any]:
    """The place and the values of the first difference of two nested mappings."""
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return place, before, now
    name = min(k for k in before.keys() | now.keys() if before.get(k) != now.get(k))
    return _first_difference(f"{place}.{name}", before.get(name), now.get(name))


def _check_tensors(groups: Mapping[str, dict[str, Tensor]], flow: nn.Module, ema: bool) -> None:
    """Refuse tensors whose names, shapes or dtypes are not those of this flow: optimizers do not check them."""
    required = {"weights", "good", "random"} | ({"average", "good_average"} if ema else set())
    allowed = required | {"best", "optimizer", "good_optimizer"}
    for group in sorted(required ^ groups.keys()):
        if group not in allowed & groups.keys():
            raise ValueError(f"it has {'no' if group in required else 'unexpected tensors'} {group[:60]!r}")
    for group in sorted((required | {"best"}) & groups.keys() - {"random"}):
        _demand_equal(group, _types(groups[group]), _types(flow.state_dict()))
    for group in ("best", "good", "good_average"):
        if not all(bool(t.isfinite().all()) for t in groups.get(group, {}).values()):
            raise ValueError(f"some of its weights in {group!r} are not finite")
    for group in ("optimizer", "good_optimizer"):
        moments = groups.get(group, {})
        expected: dict[str, Any] = {}
        for i, p in enumerate(flow.parameters()):
            own = _types({f"{i}/exp_avg": p, f"{i}/exp_avg_sq": p}) | {f"{i}/step": (torch.Size(), torch.float32)}
            if own.keys() & moments.keys():  # a parameter that never had a gradient has no moments
                expected |= own
        _demand_equal(group, _types(moments), expected)
        if not all(0 <= float(t) < math.inf for name, t in moments.items() if name.endswith("/step")):
            raise ValueError(f"the steps of {group} are not valid counts")
    if set(groups["random"]) - {"cuda"} != {"cpu"}:
        raise ValueError("it lacks the states of the random number generators")
    for device, random in groups["random"].items():
        if random.dtype != torch.uint8 or random.dim() != 1:
            raise ValueError(f"the state of the random number generator of {device} is invalid")
        if device == "cpu" or torch.cuda.is_available():
            torch.Generator(device).set_state(random)  # raises a RuntimeError if it is invalid


def _types(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: (t.shape, t.dtype) for name, t in tensors.items()}


def _demand_equal(group: str, actual: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    different = [name for name in actual.keys() | expected.keys() if actual.get(name) != expected.get(name)]
    if different:
        raise ValueError(f"{len(different)} tensors in {group!r} do not fit the flow, such as {min(different)[:200]!r}")


_PARTS = fields(
    {"scores": items(optional(number()), least=1), **dict.fromkeys(("steps", "waited"), items(integer(), least=1))}
)
#: The schema of a checkpoint's configuration.
_STATE = fields(
    {
        **dict.fromkeys(("step", "best_step", "returns", "waited"), integer()),
        "fingerprint": fields({}, others=anything),
        "best_nll": optional(number()),
        "finished": flag,
        "position": items(integer(), length=2),
        "rate_factor": number(above=0),
        "seconds": number(low=0),
        "loss": items(number(), length=2),
        "plateau": items(number(low=0), length=2),
        "guard": fields(
            {
                **dict.fromkeys(("seen", "bad_in_a_row", "skipped"), integer()),
                "mean": number(),
                "deviation": number(low=0),
            }
        ),
        "history": items(RECORD),
    },
    {"best_score": optional(number()), "parts": _PARTS},
)
