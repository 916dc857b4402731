"""Print the packages that one ``log_prob`` and one ``sample`` pass through.

    SINUFLOW_KERNELS=reference python docs/explanation/trace_calls.py [architecture.md]

With a file, its block of calls is replaced. A line is a call from one package of ``sinuflow`` into another, indented by
its depth; repeated calls are left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import sinuflow
from sinuflow.solvers import Inversion, Root, SolverOptions, Step

#: Plain data, whose methods are left out, and checks of arguments and results.
OMITTED = {cls.__name__ for cls in (Inversion, Root, SolverOptions, Step)} | {"choice", "demand_shape"}


def trace(call: Callable[[], object]) -> list[str]:
    """The lines for one call."""
    lines: list[str] = []
    seen: set[tuple[str, ...]] = set()
    stack: list[tuple[str, ...]] = []  # for each active function of sinuflow: the calls between packages above it

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        package = package_of(frame)
        if package is None or event not in ("call", "return"):
            return
        if event == "return":
            stack.pop()
            return
        above = stack[-1] if stack else ()
        if above and above[-1].split()[0] == package:
            stack.append(above)
            return
        name = name_of(frame)
        if name.startswith("<") or name.split(".")[0] in OMITTED:  # such as <listcomp>
            stack.append(above)
            return
        here = (*above, f"{package:<13} {name}")
        if here not in seen:
            seen.add(here)
            lines.append("  " * len(above) + here[-1])
        stack.append(here)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return lines


def package_of(frame: FrameType) -> str | None:
    """The package below ``sinuflow`` that a function belongs to."""
    name = frame.f_globals.get("__name__", "")
    return name.split(".")[1] if name.startswith("sinuflow.") else None


def name_of(frame: FrameType) -> str:
    """The name of a function, with its class if it is a method; of a decorator's wrapper, that of its method."""
    method = frame.f_locals.get("method")
    if callable(method):
        return str(method.__qualname__)
    owner = frame.f_locals.get("self", frame.f_locals.get("cls"))
    if owner is None:
        return frame.f_code.co_name
    return f"{(owner if isinstance(owner, type) else type(owner)).__name__}.{frame.f_code.co_name}"


def main() -> None:
    """Trace a flow of two autoregressive layers."""
    flow = sinuflow.SinusoidalFlow(features=2, conditioning="full", blocks=2, hidden=(16,))
    x = torch.randn(5, 2)
    calls = {"flow().log_prob(x)": lambda: flow().log_prob(x), "flow().sample((5,))": lambda: flow().sample((5,))}
    blocks = []
    with torch.no_grad():
        for title, call in calls.items():
            call()  # imports modules that are imported at the first use
            blocks.append("\n".join([title, *("  " + line for line in trace(call))]))
    text = "\n\n".join(blocks) + "\n"
    for path in map(Path, sys.argv[1:]):
        page = path.read_text(encoding="utf-8")
        path.write_text(re.sub(r"(?s)(?<=```\n)flow\(\)\.log_prob.*?(?=```)", text, page), encoding="utf-8")
    print(text, end="")  # noqa: T201


if __name__ == "__main__":
    main()
