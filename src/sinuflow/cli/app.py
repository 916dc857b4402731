"""The commands of ``sinuflow``."""

from __future__ import annotations

import typer

from .. import __version__
from . import data, fit, info, report, reproduce, sample, score
from .terminal import echo

app = typer.Typer(
    name="sinuflow",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _module in (fit, score, sample, report, info, reproduce):
    app.command(_module.__name__.rpartition(".")[2])(_module.command)
app.add_typer(data.app, name="data")


def _version(show: bool) -> None:
    if show:
        echo(f"sinuflow {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", help="Show the version.", callback=_version, is_eager=True),
) -> None:
    """Density estimation with normalizing flows: fit a table or images, score, sample and report.

    Every command takes --debug, which shows the traceback of an error.
    """
