"""Records of results: one JSON file for each item, with the settings behind every value."""

from __future__ import annotations

import contextlib
import json
import platform
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..errors import StorageError
from ..files import write_atomically
from ..training.history import finite


@dataclass(frozen=True)
class Result:
    """A metric of one model on one dataset."""

    dataset: str
    metric: str  # its name and unit
    model: str
    values: dict[int | None, float]  # by seed, which is None for a result without randomness
    paper: float | None = None  # the paper's value
    rows: int | None = None  # the number of examples that it is a mean over
    steps: int | None = None  # of training
    seconds: float | None = None  # for all seeds together, training included
    hardware: str | None = None  # of the training; None for the machine that writes the record
    comparable: str = "no: the paper gives no number"  # with the paper's value: "yes" or "no", and a qualification
    extra: dict[str, Any] = field(default_factory=dict)  # ``size`` and ``recipe`` tell runs apart, dicts are by seed

    @property
    def value(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(self.values.values())

    @property
    def key(self) -> tuple[str, str, str]:
        """Identifies the entry in a record."""
        return self.dataset, self.metric, self.model

    def to_json(self, command: str, device: str) -> dict[str, Any]:
        """The entry of the record."""
        seeds = [seed for seed in self.values if seed is not None]
        by_seed = {} if self.seconds is None else {str(seed): self.seconds / len(seeds) for seed in seeds}
        entry = {
            "set": self.dataset,
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
            "hardware": self.hardware or hardware(device),
            "versions": versions(),
            "command": command,
            "comparable": self.comparable,
            **self.extra,
        }
        return _summarize(entry | ({"seconds_by_seed": by_seed} if by_seed else {}))


def results(metrics: Mapping[str, float], dataset: str, model: str, seed: int | None, **common: Any) -> list[Result]:
    """One result for each metric of the same run; ``common`` are further fields of :class:`Result`."""
    return [Result(dataset, metric, model, {seed: value}, **common) for metric, value in metrics.items()]


def percent(condition: torch.Tensor) -> float:
    """The share of elements that are true, in percent."""
    return 100 * float(condition.double().mean())


def write_record(path: Path, new: list[Result], command: str, device: str) -> list[dict[str, Any]]:
    """Add results to a record, merged with or instead of earlier ones with the same key, and return all entries."""
    entries = {(entry["set"], entry["metric"], entry["model"]): entry for entry in read_record(path)}
    for result in new:
        entry, earlier = result.to_json(command, device), entries.get(result.key)
        entries[result.key] = entry if earlier is None else _merge(earlier, entry)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"item": path.stem, "figures": list(entries.values())}
    write_atomically(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
    return content["figures"]  # type: ignore[return-value]


def read_record(path: Path) -> list[dict[str, Any]]:
    """The entries of a record; none if the file does not exist."""
    if not path.exists():
        return []
    try:
        return list(json.loads(path.read_text())["figures"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is not a record of results: move it away, or choose another folder") from error


def _merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Both entries in one if they differ in their seeds only, else the new one."""
    same = all(old.get(name) == new.get(name) for name in ("rows", "comparable", "hardware", "size", "recipe"))
    if not same or not new["seeds"] or set(old["seeds"]) <= set(new["seeds"]):
        return new
    values = dict(zip(old["seeds"], old["values"], strict=True)) | dict(zip(new["seeds"], new["values"], strict=True))
    by_seed = {
        name: {**part, **new.get(name, {})}
        for name, part in old.items()
        if isinstance(part, dict) and isinstance(new.get(name, {}), dict) and name != "versions"
    }
    seeds = sorted(values)
    steps = max(old["steps"] or 0, new["steps"] or 0) or None
    return _summarize(new | by_seed | {"seeds": seeds, "values": [values[s] for s in seeds], "steps": steps})


def _summarize(entry: dict[str, Any]) -> dict[str, Any]:
    """Fill in mean, standard deviation and total time over seeds; non-finite values become None, as JSON needs."""
    entry = finite(entry)
    values = entry["values"]
    complete = None not in values
    entry["value"] = statistics.fmean(values) if complete else None
    entry["spread"] = statistics.stdev(values) if complete and len(values) > 1 else None
    if "seconds_by_seed" in entry:
        entry["seconds"] = sum(entry["seconds_by_seed"].values())
    if entry["seconds"] is not None:
        entry["seconds"] = round(entry["seconds"], 1)
    return entry


def versions() -> dict[str, str]:
    """Versions of Sinuflow, Python and the libraries in use."""
    known = {"sinuflow": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "zuko"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            known[name] = metadata.version(name)
    if torch.version.cuda is not None:
        known["cuda"] = torch.version.cuda
    return known


def hardware(device: str) -> str:
    """The name of the GPU, or of the processor with the number of threads."""
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
