"""What was found, and how: one JSON file for each item."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..errors import StorageError


@dataclass(frozen=True)
class Figure:
    """A number for one set, by one model; with several seeds, their mean.

    Attributes:
        set: what it was found on.
        metric: what it is, with its unit.
        model: whose it is.
        values: by seed; None for what does not depend on chance.
        paper: the paper's figure, or None.
        rows: that it is a mean over, or None.
        steps: of training, or None.
        seconds: that it took, training included, for all seeds together.
        hardware: that it was trained on; None for where it is written.
        comparable: whether it may stand beside the paper's, and if not, why: "yes" or "no: ...".
        extra: whatever else should be kept.
    """

    set: str
    metric: str
    model: str
    values: dict[int | None, float]
    paper: float | None = None
    rows: int | None = None
    steps: int | None = None
    seconds: float | None = None
    hardware: str | None = None
    comparable: str = "no: the paper gives no figure"
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(self.values.values())

    @property
    def spread(self) -> float | None:
        """The standard deviation between seeds."""
        return statistics.stdev(self.values.values()) if len(self.values) > 1 else None

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from others."""
        return self.set, self.metric, self.model

    def as_dict(self, command: str, hardware: str) -> dict[str, Any]:
        """As it is stored."""
        return {
            "set": self.set,
            "metric": self.metric,
            "model": self.model,
            "value": _finite(self.value),
            "paper": self.paper,
            "rows": self.rows,
            "seeds": [seed for seed in self.values if seed is not None],
            "values": [_finite(value) for value in self.values.values()],
            "spread": None if self.spread is None else _finite(self.spread),
            "steps": self.steps,
            "seconds": None if self.seconds is None else round(self.seconds, 1),
            "hardware": self.hardware or hardware,
            "versions": versions(),
            "command": command,
            "comparable": self.comparable,
            **self.extra,
        }


def write_record(path: Path, figures: list[Figure], command: str, device: str) -> list[dict[str, Any]]:
    """Add figures to a file, in place of those that they are newer than; all that it then holds.

    A figure that was found before with other seeds, and is otherwise the same, gets the new seeds beside them.
    """
    kept = {(f["set"], f["metric"], f["model"]): f for f in read_record(path)}
    for figure in figures:
        new = figure.as_dict(command, hardware(device))
        old = kept.get(figure.key)
        kept[figure.key] = new if old is None else _joined(old, new)
    found = list(kept.values())
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"item": path.stem, "figures": found}, indent=1) + "\n")
    os.replace(part, path)
    return found


def read_record(path: Path) -> list[dict[str, Any]]:
    """The figures of a file, or none if there is no such file."""
    if not path.exists():
        return []
    try:
        return list(json.loads(path.read_text())["figures"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is not a record of results: move it away, or choose another folder") from error


def _joined(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Both, if they differ by their seeds only; the new one if not."""
    same = all(old.get(name) == new.get(name) for name in ("rows", "comparable", "hardware", "size"))
    others = [seed for seed in old["seeds"] if seed not in new["seeds"]]
    if not same or not others or not new["seeds"]:
        return new
    values = dict(zip(old["seeds"], old["values"], strict=True)) | dict(zip(new["seeds"], new["values"], strict=True))
    seeds = sorted(values)
    numbers = [values[seed] for seed in seeds]
    by_seed = {
        name: part | new[name] for name, part in old.items() if isinstance(part, dict) and name not in ("versions",)
    }
    again = len(others) < len(old["seeds"])
    return (
        new
        | by_seed
        | {
            "seeds": seeds,
            "values": numbers,
            "value": statistics.fmean(numbers),
            "spread": statistics.stdev(numbers),
            "steps": max(old["steps"] or 0, new["steps"] or 0) or None,
            "seconds": new["seconds"] if again else round((old["seconds"] or 0) + (new["seconds"] or 0), 1),
        }
    )


def _finite(value: float) -> float | None:
    """JSON has no infinities."""
    return value if math.isfinite(value) else None


def versions() -> dict[str, str]:
    """Of what takes part."""
    return {"sinuflow": __version__, "torch": torch.__version__, "python": platform.python_version()}


def hardware(device: str) -> str:
    """What it ran on, in words."""
    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name())
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' if threads > 1 else ''}"
