"""Printing to the terminal, which all commands do through :func:`echo`."""

from __future__ import annotations

import typer

from ..printable import printable


def echo(line: str, err: bool = False) -> None:
    """Print one line; control characters in it, which may come from files, are shown as escapes."""
    typer.echo(printable(line), err=err)
