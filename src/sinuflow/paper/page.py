"""One page with all results beside the paper's: ``python -m sinuflow.paper.page FOLDER`` writes FOLDER/README.md."""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path

from ..files import write_atomically
from .items import ITEMS, Item
from .recipes import read_toml
from .record import read_record
from .tables import TABLES, Entry, item_table


def page(folder: Path) -> str:
    """The page, in Markdown."""
    notes = read_toml(resources.files(__package__) / "notes.toml")
    records = {name: read_record(folder / f"{name}.json") for name in ITEMS}
    missing = [name for name, entries in records.items() if not entries]
    begin = (
        "The figures and tables of *Sinusoidal Flow: A Fast Invertible Autoregressive Flow* (Wei, ACML 2021), as "
        "`sinuflow reproduce` produces them. Each has a record with the command, seeds, hardware, versions and time."
    )
    parts = ["# Reproducing the paper", begin + (f" Still to be run: {', '.join(missing)}." if missing else "")]
    for item in ITEMS.values():
        if records[item.name]:
            parts += [*_section(item, records[item.name], folder), notes[item.name].strip()]
    return "\n\n".join(parts) + "\n"


def _section(item: Item, entries: list[Entry], folder: Path) -> list[str]:
    parts = [f"## {item.name}", f"{item.paper}: {item.shows}. [Record]({item.name}.json)."]
    figures = [name for name in (f"{item.name}.png", f"{item.name}.svg") if (folder / name).exists()]
    parts += [f"![{item.shows}]({name})" for name in figures]
    for path in sorted(folder.glob(f"{item.name}-*.png")):  # of other models or datasets
        which = path.stem.removeprefix(f"{item.name}-")
        parts += [f"For `{which}`:", f"![{item.shows}: {which}]({path.name})"]
    parts.append(TABLES[item.name](entries).strip() if item.name in TABLES else item_table(item.name, entries))
    return parts


if __name__ == "__main__":
    target = Path(sys.argv[1])
    write_atomically(target / "README.md", page(target).encode())
