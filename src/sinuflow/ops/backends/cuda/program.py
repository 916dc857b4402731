"""All that the kernels can do for one flow: score, differentiate, invert."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...dropout import Dropout
from .arguments import BackwardArguments, ForwardArguments, InverseArguments, WaveArguments, WeightArguments
from .blocks import ANY_BLOCK, Blocks, Launcher, ways_of
from .layout import gradient_jobs
from .packing import Offsets, Packed, Packer
from .shape import FlowShape

_WEIGHT_THREADS, _WAVE_THREADS = 128, 128
#: From so many rows on, memory matters more than another launch.
_MANY_ROWS = 2048


class Activations(NamedTuple):
    """What the forward pass leaves for the backward pass."""

    inputs: Tensor
    hidden: Tensor
    outputs: Tensor | None
    x: Tensor


class Scored(NamedTuple):
    """Noise (D, B), log-determinant (B,), log-density (B,)."""

    z: Tensor
    ladj: Tensor
    log_density: Tensor
    activations: Activations | None


class Gradients(NamedTuple):
    """Of the data (D, B), of the context (C, B), and of all parameters, one after the other."""

    x: Tensor
    context: Tensor | None
    parameters: Tensor


class Inverse(NamedTuple):
    """Data (D, B) and the inverse's log-determinant; certificates (layers, B), in the order of inversion."""

    x: Tensor
    ladj: Tensor
    iterations: Tensor
    residual: Tensor
    converged: Tensor


