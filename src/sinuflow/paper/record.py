"""What was found, and how: one JSON file for each item."""

from __future__ import annotations

import contextlib
import json
import math
import platform
import statistics
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..errors import StorageError
from ..files import write_atomically


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
        extra: whatever else should be kept. ``size`` and ``recipe`` tell runs apart; a dictionary is by seed.
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
    def key(self) -> tuple[str, str, str]:
        """What tells it from others."""
        return self.set, self.metric, self.model

    def as_dict(self, command: str, hardware: str) -> dict[str, Any]:
        """As it is stored."""
        seeds = [seed for seed in self.values if seed is not None]
        found = {
            "set": self.set,
            "metric": self.metric,
            "model": self.model,
            "value": None,
            "paper": self.paper,
            "rows": self.rows,
            "seeds": seeds,
            "values": list(self.values.values()),
            "spread": None,
            "steps": self.steps,
            "seconds": self.seconds,
            "hardware": self.hardware or hardware,
            "versions": versions(),
            "command": command,
            "comparable": self.comparable,
            **self.extra,
        }
        if seeds and self.seconds is not None:
            found["seconds_by_seed"] = {str(seed): self.seconds / len(seeds) for seed in seeds}
        return _summed_up(found)


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
    text = json.dumps({"item": path.stem, "figures": found}, indent=1, allow_nan=False) + "\n"
    write_atomically(path, text.encode())
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
    same = all(old.get(name) == new.get(name) for name in ("rows", "comparable", "hardware", "size", "recipe"))
    others = [seed for seed in old["seeds"] if seed not in new["seeds"]]
    if not same or not others or not new["seeds"]:
        return new
    values = dict(zip(old["seeds"], old["values"], strict=True)) | dict(zip(new["seeds"], new["values"], strict=True))
    by_seed = {
        name: {**part, **new.get(name, {})}
        for name, part in old.items()
        if isinstance(part, dict) and isinstance(new.get(name, {}), dict) and name != "versions"
    }
    seeds = sorted(values)
    steps = max(old["steps"] or 0, new["steps"] or 0) or None
    return _summed_up(new | by_seed | {"seeds": seeds, "values": [values[s] for s in seeds], "steps": steps})


def _summed_up(figure: dict[str, Any]) -> dict[str, Any]:
    """With the mean and the standard deviation over seeds, the time of all, and nothing that JSON cannot hold."""
    clean: dict[str, Any] = _finite(figure)
    numbers = [value for value in clean["values"] if value is not None]
    whole = len(numbers) == len(clean["values"])
    clean["value"] = statistics.fmean(numbers) if whole else None
    clean["spread"] = statistics.stdev(numbers) if whole and len(numbers) > 1 else None
    if "seconds_by_seed" in clean:
        clean["seconds"] = sum(clean["seconds_by_seed"].values())
    if clean["seconds"] is not None:
        clean["seconds"] = round(clean["seconds"], 1)
    return clean


def _finite(value: Any) -> Any:
    """JSON has no infinities."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def versions() -> dict[str, str]:
    """Of what takes part."""
    found = {"sinuflow": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "zuko"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
    return found


def hardware(device: str) -> str:
    """What it ran on, in words."""
    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    threads = torch.get_num_threads()
    return f"{_processor()}, {threads} thread{'s' if threads > 1 else ''}"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "CPU"
