"""A training that can be interrupted, and gone on with."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from ..errors import StorageError


def checkpoint_folder(output: Path) -> Path:
    """Where a run is kept until its model is written."""
    return output.with_name(output.name + ".run")


@contextmanager
def kept_run(output: Path, resume: bool, force: bool) -> Iterator[Path]:
    """The folder for the checkpoints of a model's training, which is gone when all is done.

    An older run is not lost without being asked for; an interrupt says how to go on.
    """
    run = checkpoint_folder(output)
    if run.exists() and not resume:
        if not force:
            raise StorageError(
                f"{run} holds an interrupted run of this model: go on with --resume, or start anew with --force"
            )
        shutil.rmtree(run)
    try:
        yield run
    except KeyboardInterrupt:
        if (run / "checkpoint.safetensors").exists():
            typer.echo(f"\ninterrupted; the run is safe in {run}. Go on with the same command and --resume.", err=True)
        else:
            shutil.rmtree(run, ignore_errors=True)
            typer.echo("\ninterrupted before the training began", err=True)
        raise typer.Exit(130) from None
    except Exception:
        # A run that never came to a checkpoint leaves nothing behind.
        if run.is_dir() and not (run / "checkpoint.safetensors").exists():
            shutil.rmtree(run, ignore_errors=True)
        raise
    shutil.rmtree(run, ignore_errors=True)
