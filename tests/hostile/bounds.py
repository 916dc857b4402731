"""How much memory and time a piece of code takes."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MEBIBYTE = 1 << 20


@dataclass
class Cost:
    """Seconds, and peak memory in bytes beyond that at the start."""

    seconds: float = 0.0
    peak: int = 0


@contextlib.contextmanager
def measured() -> Iterator[Cost]:
    """Measure the cost of a block; the peak is 0 on systems that do not report it."""
    cost = Cost()
    collecting = gc.isenabled()
    gc.disable()  # garbage of earlier tests, freed in between, would hide what is allocated
    known = _reset_peak()
    before, start = _status("VmHWM"), time.process_time()
    try:
        yield cost
    finally:
        cost.seconds = time.process_time() - start
        cost.peak = max(0, _status("VmHWM") - before) if known else 0
        if collecting:
            gc.enable()


def demand_bounds(cost: Cost, size: int) -> None:
    """Loading takes at most twice a file's size plus 64 MiB, and 5 s per 10 MiB."""
    assert cost.peak <= 2 * size + 64 * MEBIBYTE, f"{cost.peak / MEBIBYTE:.0f} MiB for a file of {size:,} bytes"
    assert cost.seconds <= 5 * max(1.0, size / (10 * MEBIBYTE)), f"{cost.seconds:.1f} s for a file of {size:,} bytes"


def costs_of(load: Callable[[Path], object], path: Path, expected: type[Exception]) -> bool:
    """Whether a file loads; it must be refused with this error and no other, and within bounds in any case."""
    with measured() as cost:
        try:
            load(path)
            loaded = True
        except expected:
            loaded = False
    demand_bounds(cost, path.stat().st_size)
    return loaded


def _reset_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status(name: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
