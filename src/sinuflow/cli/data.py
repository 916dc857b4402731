"""``sinuflow data``: list and prepare benchmark datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..data.datasets import BENCHMARKS, PREPROCESSED, Dataset
from ..data.image_sets import IMAGE_SETS
from ..data.originals import in_words, prepare, sizes_in_words
from ..data.toys import TOYS
from ..errors import DataError
from .files import Force
from .terminal import echo

app = typer.Typer(help="Benchmark datasets, images and toy densities.", no_args_is_help=True)


@app.command("list")
def list_datasets(data: Annotated[Path | None, typer.Option(help="The folder of the datasets.")] = None) -> None:
    """List the datasets: size, source, licence, and whether they are present in a folder."""
    if data is not None and not data.is_dir():
        raise DataError(
            f"there is no folder {data}: `sinuflow data prepare NAME --from ORIGINAL --to {data}` creates it"
        )
    for dataset in (*BENCHMARKS.values(), *IMAGE_SETS.values()):
        sizes = f"{sizes_in_words(dataset.sizes)} {dataset.examples}"
        echo(f"{dataset.name}: {dataset.description}; {in_words(dataset.shape)}, {sizes}")
        echo(f"  source: {dataset.source}")
        echo(f"  licence: {dataset.licence}")
        echo(f"  comparable with published results: {dataset.comparable}")
        echo(f"  present: {_presence(dataset, data)}")
    echo(f"The authors' own files of the first five: {PREPROCESSED}")
    for toy in TOYS.values():
        known = "with" if toy.log_prob else "without"
        echo(f"{toy.name}: a toy density, {known} its log-density; {toy.features} columns, any number of rows")
        echo("  source: sampled by Sinuflow; licence: MIT, as Sinuflow's; present: always")


@app.command("prepare")
def prepare_dataset(
    name: Annotated[str, typer.Argument(help="A dataset of `sinuflow data list`.")],
    original: Annotated[Path, typer.Option("--from", help="The published file, or its folder.")],
    to: Annotated[Path, typer.Option("--to", help="The folder of the datasets.")],
    force: Force = False,
) -> None:
    """Prepare a dataset from its published files: train.npy, val.npy and test.npy in the folder TO/NAME."""
    prepare(name, original, to, force=force, progress=echo)


def _presence(dataset: Dataset, data: Path | None) -> str:
    if data is None:
        return "unknown: pass the folder with --data"
    try:
        sizes = dataset.count(data)
    except DataError as error:
        return f"damaged: {error}"
    if sizes is None:
        return "no"
    return "yes" if sizes == dataset.sizes else f"yes, with {sizes_in_words(sizes)} {dataset.examples}"
