"""The CUDA program of one flow: forward pass, backward pass and inverse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...degrees import Layer
from ...dropout import Dropout
from .driver import CudaLauncher
from .packing import Layout, Packed, Packer
from .shape import LANES, TILE, WARPS, Block
from .streams import LayerOffsets, Stage, Streams, backward_stages, forward_stages, inverse_stages, streams

#: Rows and columns of the part of a weight gradient that one thread block computes, and threads of the kernels.
_GRADIENT_TILE, _GRADIENT_THREADS = 64, 128
#: From so many rows on, memory matters more than another launch.
_MANY_ROWS = 2048


class Activations(NamedTuple):
    """What the forward pass saves for the backward pass."""

    saved_inputs: Tensor
    saved_hidden: Tensor
    saved_outputs: Tensor | None
    saved_x: Tensor


class Scored(NamedTuple):
    """z (D, B), the log-determinant (B,) and the log-density (B,)."""

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
    """x (D, B) and the inverse's log-determinant; certificates (layers, B), in the order of inversion."""

    x: Tensor
    ladj: Tensor
    iterations: Tensor
    residual: Tensor
    converged: Tensor


class ExecutionPlan(NamedTuple):
    """The streams of tiles in one direction through the flow, and the shared memory that they take."""

    streams: Streams
    floats: Callable[[Block, int], int]  # besides tables and prefetched tiles
    few_rows: int = 0  # of a thread block for small batches, if that is faster

    def shared(self, block: Block) -> int:
        """Bytes of shared memory."""
        ring = WARPS * block.slots * TILE * TILE
        return 4 * (ring + self.floats(block, self.streams.parts) + len(self.streams.tables))


