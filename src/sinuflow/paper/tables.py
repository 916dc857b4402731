"""Tables of recorded results, in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Entry = dict[str, Any]

_MODELS = {
    "paper": "Sinusoidal Flow, the paper's recipe",
    "today": "Sinusoidal Flow, the paper's architecture",
    "stable": "Sinusoidal Flow, the paper's architecture, with stability",
    "affine": "Sinusoidal Flow, the paper's architecture, affine conditioning",
    "best": "Sinusoidal Flow, our best recipe",
    "maf": "MAF (zuko)",
    "nsf": "NSF (zuko)",
    "independent pixels": "baseline: histogram of every pixel",
}

#: The values of other flows in table "mnist_cifar10" of the paper.
CITED = {
    "FFJORD": ("0.99", "3.40"),
    "i-ResNet": ("1.06", "3.45"),
    "RealNVP": ("1.06", "3.49"),
    "Glow": ("1.05", "3.35"),
    "RQ-NSF(C)": ("", "3.38"),
    "MAF": ("1.89", "4.31"),
    "TAN": ("1.19", "3.98"),
    "SOS": ("1.81", ""),
    "UMNN-MAF": ("1.13", ""),
}

#: Metrics that are shown of items with many.
_SHOWN = {
    "contraction": (
        "Lipschitz constant of G, largest over blocks",
        "iterations of Algorithm 1, mean",
        "iterations of Algorithm 1, largest",
        "iterations of the certified solver, mean",
        "samples wrong after 100 iterations of Algorithm 1, percent",
    ),
    "reconstruction": (
        "l2 error, iterations of Algorithm 1: 10",
        "l2 error, iterations of Algorithm 1: 70",
        "l2 error, iterations of Algorithm 1: 100",
        "l2 error of the certified solver",
        "images that look the same, iterations of Algorithm 1: 70, percent",
        "images that look the same by the certified solver, percent",
        "images that the certified solver certifies, percent",
        "largest error of the certified solver in float32, 10,000 images",
        "largest error of the certified solver in float32, 10,000 images, pixels",
        "largest error of the certified solver in float64, 1,000 images",
    ),
}


def markdown_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(tuple(header)), *lines[1:]])


def _pivot(corner: str, cells: Mapping[tuple[str, str], str]) -> str:
    """A table of cells by the names of their rows and columns, in the order in which these appear."""
    rows, columns = (list(dict.fromkeys(key[i] for key in cells)) for i in range(2))
    return markdown_table([corner, *columns], ([row, *(cells.get((row, c), "") for c in columns)] for row in rows))


def item_table(item: str, entries: list[Entry]) -> str:
    """The table of any item without a table of its own: runs and metrics, the more numerous as rows."""
    shown = [entry for entry in entries if entry["metric"] in _SHOWN.get(item, (entry["metric"],))]
    cells = {(f"{entry['set']}, {entry['model']}", entry["metric"]): _value(entry) for entry in shown}
    if len({run for run, _ in cells}) < len({metric for _, metric in cells}):
        cells = {(metric, run): value for (run, metric), value in cells.items()}
    hardware = " and ".join(sorted({entry["hardware"] for entry in shown}))
    seeds = max(len(entry["seeds"]) for entry in shown)
    return f"{_pivot('', cells)}\n\nHardware: {hardware}." + (f" Seeds: {seeds}." if seeds else "")


def _value(entry: Entry) -> str:
    if entry["value"] is None:
        return "not finite"
    digits = 4 if entry["metric"].endswith("percent") else 3  # shows 99.99 beside 100
    value = f"{entry['value']:,.0f}" if abs(entry["value"]) >= 1000 else f"{entry['value']:.{digits}g}"
    spread = "" if entry["spread"] is None else f" ± {entry['spread']:.2g}"
    paper = "" if entry["paper"] is None else f" (paper: {entry['paper']:g})"
    return f"{value}{spread}{paper}"


def _comparison_table(
    entries: list[Entry], metric: str, error: str, number: Callable[[float], str], error_of: Callable[[Entry], str]
) -> str:
    """The models of each dataset, the best first."""

    def row(entry: Entry) -> list[str]:
        value, spread, seeds = entry["value"], entry["spread"], len(entry["seeds"])
        mean = "not finite" if value is None else number(value)
        around = "" if spread is None else f" ± {number(spread)}"
        paper = "" if entry["paper"] is None else f"{entry['paper']:.2f}"
        training = f"{entry['seconds'] / seeds:,.0f} s, {entry['hardware']}" if seeds else ""
        model = _MODELS.get(entry["model"], entry["model"])
        comparable = entry["comparable"]
        return [entry["set"], model, mean + around, str(seeds or ""), error_of(entry), paper, training, comparable]

    order = list(dict.fromkeys(entry["set"] for entry in entries))
    ranked = sorted(entries, key=lambda e: (order.index(e["set"]), e["value"] is None, e["value"]))
    header = ("dataset", "model", metric, "seeds", error, "paper", "training per seed", "comparable with the paper")
    return markdown_table(header, map(row, ranked))


def tabular_table(entries: list[Entry]) -> str:
    """Test NLL of tabular data."""

    def number(value: float) -> str:
        return f"{value:.3f}" if abs(value) < 1e4 else f"{value:.1e}"

    def standard_error(entry: Entry) -> str:
        return "" if entry["spread"] is None else number(entry["spread"] / len(entry["seeds"]) ** 0.5)

    return (
        "Test NLL in nats, lower is better: mean ± standard deviation over seeds, and the standard error of the mean.\n"
        f"\n{_comparison_table(entries, 'test NLL', 'standard error', number, standard_error)}\n"
    )


def images_table(entries: list[Entry]) -> str:
    """Test bits per dimension of images, and the values that the paper cites."""

    def float32_error(entry: Entry) -> str:
        errors = [error for error in entry.get("float32_error_max", {}).values() if error is not None]
        return f"{max(errors):.0e}" if errors else ""

    ours = _comparison_table(entries, "bits per dimension", "float32 error", "{:.3f}".format, float32_error)
    cited = markdown_table(("", "MNIST", "CIFAR-10"), ([name, *bits] for name, bits in CITED.items()))
    return (
        "Test bits per dimension, lower is better: mean ± standard deviation over seeds. The float32 error is the\n"
        "largest difference from float64 over 500 images.\n"
        f"\n{ours}\n\nFlows that the paper cites:\n\n{cited}\n"
    )


def runtime_table(entries: list[Entry]) -> str:
    """Seconds and errors by iterations and tolerance, for every dataset and task."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry["set"], entry["task"]), []).append(entry)
    return "\n\n".join(_runtimes(*names, group) for names, group in groups.items()) + "\n"


def _runtimes(name: str, task: str, entries: list[Entry]) -> str:
    certified, cells = "", {}
    for entry in entries:
        error = "not finite" if entry["largest_error"] is None else short(entry["largest_error"])
        cell = f"{entry['value']:.2g} ({error})"
        if entry["iterations"] is None:
            certified = cell
        else:
            cells[str(entry["iterations"]), f"Algorithm 1, tolerance {short(entry['tolerance'])}"] = cell
    return (
        f"Seconds to {task} {entry['rows']} images of {name} ({entry['hardware']}), and in brackets the largest error, "
        f"in logits. The flow: {entry['trained']}.\n\n{_pivot('at most this many iterations', cells)}\n\n"
        f"Certified: {certified}."
    )


def short(value: float) -> str:
    """A number with one digit, and a power of ten if it is small or large.

    Example:
        >>> short(0.0001), short(0.23), short(2300.0)
        ('1e-4', '0.2', '2e3')
    """
    if 0.1 <= value < 10:
        return f"{value:.1g}"
    digit, power = f"{value:.0e}".split("e")
    return f"{digit}e{int(power)}"


#: Items with a table of their own.
TABLES = {"tabular": tabular_table, "images": images_table, "runtime": runtime_table}
