"""All commands under one name."""

from __future__ import annotations

import typer

from .. import __version__
from . import data, fit, info, report, reproduce, sample, score
from .terminal import echo

app = typer.Typer(
    name="sinuflow",
    help="Learn the density of a table or of images, score them, and draw new ones.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("fit")(fit.command)
app.command("score")(score.command)
app.command("sample")(sample.command)
app.command("report")(report.command)
app.command("info")(info.command)
app.command("reproduce")(reproduce.command)
app.add_typer(data.app, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        echo(f"sinuflow {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", help="Show the version.", callback=_version, is_eager=True),
) -> None:
    """Learn the density of a table or of images, score them, and draw new ones.

    Every command takes --debug, which shows a traceback when something goes wrong.
    """
