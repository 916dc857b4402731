"""What is compiled into the kernels of a flow."""

from __future__ import annotations

from dataclasses import dataclass

from ..degrees import Plan, plan


@dataclass(frozen=True)
class FlowShape:
    """A flow of equal networks, but for its numbers."""

    features: int
    context: int
    hidden: tuple[int, ...]  # all of one width
    residual: bool
    scales: int
    waves: int
    squash: float  # 0: off
    conditional: bool  # whether the networks compute the waves, or only shifts
    networks: int

    @property
    def outputs(self) -> int:
        """Of a network, for each feature."""
        return 2 + self.scales * (3 * self.waves + 1) if self.conditional else 1

    @property
    def plan(self) -> Plan:
        """The layers of a network."""
        return plan(self.features, self.context, self.outputs, self.hidden)

    @property
    def blocks(self) -> int:
        """Of an upper shift, its scales and a lower shift."""
        return self.networks // 2

    @property
    def inputs(self) -> int:
        """Numbers that a network sees, in groups of eight."""
        return round_up(self.context + self.features, 8)

    @property
    def units(self) -> int:
        """Of a hidden layer, in groups of sixteen."""
        return round_up(self.hidden[0], 16)

    @property
    def head(self) -> int:
        """Numbers that a network puts out, in groups of sixteen."""
        return round_up(self.features * self.outputs, 16)

    @property
    def biases(self) -> int:
        """Of one network."""
        return len(self.hidden) * self.units + self.head

    def defines(self, rows: int, warps: int) -> dict[str, str]:
        """The shape as the preprocessor takes it."""
        values = {
            "FEATURES": self.features,
            "CONTEXT": self.context,
            "HIDDEN": self.hidden[0],
            "DEPTH": len(self.hidden),
            "RESIDUAL": int(self.residual),
            "OUTPUTS": self.outputs,
            "SCALES": self.scales,
            "WAVES": self.waves,
            "CONDITIONAL": int(self.conditional),
            "NETWORKS": self.networks,
            "ROWS": rows,
            "WARPS": warps,
        }
        return {name: str(value) for name, value in values.items()} | {"SQUASH": f"{float(self.squash)!r}f"}

    def forward_shared(self, rows: int, warps: int) -> int:
        """Bytes of shared memory of the forward kernel, as FORWARD_SHARED in forward.cu."""
        each = 2 * self.features + stride_of(self.inputs) + 2 * stride_of(self.units)
        last = rows * stride_of(self.head) if self.conditional else parts_size(self.head // 16, rows, warps)
        return 4 * (rows * each + last)

    def backward_shared(self, rows: int, warps: int) -> int:
        """Bytes of shared memory of the backward kernel, as BACKWARD_SHARED in backward.cu."""
        tiles = round_up(self.context + self.features, 16) // 16
        each = self.features + self.context + 1 + stride_of(self.head) + 2 * stride_of(self.units)
        return 4 * (rows * each + parts_size(tiles, rows, warps))

    def inverse_shared(self, rows: int, inner: int) -> int:
        """Bytes of shared memory of the inverse kernel, with so many numbers of inner weights."""
        each = 4 * self.features + stride_of(self.inputs) + len(self.hidden) * stride_of(self.units)
        return 4 * (rows * (each + stride_of(self.head)) + inner)

    def fits(self, rows: int, warps: int, shared_bytes: int) -> bool:
        """Whether a block can take so many rows with that much shared memory."""
        return max(self.forward_shared(rows, warps), self.backward_shared(rows, warps)) <= shared_bytes


def round_up(number: int, multiple: int) -> int:
    """The next multiple."""
    return -(-number // multiple) * multiple


def stride_of(count: int) -> int:
    """Distance of rows in shared memory, as stride_of in common.cuh."""
    return round_up(count - 4, 32) + 4


def parts_size(tiles: int, rows: int, warps: int) -> int:
    """Room for parts of sums, as parts_size in common.cuh."""
    return max(1, warps // tiles) * 16 * tiles * rows
