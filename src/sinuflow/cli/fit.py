"""``sinuflow fit``: learn the density of a table, or of images."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from ..data.image_files import holds_pictures
from ..errors import DataError
from ..models.image import ImageModel
from ..models.image_fitting import fit_images
from ..models.table import TableModel
from ..models.table_fitting import fit_table
from .files import claim_output
from .info import reconstruction
from .runs import kept_run
from .terminal import echo


class Conditioning(str, enum.Enum):
    """Kinds of flow."""

    full = "full"
    affine = "affine"
    shift = "shift"


class Missing(str, enum.Enum):
    """What to do with rows that have missing values."""

    refuse = "refuse"
    drop = "drop"


class Size(str, enum.Enum):
    """Sizes of flows of images."""

    auto = "auto"
    small = "small"
    paper = "paper"


class Device(str, enum.Enum):
    """Where to train."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


def command(
    ctx: typer.Context,
    data: Annotated[
        Path, typer.Argument(help="CSV, Parquet (a file or a folder of files), .npy, or a folder of PNGs.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model file to write.")],
    context: Annotated[list[str] | None, typer.Option(help="A column to condition on; may be repeated.")] = None,
    drop: Annotated[list[str] | None, typer.Option(help="A column to leave out; may be repeated.")] = None,
    missing: Annotated[Missing, typer.Option(help="Rows with missing values.")] = Missing.refuse,
    map_: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="COL=MAP", help="linear, log, logit or category for a column; may be repeated."),
    ] = None,
    conditioning: Annotated[
        Conditioning | None,
        typer.Option(
            help="What networks compute: shift (the paper), full (tables: all waves), affine (images: scales too)."
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="The most training steps.")] = None,
    labels: Annotated[Path | None, typer.Option(help="Of images: a .npy with the class of each, from 0.")] = None,
    size: Annotated[Size, typer.Option(help="Of images: a small flow, or the paper's, which wants a GPU.")] = Size.auto,
    stability: Annotated[
        float | None,
        typer.Option(help="Of images: a penalty, such as 500, so that they come back from noise exactly; slower."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the split, the weights and the row order.")] = 0,
    checkpoint_minutes: Annotated[float, typer.Option(min=0, help="Minutes between checkpoints.")] = 5.0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was interrupted.")] = False,
    device: Annotated[Device, typer.Option(help="Where to train.")] = Device.auto,
    report: Annotated[Path | None, typer.Option(help="Also write an HTML report.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing outputs.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Learn the density of a table or of images, and write it to a model file.

    Images are a .npy of bytes with shape (N, C, H, W), or (N, H, W) for greyscale, or a folder of PNG files, in
    subfolders if they have classes.
    """
    claim_output(ctx, output, force, [data, labels])
    if report is not None:
        claim_output(ctx, report, force, [data, labels, output], (".html", ".htm"))
    if _are_pictures(data):
        of_tables = {
            "--context": context,
            "--drop": drop,
            "--map": map_,
            "--report": report,
            "--missing": missing is not Missing.refuse,
            "--conditioning full": conditioning is Conditioning.full,
        }
        _refuse(of_tables, "tables", f"{data} holds images")
        paper = conditioning is Conditioning.shift
        with kept_run(output, resume, force) as run:
            pictures = fit_images(
                data,
                labels=labels,
                size=size.value,
                conditioning=None if conditioning is None else ("shift" if paper else "affine"),
                steps=steps,
                seed=seed,
                device=device.value,
                checkpoint=run.folder,
                checkpoint_minutes=checkpoint_minutes,
                resume=resume,
                progress=not quiet,
                training=None if stability is None else {"stability": stability},
            )
            run.finish(pictures)
        _summarise_images(pictures, output)
        return
    of_images = {
        "--labels": labels,
        "--size": size is not Size.auto,
        "--stability": stability is not None,
        "--conditioning affine": conditioning is Conditioning.affine,
    }
    _refuse(of_images, "images", f"{data} holds a table")
    with kept_run(output, resume, force) as run:
        model = fit_table(
            data,
            context=context,
            drop=drop,
            missing=missing.value,
            maps=_maps(map_ or []),
            conditioning="full" if conditioning is None else conditioning.value,
            steps=steps,
            seed=seed,
            device=device.value,
            checkpoint=run.folder,
            checkpoint_minutes=checkpoint_minutes,
            resume=resume,
            progress=not quiet,
        )
        run.finish(model)
    _summarise(model, output)
    if report is not None:
        from .report import write_report

        write_report(model, data, report)


def _are_pictures(data: Path) -> bool:
    if holds_pictures(data):
        return True
    if data.is_dir() and not any(data.rglob("*.parquet")):
        raise DataError(f"{data} is a folder with neither .parquet files nor PNG pictures")
    return False


def _refuse(options: Mapping[str, object], of: str, found: str) -> None:
    """Refuse options that say nothing about this kind of data."""
    given = [name for name, value in options.items() if value]
    if given:
        raise DataError(f"{given[0]} is for {of}, and {found}")


def _maps(wishes: list[str]) -> dict[str, str]:
    maps = {}
    for wish in wishes:
        name, found, kind = wish.rpartition("=")
        if not found:
            raise DataError(f"--map takes COLUMN=MAP, such as --map income=log; got {wish!r}")
        maps[name] = kind
    return maps


def _summarise(model: TableModel, output: Path) -> None:
    facts = model.facts
    echo(
        f"{facts['table']}: {facts['used_rows']:,} rows, {len(model.preprocessor.features)} columns modelled"
        + (f", {len(model.preprocessor.context_columns)} given" if model.preprocessor.context_columns else "")
        + f"; trained {facts['steps']:,} steps in {facts['seconds']:.0f} s, the best at step {facts['best_step']:,}"
    )
    echo(f"model: {output}")


def _summarise_images(model: ImageModel, output: Path) -> None:
    facts = model.facts
    echo(
        f"{facts['images']}: {facts['train_images'] + facts['validation_images']:,} images of {model.describe()}; "
        f"trained {facts['steps']:,} steps in {facts['seconds']:.0f} s, the best at step {facts['best_step']:,}"
    )
    echo(
        f"held-out images take {facts['bits_per_dimension']:.3f} bits per dimension "
        f"({facts['histogram_bits']:.3f} if every pixel were by itself)"
    )
    if facts["bits_per_dimension"] > facts["histogram_bits"]:
        echo(
            "that is more than without looking at other pixels: train for more steps (--steps); but if the images have "
            "few of the 256 shades, a smooth density cannot know which"
        )
    echo(reconstruction(facts))
    echo(f"model: {output}")
