"""The JSON records that benchmarks write."""

from __future__ import annotations

import json
import math
import subprocess
import time
from pathlib import Path
from typing import Any

from sinuflow.paper.record import hardware, versions


def make_record(command: str, start: float, comparable: str, device: str = "cpu", **entries: Any) -> dict[str, Any]:
    """Measurements with command, revision, seed, hardware, versions and time.

    Args:
        command: that repeats the measurement.
        start: the value of ``time.perf_counter()`` when it began.
        comparable: whether the numbers may stand beside the paper's, and why not.
        device: whose name is the hardware.
        entries: the measurements, and whatever replaces an entry below.
    """
    record = {
        "command": command,
        "revision": revision(Path(__file__).parent),
        "seed": 0,
        "hardware": hardware(device),
        "versions": versions(),
        "seconds": round(time.perf_counter() - start, 1),
        "comparable_with_paper": comparable,
    }
    return record | entries


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a record, and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_finite(record), indent=1) + "\n")


def revision(folder: Path) -> str:
    """The commit of the repository of a folder."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def _finite(value: Any) -> Any:
    """The value with null for what JSON does not have, NaN and infinity."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
