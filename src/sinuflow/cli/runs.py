"""A training run that can be interrupted and resumed."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import typer

from ..errors import StorageError
from ..models.image import ImageModel
from ..models.table import TableModel
from ..signals import shielded
from ..training.checkpoint import CheckpointFolder
from .signals import Stopped
from .terminal import echo

Model = TableModel | ImageModel


def resumable_run(output: Path, resume: bool, force: bool, train: Callable[[Path], Model]) -> Model:
    """Train a model with checkpoints in a folder beside the output, write the model, and remove the folder.

    When interrupted, the run keeps its checkpoints, prints how to resume, and exits with the signal's code. Checkpoints
    of an earlier run are removed only with ``force``.
    """
    folder, finished = output.with_name(output.name + ".run"), False
    checkpoints = CheckpointFolder(folder)

    def remove() -> None:
        """Remove the folder, unless another process is using it."""
        with shielded(), checkpoints.locked():
            shutil.rmtree(folder)

    if resume and not checkpoints.exists():
        echo(f"there is no checkpoint in {folder}: training starts at step 0", err=True)
    elif not resume and folder.exists():
        if not force:
            raise StorageError(
                f"{folder} holds an interrupted run of this model: resume with --resume, or start over with --force"
            )
        remove()
    try:
        model = train(folder)
        with shielded():  # a signal takes effect before both or after both
            model.save(output)
            finished = True
            with suppress(OSError, StorageError):
                remove()
        return model
    except (Stopped, KeyboardInterrupt) as stop:
        remains = " before the training began"
        if finished:
            remains = f"; the model is written: {output}"
        elif checkpoints.exists():
            remains = f"; the run is saved in {folder}. Resume it with the same command and --resume."
        with suppress(OSError):  # the terminal may be closed
            echo(f"interrupted{remains}", err=True)
        raise typer.Exit(128 + (stop.number if isinstance(stop, Stopped) else signal.SIGINT)) from None
    finally:
        if not checkpoints.exists():
            with suppress(OSError, StorageError):
                remove()
