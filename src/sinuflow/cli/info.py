"""``sinuflow info``: describe a model file, or the devices of this machine."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from .. import __version__
from ..data.image_files import listed
from ..errors import ArgumentError
from ..flows.flow import Flow
from ..flows.mixed import MixedFlow
from ..flows.sinusoidal import SinusoidalFlow
from ..models.continuation import hyperparameters
from ..models.image import ImageModel
from ..models.loading import load
from ..models.table import TableModel
from ..ops.select import cpp_backend, cuda_backend, triton_backend
from ..report.wording import at_most, training
from .terminal import echo


def command(
    model: Annotated[Path | None, typer.Argument(help="A model file.")] = None,
    devices: Annotated[bool, typer.Option("--devices", help="Show the devices and kernels of this machine.")] = False,
) -> None:
    """Describe a model file, or the devices and kernels of this machine."""
    if model is None and not devices:
        raise ArgumentError("name a model file, or ask for --devices")
    if devices:
        _show_devices()
    if model is not None:
        _show_model(model)


def _show_devices() -> None:
    echo(f"sinuflow {__version__}, Python {platform.python_version()}, torch {torch.__version__}")
    cpu = cpp_backend()
    echo(f"cpu: {torch.get_num_threads()} threads")
    echo(f"  float32: {cpu.reason}" if cpu.available else f"  float32: PyTorch, because {cpu.reason}")
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        echo(f"cuda:{i}: {properties.name}, {properties.total_memory / 2**30:.0f} GiB")
        device = torch.device("cuda", i)
        flow, layer = cuda_backend(device), triton_backend(device)
        echo(f"  float32 flows: {'' if flow.available else 'layer by layer, because '}{flow.reason}")
        echo(f"  layer by layer: {'' if layer.available else 'PyTorch, because '}{layer.reason}")
    if not torch.cuda.is_available():
        reason = "was built without GPU support" if torch.version.cuda is None else "finds none"
        echo(f"gpu: none that PyTorch can use (it {reason}); everything runs on the CPU")


def _show_model(path: Path) -> None:
    model = load(path)
    if isinstance(model, TableModel):
        _show_table(path, model)
    elif isinstance(model, ImageModel):
        _show_images(path, model)
    else:
        echo(f"{path}: a flow over {model.features} features")
    flow = model if isinstance(model, Flow) else model.flow
    parameters = sum(p.numel() for p in flow.parameters())
    if isinstance(flow, (SinusoidalFlow, MixedFlow)):
        options = ", ".join(f"{name}={value}" for name, value in hyperparameters(flow)["flow"].items())
    else:
        options = str(flow.spec())
    echo(f"flow: {parameters:,} parameters; {options}")


def _show_table(path: Path, model: TableModel) -> None:
    facts = model.facts
    echo(f"{path}: a model of the table {facts['table']}")
    echo(
        f"rows: {facts['used_rows']:,} of {facts['rows']:,} used: {facts['train_rows']:,} for training, "
        f"{len(model.split.validation):,} for validation, {len(model.split.test):,} for testing"
    )
    echo(f"training: {training(facts)}, seed {facts['seed']}")
    for notice in model.notices:
        echo(notice)
    echo("columns:")
    width = max(len(c.name) for c in model.preprocessor.columns)
    for column in model.preprocessor.columns:
        echo(f"  {column.name:{width}}  {column.describe()}")


def _show_images(path: Path, model: ImageModel) -> None:
    facts = model.facts
    echo(f"{path}: a model of the images {facts['images']}, {model.describe()}")
    flips = ", flipped horizontally at random" if facts["flips"] else ""
    echo(f"images: {facts['train_images']:,} for training{flips}, {facts['validation_images']:,} for validation")
    if model.classes is not None:
        echo(f"classes: {listed(model.classes)}")
    echo(f"training: {training(facts)}, seed {facts['seed']}")
    echo(f"{validation(facts)}; alpha of the logit {model.pixels.alpha:g}")
    if "round_trip" in facts:  # not in files of 0.1.0
        echo(reconstruction(facts))


def validation(facts: dict[str, Any]) -> str:
    """The score of validation images and its baseline."""
    bits, baseline = (f"{facts[name]:.3f}" for name in ("bits_per_dimension", "histogram_bits"))
    return f"validation images: {bits} bits per dimension (baseline of independent pixels: {baseline})"


def reconstruction(facts: dict[str, Any]) -> str:
    """The reconstruction error of validation images, with a warning if it exceeds one shade, 1/256."""
    error = facts["round_trip"]
    text = f"reconstruction error of {facts['inverted']} of them: at most {at_most(error):.1g} of a pixel (0 to 1)"
    if error < 1 / 256:
        return text
    return (
        f"{text}, more than one of the 256 shades, because the inverse amplifies rounding errors. Sample with "
        "--certify; for accurate reconstructions, train with --stability or use float64 (flow.double())"
    )
