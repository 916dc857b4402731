"""``sinuflow info``: what is in a model file, and where it could run."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import __version__
from ..data.labels import listed
from ..errors import ArgumentError
from ..flows.flow import Flow
from ..models.image import ImageModel
from ..models.loading import load
from ..models.table import TableModel
from ..ops.select import cpp_backend, cuda_backend, triton_backend
from ..report.wording import at_most
from .terminal import echo


def command(
    model: Annotated[Path | None, typer.Argument(help="A model file.")] = None,
    devices: Annotated[bool, typer.Option("--devices", help="Show what this machine can train on.")] = False,
) -> None:
    """Say what is in a model file, or what this machine can train on."""
    if model is None and not devices:
        raise ArgumentError("name a model file, or ask for --devices")
    if devices:
        _show_devices()
    if model is not None:
        _show_model(model)


def _show_devices() -> None:
    import torch

    echo(f"sinuflow {__version__}, Python {platform.python_version()}, torch {torch.__version__}")
    cpu = cpp_backend()
    echo(f"cpu: {torch.get_num_threads()} threads")
    echo(f"  float32: {cpu.reason}" if cpu.available else f"  float32: plain PyTorch, because {cpu.reason}")
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        echo(f"cuda:{i}: {properties.name}, {properties.total_memory / 2**30:.0f} GiB")
        device = torch.device("cuda", i)
        whole, single = cuda_backend(device), triton_backend(device)
        echo(f"  float32 flows: {whole.reason}" if whole.available else f"  float32: by layers, because {whole.reason}")
        echo(
            f"  by layers: {single.reason}"
            if single.available
            else f"  by layers: plain PyTorch, because {single.reason}"
        )
    if not torch.cuda.is_available():
        built = "was built without support for any" if torch.version.cuda is None else "finds none"
        echo(f"gpu: none that PyTorch can use (it {built}); everything runs on the CPU")


def _show_model(path: Path) -> None:
    found = load(path)
    if isinstance(found, TableModel):
        _show_table(path, found)
    elif isinstance(found, ImageModel):
        _show_images(path, found)
    else:
        echo(f"{path}: a flow over {found.features} features")
    flow = found if isinstance(found, Flow) else found.flow
    parameters = sum(p.numel() for p in flow.parameters())
    options = ", ".join(f"{k}={v}" for k, v in flow.config.items() if k not in ("features", "context"))
    echo(f"flow: {parameters:,} parameters; {options}")


def _show_table(path: Path, model: TableModel) -> None:
    facts = model.facts
    echo(f"{path}: a model of the table {facts['table']}")
    echo(
        f"rows: {facts['used_rows']:,} of {facts['rows']:,} used, {facts['train_rows']:,} to train, "
        f"{len(model.split.validation):,} to validate, {len(model.split.test):,} kept for testing"
    )
    echo(_training(facts))
    echo("columns:")
    width = max(len(c.name) for c in model.preprocessor.columns)
    for column in model.preprocessor.columns:
        echo(f"  {column.name:{width}}  {column.describe()}")


def _show_images(path: Path, model: ImageModel) -> None:
    facts = model.facts
    echo(f"{path}: a model of the images {facts['images']}, {model.describe()}")
    flips = ", left and right exchanged at random" if facts["flips"] else ""
    echo(f"images: {facts['train_images']:,} to train{flips}, {facts['validation_images']:,} to validate")
    if model.classes is not None:
        echo(f"classes: {listed(model.classes)}")
    echo(_training(facts))
    echo(
        f"held-out images: {facts['bits_per_dimension']:.3f} bits per dimension "
        f"({facts['histogram_bits']:.3f} if every pixel were by itself); alpha of the logit {model.pixels.alpha:g}"
    )
    if "round_trip" in facts:  # not in files of earlier versions
        echo(reconstruction(facts))


def reconstruction(facts: dict[str, Any]) -> str:
    """The reconstruction error of held-out images, with a warning if it exceeds one shade, 1/256."""
    error = facts["round_trip"]
    text = f"{facts['inverted']} of them reconstructed from noise to within {at_most(error):.1g} of a pixel (0 to 1)"
    if error < 1 / 256:
        return text
    return (
        f"{text}: more than one of the 256 shades, because the inverse amplifies rounding errors. Draw images with "
        "--certify, and where images have to be reconstructed, train with --stability or use float64 (flow.double())"
    )


def _training(facts: dict[str, Any]) -> str:
    return (
        f"training: {facts['steps']:,} steps in {facts['seconds']:.0f} s, best at step {facts['best_step']:,}, "
        f"seed {facts['seed']}"
    )
