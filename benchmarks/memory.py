"""Peak memory of a piece of work on the CPU, as PyTorch's own allocator sees it."""

from __future__ import annotations

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def peak_of(work: Callable[[], object]) -> int:
    """The most bytes of tensors that ``work`` held at once, beyond what was there before it began."""
    work()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=False) as recorded:
        work()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns())
    now = peak = 0
    for event in events:
        now += event.nbytes()
        peak = max(peak, now)
    return peak
