"""Summary and notices of a fitted table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..checks import shortened
from ..data.refusals import options
from .calibration import MIN_ROWS

if TYPE_CHECKING:
    from .table import TableModel

#: The maximum number of columns that are described one by one.
_MAX_COLUMNS = 10
#: The maximum number of columns whose options are written out, and of characters of a relation.
_MAX_OPTIONS, _MAX_CHARACTERS = 5, 100


def usage(model: TableModel) -> str:
    """The numbers of rows and columns that are used and not used, on one line."""
    facts, preprocessor = model.facts, model.preprocessor
    rows = f"{facts['used_rows']:,} rows"
    if facts["used_rows"] < facts["rows"]:
        reason = "the others have missing values, and --missing model would use them"
        rows = f"{facts['used_rows']:,} of {facts['rows']:,} rows ({reason})"
    counts = {
        "as context": len(preprocessor.context_columns),
        "restored": len({c.table_column for c in preprocessor.restored}),
        "constant": sum(c.kind == "constant" for c in preprocessor.columns),
        "set aside": len(facts.get("set_aside", {})),
    }
    modelled = len({c.table_column for c in preprocessor.features})
    columns = f"{modelled} column{'' if modelled == 1 else 's'} modelled"
    return ", ".join([rows, columns, *(f"{n} {what}" for what, n in counts.items() if n)])


def restored_and_constant(model: TableModel) -> list[str]:
    """The columns that samples restore, with the relations and values."""
    relations = [_cut(c.describe_relation()) for c in model.preprocessor.restored]
    constants = [f"{c.name} = {shortened(c.categories[0])}" for c in model.preprocessor.columns if c.kind == "constant"]
    lines = {"restored from other columns": relations, "constant": constants}
    return [f"{what}: {'; '.join(_first(parts))}" for what, parts in lines.items() if parts]


def notices(model: TableModel, command: str) -> list[str]:
    """What a user may not expect: columns that are set aside, cells that count as missing, coarse percentiles.

    If training was too short, the advice is ``command`` with further options.
    """
    facts = model.facts
    return [*_set_aside(facts), *_unread(model), *_percentiles(facts), *_training(facts, command)]


def _set_aside(facts: dict[str, Any]) -> list[str]:
    reasons: dict[str, str] = facts.get("set_aside", {})
    keep: dict[str, str] = facts.get("keep", dict.fromkeys(reasons, "auto"))
    lines = [f"column {name!r} is set aside: {reason}" for name, reason in list(reasons.items())[:_MAX_COLUMNS]]
    if len(reasons) > _MAX_COLUMNS:
        lines.append(f"further columns are set aside: {', '.join(_first(list(map(repr, reasons))[_MAX_COLUMNS:]))}")
    if keep:
        which = "it" if len(reasons) == 1 else "them"
        if len(keep) < len(reasons):  # empty columns, for one, cannot be modelled
            which = " and ".join(map(repr, keep)) if len(keep) <= 2 else "some of them"
        if len(keep) > _MAX_OPTIONS and set(keep.values()) == {"auto"}:
            keep = {"COLUMN": "auto"}
        lines.append(f"to model {which}, fit with {options([], keep)}")
    return lines


def _unread(model: TableModel) -> list[str]:
    counts: dict[str, int] = model.facts.get("unread", {})
    texts = {c.table_column: c.unread for c in model.preprocessor.columns}
    lines = []
    for name, count in counts.items():
        cells = "1 cell counts" if count == 1 else f"{count:,} cells count"
        shown = ", ".join(_first([shortened(text) for text in texts.get(name, ())], 3))
        lines.append(f"column {name!r}: {cells} as missing, being neither numbers nor times: {shown}")
    return _first(lines)


def _percentiles(facts: dict[str, Any]) -> list[str]:
    rows = facts.get("calibration_rows", MIN_ROWS)
    if rows >= MIN_ROWS:
        return []
    return [
        f"anomaly percentiles come from {rows} rows, and are steps of {100 / (rows + 1):.1f}: too few to tell "
        "percentile 99 from 98"
    ]


def _training(facts: dict[str, Any], command: str) -> list[str]:
    lines = []
    if "more_steps" in facts:
        lines.append(
            "the validation NLL was still improving: train longer with "
            f"{command} --continue --steps {facts['more_steps']}"
        )
    if facts["best_step"] <= max(facts.get("continued", []), default=-1):
        lines.append("continued training did not lower the validation NLL: the weights are those before it")
    return lines


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]} ..."


def _first(parts: list[str], limit: int = _MAX_COLUMNS) -> list[str]:
    return parts[:limit] + ([f"and {len(parts) - limit:,} more"] if len(parts) > limit else [])
