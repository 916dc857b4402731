"""Fitted images: a flow, with all that stands between it and bytes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..bijections.pixels import PixelMap
from ..data.image_arrays import as_images
from ..data.labels import listed, numbers_of, one_hot
from ..errors import ArgumentError, DataError
from ..flows.distribution import check_temperature
from ..flows.inversion import Certify, Drawn, check_certify, inverse_with_fallback
from ..flows.sinusoidal import SinusoidalFlow
from ..flows.storage import Model, write_model
from ..training import Batch, ImageRows

#: Images that are scored, and drawn, at a time.
_SCORED, _DRAWN = 256, 128
#: How many quantiles of the held-out images' bits are kept.
QUANTILES = 1001


class ImageModel:
    """The density of images of bytes.

    Args:
        flow: over the logits of pixels.
        pixels: the map between these and bytes.
        classes: the names of the classes, if the density is one of each class.
        counts: how many images of each class there were.
        quantiles: of the bits per dimension of held-out images, in increasing order.
        history: the records of the training.
        facts: where the model comes from: images, seed, steps, seconds, versions.

    Example:
        >>> import sinuflow
        >>> images = torch.randint(256, (40, 1, 4, 4), dtype=torch.uint8)
        >>> model = sinuflow.fit_images(images, labels=[0, 1] * 20, steps=3, progress=False)
        >>> model.bits_per_dimension(images, [0, 1] * 20).shape
        torch.Size([40])
        >>> model.sample(5, label=1).shape
        torch.Size([5, 1, 4, 4])
    """

    def __init__(
        self,
        flow: SinusoidalFlow,
        pixels: PixelMap,
        classes: list[str] | None,
        counts: list[int] | None,
        quantiles: Tensor,
        history: list[dict[str, Any]],
        facts: dict[str, Any],
    ) -> None:
        self.flow = flow
        self.pixels = pixels
        self.classes = classes
        self.counts = counts
        self.quantiles = quantiles
        self.history = history
        self.facts = facts

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        channels, height, width = self.flow.config["image"]
        return channels, height, width

    def describe(self) -> str:
        """What the images are like, in words."""
        channels, height, width = self.shape
        kind = {1: "greyscale", 3: "colour"}.get(channels, f"{channels} channels")
        classes = "" if self.classes is None else f", {len(self.classes)} classes"
        return f"{width}x{height} pixels, {kind}{classes}"

    def to(self, device: str | torch.device) -> ImageModel:
        """The model itself, after its flow has moved to a device."""
        self.flow.to(device)
        return self

    # ---------------------------------------------------------------- scoring

    def bits_per_dimension(self, images: Any, labels: Any = None) -> Tensor:
        """Bits per dimension of every image, given its class if the model has classes.

        Bytes are spread over their cells by noise, so that this is an upper bound of the bits in expectation. The
        noise is the same at every call, for the same images in the same order.
        """
        return self.in_bits(self.log_prob(images, labels))

    def in_bits(self, log_density: Tensor) -> Tensor:
        """Bits per dimension, given what :meth:`log_prob` gave."""
        return -log_density / (self.flow.features * math.log(2))

    def log_prob(self, images: Any, labels: Any = None) -> Tensor:
        """The log-density of every image, in nats, in the space of pixels, in which the cell of a byte has size 1."""
        scores = []
        with torch.no_grad():
            for x, context in self._batches(images, labels, _SCORED):
                log_density = self.flow(context, validate_args=False).log_prob(x).double().cpu()
                bits = self.pixels.bits_per_dimension(log_density, x.double().cpu())
                scores.append(-bits * self.flow.features * math.log(2))
        return torch.cat(scores)

    def round_trip(self, images: Any, labels: Any = None) -> Tensor:
        """How exactly every image comes back from its noise: the largest error of a pixel, these being from 0 to 1.

        In the flow's precision; what is no number is infinitely wrong. Train with ``stability`` for smaller errors.
        """
        errors = []
        with torch.no_grad():
            for x, context in self._batches(images, labels, _DRAWN):
                noise, _ = self.flow.bijection(x, context)
                back = self.flow.invert(noise, context, on_failure="return").x
                found, true = (self.pixels.to_unit(t.double()).value for t in (back, x))
                errors.append((found - true).abs().nan_to_num(nan=torch.inf).amax(1).cpu())
        return torch.cat(errors)

    def _batches(self, images: Any, labels: Any, size: int) -> Iterator[Batch]:
        """Images as the flow sees them, where it is."""
        checked = as_images(images)
        if checked.shape[1:] != self.shape:
            raise DataError(
                f"images must have shape (N, {', '.join(map(str, self.shape))}); got {tuple(checked.shape)}"
            )
        home = next(self.flow.parameters())
        # The noise is drawn on the CPU, whatever the flow is on: a score must not depend on that.
        source = ImageRows(checked, self.pixels, self._context(labels, len(checked)), dtype=home.dtype)
        for x, context in source.in_order(size):
            yield Batch(x.to(home), None if context is None else context.to(home))

    def anomaly_percentile(self, bits: Tensor) -> Tensor:
        """How many percent of the held-out images take fewer bits: 100 is more odd than all of them."""
        place = torch.searchsorted(self.quantiles, bits.double())
        return place.double() * 100 / len(self.quantiles)

    # ---------------------------------------------------------------- sampling

    def sample(
        self,
        count: int,
        label: Any = None,
        seed: int = 0,
        temperature: float = 1.0,
        certify: Certify = "layers",
    ) -> Tensor:
        """Draw images: bytes of shape (count, C, H, W).

        Guarantee: with ``certify="layers"``, each layer of the flow was inverted to working precision for every image;
        with ``"end-to-end"``, every image's logits map back to their noise through the whole flow, within the
        tolerance of :meth:`SinusoidalFlow.invert <sinuflow.SinusoidalFlow.invert>`; or an
        :class:`~sinuflow.InversionError` is raised. Where float32 is not enough, float64 is used. The certificate
        concerns the logits, before they are rounded to bytes.

        Args:
            count: how many.
            label: of a model with classes, one of them, by number or by name, or one for each image; by default,
                classes are drawn as often as they were in the data.
            seed: the same seed gives the same images.
            temperature: below 1, images keep to the denser regions.
            certify: ``"layers"``, or ``"end-to-end"`` at the cost of one forward pass.
        """
        return self.draw(count, label, seed, temperature, certify).values  # type: ignore[no-any-return]

    def draw(
        self,
        count: int,
        label: Any = None,
        seed: int = 0,
        temperature: float = 1.0,
        certify: Certify = "layers",
    ) -> Drawn:
        """The images of :meth:`sample`, and the largest end-to-end residual if that is certified."""
        check_certify(certify)
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ArgumentError(f"count must be a whole number, 1 or more; got {count!r}")
        check_temperature(temperature)
        generator = torch.Generator().manual_seed(seed)
        context = self._context(self._labels(count, label, generator), count)
        home = next(self.flow.parameters())
        images, residuals = [], []
        for start in range(0, count, _DRAWN):
            size = min(_DRAWN, count - start)
            noise = temperature * torch.randn((size, self.flow.features), generator=generator)
            given = None if context is None else context[start : start + size].to(home)
            x, residual = inverse_with_fallback(self.flow.bijection, noise.to(home), given, certify)
            images.append(self.pixels.to_bytes(x.cpu()).view(size, *self.shape))
            residuals.append(residual)
        return Drawn(torch.cat(images), max((r for r in residuals if r is not None), default=None))

    # ---------------------------------------------------------------- classes

    def _labels(self, count: int, label: Any, generator: torch.Generator) -> Any:
        """One label for each image that is drawn."""
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
        return one_hot(numbers_of(labels, self.classes, count), len(self.classes))

    # ---------------------------------------------------------------- storage

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one safetensors file, atomically; :func:`sinuflow.load` reads it."""
        config = {
            "flow": self.flow.config,
            "alpha": self.pixels.alpha,
            "classes": self.classes,
            "counts": self.counts,
            "history": self.history,
            "facts": self.facts,
        }
        tensors = {f"flow/{name}": t for name, t in self.flow.usable_state(path).items()}
        tensors["quantiles"] = self.quantiles
        write_model(path, Model("images", config, tensors))
