"""Peak memory of tensors on the CPU, by PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def peak_of(work: Callable[[], object]) -> int:
    """The largest number of bytes that ``work`` allocates at once."""
    work()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=False) as recorded:
        work()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns())
    current = peak = 0
    for event in events:
        current += event.nbytes()
        peak = max(peak, current)
    return peak
