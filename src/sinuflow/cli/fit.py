"""``sinuflow fit``: fit a flow to a table or to images."""

from __future__ import annotations

import shlex
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..data.columns import Bounds
from ..data.image_files import holds_pictures
from ..errors import ArgumentError, DataError, StorageError
from ..models.image import ImageModel
from ..models.image_fitting import fit_images
from ..models.summary import restored_and_constant, usage
from ..models.table import TableModel
from ..models.table_fitting import fit_table
from ..report.wording import training
from ..signals import shielded
from ..training.checkpoint import CheckpointFolder
from .files import Force, claim_output
from .info import reconstruction, validation
from .inputs import Sql, input_path, open_input
from .report import write_report
from .signals import Stopped
from .terminal import echo

Missing = Literal["model", "drop", "refuse"]
Model = TableModel | ImageModel


def command(
    ctx: typer.Context,
    data: Annotated[str, typer.Argument(help="A table: CSV (also .gz, .zst), Parquet, … or - for stdin; or images.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model file to write.")],
    sql: Sql = None,
    context: Annotated[list[str] | None, typer.Option(help="A column to condition on; may be repeated.")] = None,
    drop: Annotated[list[str] | None, typer.Option(help="A column to leave out; may be repeated.")] = None,
    missing: Annotated[
        Missing, typer.Option(help="Missing values: model them, or drop or refuse such rows.")
    ] = "model",
    map_: Annotated[
        list[str] | None,
        typer.Option(
            "--map", metavar="COL=MAP", help="auto, linear, log, logit or category for a column; may be repeated."
        ),
    ] = None,
    bounds: Annotated[
        list[str] | None,
        typer.Option(metavar="COL=LOW:HIGH", help="Values that a column can have, such as share=0:1 or price=0:."),
    ] = None,
    conditioning: Annotated[
        Literal["full", "affine", "shift"] | None,
        typer.Option(help="Conditional parameters: shift (the paper), full (tables), affine (images: and log-scales)."),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="The maximum number of training steps.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="The maximum minutes of training; by default, of as many steps as fit in.")
    ] = None,
    continue_: Annotated[
        bool, typer.Option("--continue", help="Train the finished model in the output file further, on its table.")
    ] = False,
    labels: Annotated[Path | None, typer.Option(help="Images: a .npy file with their classes, from 0.")] = None,
    size: Annotated[
        Literal["auto", "small", "paper"], typer.Option(help="Images: a small flow, or the paper's, which needs a GPU.")
    ] = "auto",
    stability: Annotated[
        float | None,
        typer.Option(help="Images: the weight of a penalty, such as 500, for an accurate inverse; slower."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the split, the weights and the row order.")] = 0,
    checkpoint_minutes: Annotated[float, typer.Option(min=0, help="Minutes between checkpoints.")] = 5.0,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")] = False,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to train.")] = "auto",
    report: Annotated[Path | None, typer.Option(help="Also write an HTML report.")] = None,
    force: Force = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Fit a flow to a table or to images, and write a model file.

    Images are a .npy file of bytes with shape (N, C, H, W), or (N, H, W) for greyscale, or a folder of PNG files, with
    one subfolder for each class.
    """
    inputs = [input_path(data, sql), labels]
    if continue_ and not output.exists():
        raise StorageError(f"there is no model {output} to continue: fit one without --continue")
    claim_output(ctx, output, force or continue_, inputs)
    if report is not None:
        claim_output(ctx, report, force, [*inputs, output], (".html", ".htm"))
    source = open_input(ctx, data, sql)
    images = isinstance(source, Path) and holds_pictures(source)
    if isinstance(source, Path) and not images and source.is_dir() and not any(source.rglob("*.parquet")):
        raise DataError(f"{data} is a folder with neither .parquet files nor PNG pictures")
    refused: dict[str, object]
    if images:
        refused = {"--context": context, "--drop": drop, "--map": map_, "--bounds": bounds, "--report": report}
        refused |= {"--missing": missing != "model", "--conditioning full": conditioning == "full"}
        refused["--continue"] = continue_
    else:
        refused = {"--labels": labels, "--size": size != "auto", "--stability": stability is not None}
        refused |= {"--conditioning affine": conditioning == "affine"}
    for option in filter(refused.get, refused):
        holds = ("tables", "images") if images else ("images", "a table")
        raise DataError(f"{option} is for {holds[0]}, and {data} holds {holds[1]}")

    chosen: dict[str, object] = {"--context": context, "--drop": drop, "--map": map_, "--missing": missing != "model"}
    chosen |= {"--bounds": bounds, "--conditioning": conditioning, "--seed": seed}
    for option in filter(chosen.get, chosen if continue_ else ()):
        raise ArgumentError(f"{option} is for a new model: leave it out, because --continue takes it from {output}")

    def train(folder: Path) -> Model:
        options: dict[str, Any] = {"steps": steps, "minutes": minutes, "device": device, "progress": not quiet}
        options |= {"checkpoint": folder, "checkpoint_minutes": checkpoint_minutes, "resume": resume}
        if images:
            penalty = None if stability is None else {"stability": stability}
            options |= {"labels": labels, "size": size, "seed": seed, "training": penalty}
            return fit_images(source, conditioning=conditioning, **options)  # type: ignore[arg-type]
        if continue_:
            return fit_table(source, start=output, **options)
        options |= {"context": context, "drop": drop, "missing": missing, "maps": _maps(map_ or []), "seed": seed}
        options["bounds"] = _bounds(bounds or [])
        return fit_table(source, conditioning=conditioning or "full", **options)

    model = _resumable_run(output, resume, force, train)
    query = [] if sql is None else ["--sql", sql]
    _print_summary(model, shlex.join(["sinuflow", "fit", data, *query, "-o", str(output)]))
    echo(f"model: {output}")
    if report is not None and isinstance(model, TableModel):
        write_report(model, source, report)


def _resumable_run(output: Path, resume: bool, force: bool, train: Callable[[Path], Model]) -> Model:
    """Train a model with checkpoints in a folder beside the output, write the model, and remove the folder.

    When interrupted, the run keeps its checkpoints, prints how to resume, and exits with the signal's code. Checkpoints
    of an earlier run are removed only with ``force``.
    """
    folder, finished = output.with_name(output.name + ".run"), False
    checkpoints = CheckpointFolder(folder)

    def remove() -> None:
        with shielded(), checkpoints.locked():  # fails if another process is using the folder
            shutil.rmtree(folder)

    if resume and not checkpoints.exists():
        echo(f"there is no checkpoint in {folder}: training starts at step 0", err=True)
    elif not resume and folder.exists():
        if not force:
            raise StorageError(f"{folder} holds an interrupted run: resume with --resume, or start over with --force")
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


def _maps(assignments: list[str]) -> dict[str, str]:
    maps = {}
    for assignment in assignments:
        name, equals, kind = assignment.rpartition("=")
        if not equals:
            raise DataError(f"--map takes COLUMN=MAP, such as --map income=log; got {assignment!r}")
        maps[name] = kind
    return maps


def _bounds(assignments: list[str]) -> dict[str, Bounds]:
    bounds: dict[str, Bounds] = {}
    for assignment in assignments:
        name, equals, limits = assignment.rpartition("=")
        low, colon, high = limits.partition(":")
        try:
            bounds[name] = float(low) if low else None, float(high) if high else None
        except ValueError:
            colon = ""
        if not (equals and colon and (low or high)):
            raise DataError(f"--bounds takes COLUMN=LOW:HIGH, such as --bounds share=0:1; got {assignment!r}")
    return bounds


def _print_summary(model: Model, command: str) -> None:
    """Say what was trained; ``command`` is the one that trains it further."""
    facts = model.facts
    if isinstance(model, TableModel):
        echo(f"{facts['table']}: {usage(model)}; trained {training(facts)}")
        for line in [*restored_and_constant(model), *model.notices_for(command)]:
            echo(line)
    else:
        count = facts["train_images"] + facts["validation_images"]
        echo(f"{facts['images']}: {count:,} images of {model.describe()}; trained {training(facts)}")
        echo(validation(facts))
        if "more_steps" in facts:
            echo(f"the validation NLL was still improving: train for more steps, such as --steps {facts['more_steps']}")
        if facts["bits_per_dimension"] > facts["histogram_bits"]:
            echo(
                "the model is worse than the baseline: train for more steps (--steps); a continuous density cannot fit "
                "images that use few of the 256 shades"
            )
        echo(reconstruction(facts))
