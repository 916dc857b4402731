"""A training run that can be interrupted and resumed."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import typer

from ..errors import StorageError
from ..models.fitted import FittedModel
from ..signals import shielded
from ..training.checkpoint import CheckpointFolder
from .signals import Stopped
from .terminal import echo


class Run:
    """The training run of a model; its folder of checkpoints is removed once the model is written."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.folder = output.with_name(output.name + ".run")
        self.checkpoints = CheckpointFolder(self.folder)
        self.finished = False

    def finish(self, model: FittedModel) -> None:
        """Write the model and remove the folder; a signal takes effect before both or after both."""
        with shielded():
            model.save(self.output)
            self.finished = True
            with suppress(OSError, StorageError):
                self.remove()

    def remove(self) -> None:
        """Remove the folder, unless another process is using it."""
        with shielded(), self.checkpoints.locked():
            shutil.rmtree(self.folder)


@contextmanager
def resumable_run(output: Path, resume: bool, force: bool) -> Iterator[Run]:
    """A run that keeps its checkpoints when interrupted, prints how to resume, and exits with the signal's code.

    Checkpoints of an earlier run are removed only with ``force``.
    """
    run = Run(output)
    if resume and not run.checkpoints.exists():
        echo(f"there is no checkpoint in {run.folder}: training starts at step 0", err=True)
    elif not resume and run.folder.exists():
        if not force:
            raise StorageError(
                f"{run.folder} holds an interrupted run of this model: resume with --resume, or start over with --force"
            )
        run.remove()
    try:
        yield run
    except (Stopped, KeyboardInterrupt) as stop:
        remains = " before the training began"
        if run.finished:
            remains = f"; the model is written: {output}"
        elif run.checkpoints.exists():
            remains = f"; the run is saved in {run.folder}. Resume it with the same command and --resume."
        with suppress(OSError):  # the terminal may be closed
            echo(f"interrupted{remains}", err=True)
        raise typer.Exit(128 + (stop.number if isinstance(stop, Stopped) else signal.SIGINT)) from None
    finally:
        if not run.checkpoints.exists():
            with suppress(OSError, StorageError):
                run.remove()
