"""A fitted density of images."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..bijections.pixels import PixelMap
from ..checks import choice, flag, integer, items, number, optional, text, whole
from ..data.image_files import as_images, class_indices, listed
from ..errors import DataError
from ..flows.distribution import check_temperature
from ..flows.flow import Flow
from ..flows.inversion import CERTIFICATES, CertifiedDraws, Certify, inverse_with_fallback
from ..flows.sinusoidal import ImageFlow, SinusoidalFlow
from ..training import Batch, ImageRows
from .fitted import FittedModel, model_schema

#: The batch sizes of scoring and of sampling.
_SCORE_BATCH, _SAMPLE_BATCH = 256, 128


_SCHEMA = model_schema(
    {"alpha": number(0), "classes": optional(items(text(), least=1)), "counts": optional(items(integer(), least=1))},
    {
        **dict.fromkeys(("train_images", "validation_images"), integer()),
        **dict.fromkeys(("bits_per_dimension", "histogram_bits"), number(finite=False)),
        "images": text(),
        "flips": flag,
    },
    {"inverted": integer(), "round_trip": number(finite=False), "torch": text(200)},
)


@dataclass(eq=False, repr=False)
class ImageModel(FittedModel):
    """The density of 8-bit images.

    Args:
        pixels: the map between bytes and logits.
        classes: the names of the classes, for a class-conditional density.
        counts: the number of training images of each class.
        quantiles: quantiles of the bits per dimension of held-out images, in increasing order.

    The other arguments are those of all fitted models.

    Example:
        >>> import sinuflow
        >>> images = torch.randint(256, (40, 1, 4, 4), dtype=torch.uint8)
        >>> model = sinuflow.fit_images(images, labels=[0, 1] * 20, steps=3, progress=False)
        >>> model.bits_per_dimension(images, [0, 1] * 20).shape
        torch.Size([40])
        >>> model.sample(5, label=1).shape
        torch.Size([5, 1, 4, 4])
    """

    flow: SinusoidalFlow
    pixels: PixelMap
    classes: list[str] | None
    counts: list[int] | None
    quantiles: Tensor
    history: list[dict[str, Any]]
    facts: dict[str, Any]
    kind, description, schema = "images", "model of images", _SCHEMA

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        channels, height, width = self.flow.config["image"]
        return channels, height, width

    def describe(self) -> str:
        """Size, channels and classes in words."""
        channels, height, width = self.shape
        kind = {1: "greyscale", 3: "colour"}.get(channels, f"{channels} channels")
        classes = "" if self.classes is None else f", {len(self.classes)} classes"
        return f"{width}x{height} pixels, {kind}{classes}"

    def bits_per_dimension(self, images: Any, labels: Any = None) -> Tensor:
        """Bits per dimension of every image, given its class if the model has classes.

        Dequantization noise makes this an upper bound in expectation. The noise is the same at every call with the
        same images in the same order.
        """
        return self.in_bits(self.log_prob(images, labels))

    def in_bits(self, log_density: Tensor) -> Tensor:
        """Convert the result of :meth:`log_prob` to bits per dimension."""
        return -log_density / (self.flow.features * math.log(2))

    def log_prob(self, images: Any, labels: Any = None) -> Tensor:
        """The log-density of every image in nats, in units of the 256 levels of a pixel."""
        scores = []
        with torch.no_grad():
            for x, context in self._batches(images, labels, _SCORE_BATCH):
                log_density = self.flow(context, validate_args=False).log_prob(x).double().cpu()
                bits = self.pixels.bits_per_dimension(log_density, x.double().cpu())
                scores.append(-bits * self.flow.features * math.log(2))
        return torch.cat(scores)

    def round_trip(self, images: Any, labels: Any = None) -> Tensor:
        """The reconstruction error of every image from its noise: the largest over its pixels, which are in [0, 1].

        It is computed in the flow's precision, and infinite if a pixel is NaN. Train with ``stability`` to reduce it.
        """
        errors = []
        with torch.no_grad():
            for x, context in self._batches(images, labels, _SAMPLE_BATCH):
                noise, _ = self.flow.bijection(x, context)
                back = self.flow.invert(noise, context, on_failure="return").x
                reconstructed, original = (self.pixels.to_unit(t.double()).value for t in (back, x))
                errors.append((reconstructed - original).abs().nan_to_num(nan=torch.inf).amax(1).cpu())
        return torch.cat(errors)

    def _batches(self, images: Any, labels: Any, size: int) -> Iterator[Batch]:
        """Encoded images on the flow's device."""
        checked = as_images(images)
        if checked.shape[1:] != self.shape:
            raise DataError(
                f"images must have shape (N, {', '.join(map(str, self.shape))}); got {tuple(checked.shape)}"
            )
        like = self._like
        # Dequantization noise is drawn on the CPU, so that scores do not depend on the device.
        source = ImageRows(checked, self.pixels, self._context(labels, len(checked)), dtype=like.dtype)
        for x, context in source.in_order(size):
            yield Batch(x.to(like), None if context is None else context.to(like))

    def anomaly_percentile(self, bits: Tensor) -> Tensor:
        """The percentage of held-out images with fewer bits: 100 is more anomalous than all of them."""
        below = torch.searchsorted(self.quantiles, bits.double())
        return below.double() * 100 / len(self.quantiles)

    def sample(
        self, count: int, label: Any = None, seed: int = 0, temperature: float = 1.0, certify: Certify = "layers"
    ) -> Tensor:
        """Draw images: bytes of shape (count, C, H, W).

        Guarantee: that of :meth:`FlowDistribution.sample <sinuflow.flows.distribution.FlowDistribution.sample>`, before
        logits are rounded to bytes. Where float32 is not enough, float64 is used.

        Args:
            count: the number of images.
            label: of a model with classes, one of them by number or by name, or one for each image; by default,
                classes are drawn with their frequencies in the training data.
            seed: of the noise and the classes.
            temperature: the noise's standard deviation; below 1, images concentrate in regions of high density.
            certify: ``"layers"``, or ``"end-to-end"`` at the cost of one forward pass.
        """
        return self.draw(count, label, seed, temperature, certify).values  # type: ignore[no-any-return]

    def draw(
        self, count: int, label: Any = None, seed: int = 0, temperature: float = 1.0, certify: Certify = "layers"
    ) -> CertifiedDraws:
        """The images of :meth:`sample`, and the largest end-to-end residual if that is certified."""
        choice("certify", certify, CERTIFICATES)
        count = whole("count", count, least=1)
        check_temperature(temperature)
        generator = torch.Generator().manual_seed(seed)
        context = self._context(self._labels(count, label, generator), count)
        images, residuals = [], []
        for start in range(0, count, _SAMPLE_BATCH):
            size = min(_SAMPLE_BATCH, count - start)
            noise = temperature * torch.randn((size, self.flow.features), generator=generator)
            rows = None if context is None else context[start : start + size].to(self._like)
            x, residual = inverse_with_fallback(self.flow.bijection, noise.to(self._like), rows, certify)
            images.append(self.pixels.to_bytes(x.cpu()).view(size, *self.shape))
            residuals.append(residual)
        return CertifiedDraws(torch.cat(images), max((r for r in residuals if r is not None), default=None))

    def _labels(self, count: int, label: Any, generator: torch.Generator) -> Any:
        """A label for each image to draw."""
        if label is None and self.counts is not None:
            return torch.multinomial(torch.tensor(self.counts).double(), count, replacement=True, generator=generator)
        return [label] * count if isinstance(label, (str, int, np.integer)) else label

    def _context(self, labels: Any, count: int) -> Tensor | None:
        if self.classes is None:
            if labels is not None:
                raise DataError("this model has no classes: leave out the labels")
            return None
        if labels is None:
            raise DataError(f"this model has classes: give a label for each image, of {listed(self.classes)}")
        return F.one_hot(class_indices(labels, self.classes, count), len(self.classes)).float()

    def _stored(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"alpha": self.pixels.alpha, "classes": self.classes, "counts": self.counts}, {}

    @classmethod
    def parse(
        cls, config: dict[str, Any], groups: dict[str, dict[str, Tensor]], flow: Flow
    ) -> tuple[PixelMap, list[str] | None, list[int] | None]:
        classes, counts = config["classes"], config["counts"]
        consistent = (classes is None) == (counts is None) and len(classes or []) == len(counts or []) == flow.context
        if not consistent or not isinstance(flow, ImageFlow):
            raise ValueError("its flow does not fit its images or classes")
        if classes is not None and (len(set(classes)) < len(classes) or not sum(counts)):
            raise ValueError("its classes must have different names and at least one image")
        return PixelMap(float(config["alpha"])), classes, counts
