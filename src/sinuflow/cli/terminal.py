"""Printing to the terminal."""

from __future__ import annotations

import typer

from ..printable import printable


def echo(line: str, err: bool = False) -> None:
    """Print one line, with control characters, which may come from files, as escapes."""
    typer.echo(printable(line), err=err)
