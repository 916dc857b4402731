"""Bits per dimension of images: the paper's recipe, the same flow trained with what is known today, and larger ones."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..data.image_sets import IMAGE_SETS, ImageSplits, image_set, images_present
from ..files import write_atomically
from ..models.image_baseline import histogram_bits
from .image_data import check_present, images_of
from .image_flows import recipe_of, train_images
from .image_scores import score_images
from .images_table import table
from .items import Options
from .recipes import recipes
from .record import Figure, read_record
from .training import chosen_models

METRIC = "test bits per dimension"
#: The paper's table, Sinusoidal Flow.
PAPER = {"mnist": 1.06, "cifar10": 3.51}


def run(options: Options) -> Iterator[Figure]:
    """Train every model on every set with every seed; each is a figure by itself, and seeds are joined."""
    chosen = {}
    for name in options.sets or _present(options):
        image_set(name)
        chosen[name] = chosen_models(name, recipes(name), options)
        check_present(name, options)
    for name, models in chosen.items():
        images = images_of(name, options)
        yield _baseline(name, images, options)
        for model in models:
            for seed in options.seeds:
                yield _one(name, model, images, seed, options)
                _write_table(options)


def _present(options: Options) -> list[str]:
    """The sets that are there, if none were named."""
    if options.size == "smoke":
        return list(IMAGE_SETS)
    found = [n for n in IMAGE_SETS if options.data is not None and images_present(n, options.data) is not None]
    if not found:
        check_present("mnist", options)  # says what to do
    missing = [name for name in IMAGE_SETS if name not in found]
    if missing:
        options.say(f"not there, and left out: {', '.join(missing)}; see `sinuflow data list`")
    return found


def _one(name: str, model: str, images: ImageSplits, seed: int, options: Options) -> Figure:
    found = train_images(name, model, images, seed, options)
    trained, bits = found.trained, score_images(found, images.test, options.device)
    comparable = _comparable(name, model, images, options)
    return Figure(
        set=name,
        metric=METRIC,
        model=model,
        values={seed: bits.mean},
        paper=PAPER[name] if comparable.startswith("yes") else None,
        rows=len(images.test),
        steps=trained.steps,
        seconds=trained.seconds,
        hardware=trained.hardware,
        comparable=comparable,
        extra={
            "validation": {str(seed): found.validation(images.val)},
            "best_step": {str(seed): trained.best_step},
            "standard_error_over_images": {str(seed): bits.error},
            "float32_error_max": {str(seed): bits.float_max},
            "float32_error_mean": {str(seed): bits.float_mean},
            "size": options.size,
            "recipe": recipe_of(name, model, options).digest,
        },
    )


def _baseline(name: str, images: ImageSplits, options: Options) -> Figure:
    """What can be had without looking at any other pixel."""
    bits = histogram_bits(torch.from_numpy(images.train), torch.from_numpy(images.test))
    why = "no: another model" if options.size == "full" else _comparable(name, "", images, options)
    return Figure(
        name,
        METRIC,
        "independent pixels",
        {None: bits},
        rows=len(images.test),
        comparable=why,
        extra={"size": options.size},
    )


def _comparable(name: str, model: str, images: ImageSplits, options: Options) -> str:
    """Whether the figure may stand beside that of the paper's flow, and with which words."""
    if options.size == "smoke":
        return "no: a smaller run, on images that were drawn"
    if options.size == "quick":
        return "no: a smaller run, on images of half the size"
    if tuple(len(part) for part in images) != IMAGE_SETS[name].sizes:
        return "no: other images than the published ones"
    told = IMAGE_SETS[name].comparable
    if model == "paper":
        return told
    flow, of_paper = (recipes(name)[which].flow for which in (model, "paper"))
    larger = "" if flow | {"conditioning": None} == of_paper | {"conditioning": None} else "a larger flow, "
    scales = "networks that compute scales too, " if flow.get("conditioning") == "affine" else ""
    return f"{told}; {larger}{scales}trained otherwise than in the paper"


def _write_table(options: Options) -> None:
    found = read_record(options.out / "images.json")
    write_atomically(options.out / "images.md", table(found).encode())