class Program:
    """A flow's kernels, and the tables that they work with."""

    def __init__(self, shape: FlowShape, offsets: Offsets, device: torch.device, launcher: Launcher) -> None:
        self._shape, self._launcher, self.device = shape, launcher, device
        self._total = offsets.parameters[-1]
        self._ways = ways_of(shape, offsets.networks, self._total, device)
        self._blocks = Blocks(shape, launcher)
        self._packer = Packer(shape, offsets, self._ways, device, launcher)
        self.pack, self.pack_inverse = self._packer.pack, self._packer.pack_inverse
        layers = shape.plan.layers
        self._jobs = gradient_jobs(layers).to(device)
        self._reach = self._table([reach for layer in layers for reach in layer.reach])
        self._ends = self._table(layers[0].rows[: shape.features])  # all hidden layers have the same degrees
        self._wave_offsets = self._table(offsets.waves)
        self._weight_offsets = self._table([n.weights for n in offsets.networks])
        self._bias_offsets = self._table([n.biases for n in offsets.networks])

    def fits(self) -> bool:
        """Whether the kernels can do this flow on this GPU."""
        return self._packer.fits() and all(self._blocks.fit(way) for way in self._ways)

    def _table(self, numbers: Any) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=self.device)

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, device=self.device, dtype=torch.float32)

    # ---------------------------------------------------------------- data to noise

    def forward(
        self, packed: Packed, x: Tensor, context: Tensor | None, keep: bool, dropout: Dropout | None = None
    ) -> Scored:
        """Score a batch of shape (D, B)."""
        batch = x.shape[-1]
        z, ladj, log_density = torch.empty_like(x), self._empty(batch), self._empty(batch)
        activations = self._room(batch) if keep else None
        arguments = ForwardArguments(
            x=x,
            context=context,
            weights=packed.weights,
            biases=packed.biases,
            waves=packed.waves,
            affine=packed.affine,
            z=z,
            ladj=ladj,
            log_density=log_density,
            kept_inputs=activations and activations.inputs,
            kept_hidden=activations and activations.hidden,
            kept_outputs=activations and activations.outputs,
            kept_x=activations and activations.x,
            seed=dropout and dropout.seed,
            drop_below=dropout.threshold if dropout else 0,
            keep_scale=dropout.scale if dropout else 1.0,
            batch=batch,
            **self._ways.forward.arguments(),
        )
        self._blocks.run("flow_forward", self._ways.forward, batch, arguments)
        return Scored(z, ladj, log_density, activations)

    def _room(self, batch: int) -> Activations:
        shape = self._shape
        networks, depth = shape.networks, len(shape.hidden)
        return Activations(
            self._empty(networks, batch, shape.inputs),
            self._empty(networks, depth, batch, shape.units),
            self._empty(networks, batch, shape.head) if shape.conditional else None,
            self._empty(networks if shape.conditional else shape.blocks * shape.scales, shape.features, batch),
        )

    # ---------------------------------------------------------------- gradients

    def backward(
        self,
        packed: Packed,
        z: Tensor,
        activations: Activations,
        grad_z: Tensor | None,
        grad_ladj: Tensor | None,
        nll_scale: float = 0.0,
        out: Tensor | None = None,
        dropout: Dropout | None = None,
    ) -> Gradients:
        """The chain rule through :meth:`forward`, with the same dropout.

        Without ``grad_z`` and ``grad_ladj``, of minus the log-densities, times ``nll_scale``. The gradient
        of the parameters goes to ``out``, if it is given: it must have zeros where weights are masked.
        """
        shape, batch = self._shape, z.shape[-1]
        grad_x = torch.empty_like(z)
        grad_context = self._empty(shape.context, batch) if shape.context else None
        grad_values = None if shape.conditional else torch.empty_like(activations.x)
        gradient = torch.zeros(self._total, device=self.device, dtype=torch.float32) if out is None else out
        parts = self._backward_parts(batch)
        most = max(upper - lower for lower, upper in parts)
        grad_outputs = self._empty(most, batch, shape.head)
        grad_hidden = self._empty(most, len(shape.hidden), batch, shape.units)
        for lower, upper in parts:
            chain = BackwardArguments(
                z=z,
                grad_z=grad_z,
                grad_ladj=grad_ladj,
                weights=packed.transposed,
                waves=packed.waves,
                affine=packed.affine,
                kept_inputs=activations.inputs,
                kept_hidden=activations.hidden,
                kept_outputs=activations.outputs,
                kept_x=activations.x,
                grad_x=grad_x,
                grad_context=grad_context,
                grad_outputs=grad_outputs,
                grad_hidden=grad_hidden,
                grad_values=grad_values,
                nll_scale=nll_scale,
                keep_scale=dropout.scale if dropout else 1.0,
                batch=batch,
                lower=lower,
                upper=upper,
                **self._ways.backward.arguments(),
            )
            self._blocks.run("flow_backward", self._ways.backward, batch, chain)
            weights = WeightArguments(
                kept_inputs=activations.inputs,
                kept_hidden=activations.hidden,
                grad_outputs=grad_outputs,
                grad_hidden=grad_hidden,
                jobs=self._jobs,
                reach=self._reach,
                weight_offsets=self._weight_offsets,
                bias_offsets=self._bias_offsets,
                gradient=gradient,
                batch=batch,
                lower=lower,
            )
            grid = (len(self._jobs), upper - lower)
            self._launcher.launch("weight_gradients", ANY_BLOCK, grid, _WEIGHT_THREADS, 0, weights)
        if not shape.conditional:
            waves = WaveArguments(
                free=packed.free,
                waves=packed.waves,
                affine=packed.affine,
                kept_x=activations.x,
                grad_values=grad_values,
                z=z,
                grad_z=grad_z,
                grad_ladj=grad_ladj,
                offsets=self._wave_offsets,
                gradient=gradient,
                nll_scale=nll_scale,
                batch=batch,
            )
            jobs = (shape.blocks * shape.scales + 1) * shape.features
            self._launcher.launch("wave_gradients", ANY_BLOCK, (-(-jobs // 4),), _WAVE_THREADS, 0, waves)
        return Gradients(grad_x, grad_context, gradient)

    def _backward_parts(self, batch: int) -> list[tuple[int, int]]:
        """Networks that go together; with many rows, in two parts, which need half the memory."""
        networks = self._shape.networks
        half = networks // 4 * 2  # whole blocks of an upper and a lower shift
        return [(half, networks), (0, half)] if batch >= _MANY_ROWS and half else [(0, networks)]

    # ---------------------------------------------------------------- noise to data

    def inverse(self, packed: Packed, z: Tensor, context: Tensor | None, limit: int) -> Inverse:
        """Invert a batch of shape (D, B), with a certificate for every layer."""
        shape, batch = self._shape, z.shape[-1]
        layers = shape.networks if shape.conditional else 3 * shape.blocks + 1
        found = Inverse(
            torch.empty_like(z),
            self._empty(batch),
            torch.empty((layers, batch), dtype=torch.int32, device=self.device),
            self._empty(layers, batch),
            torch.empty((layers, batch), dtype=torch.bool, device=self.device),
        )
        arguments = InverseArguments(
            z=z,
            context=context,
            weights=packed.weights,
            inner=packed.inner,
            ends=self._ends,
            biases=packed.biases,
            waves=packed.waves,
            affine=packed.affine,
            batch=batch,
            limit=limit,
            **self._ways.inverse.arguments(),
            **found._asdict(),
        )
        self._blocks.run("flow_inverse", self._ways.inverse, batch, arguments)
        return found
