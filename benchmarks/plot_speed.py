"""Plot docs/results/speed.json: time by rows, features and blocks.

python plot_speed.py SPEED_JSON FIGURE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
from matplotlib import pyplot as plt

NAMES = {"power": "shift, 12 blocks, hidden 256-256", "full": "full, 6 layers, hidden 512, residual"}
COLOURS = {"power": "#2a6f97", "full": "#c8553d"}


def main() -> None:
    """Write the figure."""
    source, target = map(Path, sys.argv[1:3])
    growth = json.loads(source.read_text())["results"]["growth"]
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    titles = {"rows": "rows, one call", "features": "features, 512 rows", "blocks": "blocks, 512 rows"}
    for axis, (by, title) in zip(axes, titles.items(), strict=True):
        for flow in dict.fromkeys(entry["flow"] for entry in growth if entry["by"] == by):
            points = [(entry["value"], entry["ms"]) for entry in growth if (entry["flow"], entry["by"]) == (flow, by)]
            axis.plot(*zip(*points, strict=True), "o-", color=COLOURS[flow], label=NAMES[flow], markersize=4)
        axis.set(xlabel=title)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
        if by == "rows":
            axis.set(xscale="log", yscale="log", ylabel="log_prob, ms")
            axis.legend(frameon=False, fontsize=8)
        else:
            axis.set_ylim(bottom=0)
    figure.savefig(target, dpi=140)


if __name__ == "__main__":
    main()
