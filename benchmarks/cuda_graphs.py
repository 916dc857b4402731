"""Jobs captured as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch


def captured(job: Callable[[], object]) -> Callable[[], object]:
    """The replay of a job, captured as a CUDA graph, which needs the job's tensors."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            job()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        job()

    def replay(job: Callable[[], object] = job) -> None:
        graph.replay()

    return replay