class Program:
    """A flow's kernels, and the tables that they read. Batches are feature-major."""

    def __init__(self, layout: Layout, device: torch.device, launcher: CudaLauncher) -> None:
        shape = self.shape = layout.shape
        self._launcher, self.device, self._total = launcher, device, layout.parameters[-1]
        # Inside a group, warps are busy with their rows; otherwise a block takes as long for four rows as for eight.
        few_rows = 4 if shape.group.degrees > 1 else 0
        reverse = layout.weights[::-1]
        self._forward = self._plan(forward_stages(shape), layout.weights, shape.forward_shared)
        self._backward = self._plan(backward_stages(shape), reverse, shape.backward_shared)
        self._inverse = self._plan(inverse_stages(shape), reverse, shape.inverse_shared)._replace(few_rows=few_rows)
        self._plans = (self._forward, self._backward, self._inverse)
        self._packer = Packer(layout, [plan.streams for plan in self._plans], device, launcher)
        self.pack = self._packer.pack
        layers = shape.plan.layers
        tables: dict[str, Any] = {
            "jobs": gradient_jobs(layers),
            "reach": [reach for layer in layers for reach in layer.reach],
            "ends": layers[0].rows[: shape.features],  # all hidden layers have the same degrees
            "offsets": layout.waves,
            "weight_offsets": layout.weights,
            "bias_offsets": layout.biases,
        }
        self._tables = {name: torch.tensor(t, dtype=torch.int32, device=device) for name, t in tables.items()}

    def _plan(self, stages: list[Stage], weights: LayerOffsets, floats: Callable[[Block, int], int]) -> ExecutionPlan:
        each = streams(stages, weights, zero=self._total)
        each = each._replace(starts=each.starts.to(self.device), tables=each.tables.to(self.device))
        return ExecutionPlan(each, floats)

    def _empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, device=self.device, dtype=dtype)

    # ---------------------------------------------------------------- launch configuration

    def fits(self) -> bool:
        """Whether the kernels support this flow on this GPU."""
        return self._packer.fits() and all(self._block(plan, 8) is not None for plan in self._plans)

    def _run(self, name: str, plan: ExecutionPlan, batch: int, values: dict[str, Any]) -> None:
        if batch:
            block = self._block_for(plan, batch)
            grid = (-(-batch // (block.live or block.rows)),)
            values = {**plan.streams._asdict(), "batch": batch, **values}
            self._launcher.launch(name, grid, LANES * WARPS, values, plan.shared(block), block)

    def _block_for(self, plan: ExecutionPlan, batch: int) -> Block:
        """Few rows to a block while there are idle multiprocessors, more when weights are read too often."""
        block = self._block(plan, 8)
        assert block is not None
        if plan.few_rows and batch <= plan.few_rows * self._launcher.processors:
            return block._replace(live=plan.few_rows)
        for rows in (16, 32):
            larger = self._block(plan, rows)
            if larger is None or batch <= block.rows * self._launcher.processors:
                break
            block = larger
        return block

    def _block(self, plan: ExecutionPlan, rows: int) -> Block | None:
        """The fastest block of so many rows that fits in shared memory."""
        # Splitting stored activations costs memory traffic, and saves work only where they are rectified when loaded.
        splits = (True, False) if self.shape.residual else (False,)
        blocks = [Block(rows, split, slots) for slots in (4, 3, 2) for split in splits]
        return next((block for block in blocks if plan.shared(block) <= self._launcher.shared_bytes), None)

    # ---------------------------------------------------------------- kernels

    def forward(
        self, packed: Packed, x: Tensor, context: Tensor | None, keep: bool, dropout: Dropout | None = None
    ) -> Scored:
        """z, log-determinant and log-density of a batch; with ``keep``, also the activations."""
        batch, x = x.shape[-1], x.contiguous()
        activations = self._activations(batch) if keep else None
        scored = Scored(torch.empty_like(x), self._empty(batch), self._empty(batch), activations)
        values = {
            **packed._asdict(),
            **scored._asdict(),
            **(activations._asdict() if activations else dict.fromkeys(Activations._fields)),
            "x": x,
            "context": _contiguous(context),
            "seed": dropout and dropout.seed,
            "drop_below": dropout.threshold if dropout else 0,
            "keep_scale": dropout.scale if dropout else 1.0,
        }
        self._run("flow_forward", self._forward, batch, values)
        return scored

    def _activations(self, batch: int) -> Activations:
        shape, networks = self.shape, self.shape.networks
        return Activations(
            self._empty(networks, batch, shape.inputs),
            self._empty(networks, shape.depth, batch, shape.units),
            self._empty(networks, batch, shape.head) if shape.conditional else None,
            self._empty(networks if shape.conditional else shape.blocks * shape.scales, shape.features, batch),
        )

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

        Without ``grad_z`` and ``grad_ladj``, of minus the sum of log-densities, times ``nll_scale``. The gradient of
        the parameters is written to ``out``, if given: it must have zeros where weights are masked.
        """
        shape, batch, parts = self.shape, z.shape[-1], self._backward_parts(z.shape[-1])
        most = max(upper - lower for lower, upper in parts)
        gradient = self._empty(self._total).zero_() if out is None else out
        grads = Gradients(torch.empty_like(z), self._empty(shape.context, batch) if shape.context else None, gradient)
        values = {
            **self._tables,
            **packed._asdict(),
            **activations._asdict(),
            "weights": packed.transposed,
            "z": z,
            "grad_z": _contiguous(grad_z),
            "grad_ladj": _contiguous(grad_ladj),
            "nll_scale": nll_scale,
            "keep_scale": dropout.scale if dropout else 1.0,
            "grad_x": grads.x,
            "grad_context": grads.context,
            "grad_outputs": self._empty(most, batch, shape.head),
            "grad_hidden": self._empty(most, shape.depth, batch, shape.units),
            "grad_values": None if shape.conditional else torch.empty_like(activations.saved_x),
            "gradient": gradient,
            "batch": batch,
        }
        for lower, upper in parts:
            values |= {"lower": lower, "upper": upper}
            self._run("flow_backward", self._backward, batch, values)
            jobs = (len(self._tables["jobs"]), upper - lower)
            self._launcher.launch("weight_gradients", jobs, _GRADIENT_THREADS, values)
        if not shape.conditional:
            grid = (-(-(shape.blocks * shape.scales + 1) * shape.features // 4),)
            self._launcher.launch("wave_gradients", grid, _GRADIENT_THREADS, values)
        return grads

    def _backward_parts(self, batch: int) -> list[tuple[int, int]]:
        """Networks that go together; with many rows, in two parts, which take half the memory."""
        networks = self.shape.networks
        half = networks // 4 * 2  # whole blocks of an upper and a lower shift
        return [(half, networks), (0, half)] if batch >= _MANY_ROWS and half else [(0, networks)]

    def inverse(self, packed: Packed, z: Tensor, context: Tensor | None, limit: int) -> Inverse:
        """The inverse, with a certificate for every layer."""
        shape, batch, z = self.shape, z.shape[-1], z.contiguous()
        layers = shape.networks if shape.conditional else 3 * shape.blocks + 1
        certificate = [self._empty(layers, batch, dtype=d) for d in (torch.int32, torch.float32, torch.bool)]
        result = Inverse(torch.empty_like(z), self._empty(batch), *certificate)
        values = {**self._tables, **packed._asdict(), **result._asdict(), "z": z, "context": _contiguous(context)}
        self._run("flow_inverse", self._inverse, batch, {**values, "limit": limit})
        return result


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def gradient_jobs(layers: tuple[Layer, ...]) -> list[list[int]]:
    """The tiles of one network's weight gradients that are not masked altogether: layer, row, column."""
    jobs = []
    for i, layer in enumerate(layers):
        for row in range(0, len(layer.reach), _GRADIENT_TILE):
            reach = layer.reach[min(row + _GRADIENT_TILE, len(layer.reach)) - 1]
            # The first tile of a row always exists: it also computes the gradient of the bias.
            jobs += [[i, row, column, 0] for column in range(0, max(1, reach), _GRADIENT_TILE)]
    return jobs
