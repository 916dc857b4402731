"""The blocked masked network on a CPU beside its reference, whose products include the masked weights.

    python masked_networks.py --json ../docs/results/masked_networks.json

Ratios of processor times on one thread, medians over interleaved rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from unittest.mock import patch

import torch

import sinuflow
from core import scoring, training_step
from looks_trained import look_trained
from records import make_record, write
from sinuflow.ops import masked_mlp

ROWS, SIZES = 512, ((6, 256), (63, 512))


def ratios(rounds: int) -> dict[str, float]:
    """The ratio of times of every call of flows with two hidden layers."""
    result = {}
    for features, width in SIZES:
        x = torch.randn(ROWS, features)
        for kind in ("shift", "full"):
            torch.manual_seed(0)
            flow = look_trained(
                sinuflow.SinusoidalFlow(features, conditioning=kind, hidden=(width, width))  # type: ignore[arg-type]
            )
            flow.initialize(x)
            for name, job in (("log_prob", scoring(flow, x)), ("training step", training_step(flow, x))):
                times: dict[bool, list[float]] = {True: [], False: []}
                for fused in [True, False] * (rounds + 1):
                    with patch.object(masked_mlp, "fused_allowed", lambda fused=fused: fused):
                        start = time.process_time()
                        job()
                        times[fused].append(time.process_time() - start)
                pairs = list(zip(times[False], times[True], strict=True))[1:]  # the first round warms up
                result[f"D={features}, hidden {width}-{width}, {kind}: {name}"] = statistics.median(
                    reference / blocked for reference, blocked in pairs
                )
    return result


def main() -> None:
    """Measure, print a table, and write a record if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    measured = ratios(arguments.rounds)
    print("| call | reference / blocked |\n|---|---|")
    for name, ratio in measured.items():
        print(f"| {name} | {ratio:.2f} |")
    if arguments.json:
        entries = {"rows": ROWS, "ratios": measured}
        command = "python benchmarks/masked_networks.py"
        write(arguments.json, make_record(command, start, "no: the paper has no such table", **entries))


if __name__ == "__main__":
    main()
