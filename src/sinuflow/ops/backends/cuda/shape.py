"""Constants that are compiled into the kernels of a flow, and the shared memory that these take."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

from ...conditional_waves import Shape
from ...degrees import Plan, below, plan

#: Warps to a block, threads of a warp, and rows and columns of a tile of weights.
WARPS, LANES, TILE = 16, 32, 16
#: Warps that are idle in the inverse while four warps solve a group.
FAR_WARPS = range(4, WARPS)
#: Of a group: units of a layer, and weights. Of a first layer without products: weights.
_MOST_UNITS, _MOST_INNER, _MOST_DIRECT = 64, 7168, 4096


class Block(NamedTuple):
    """The launch configuration of a thread block."""

    rows: int  # of the batch, for which there is memory
    split: bool  # whether activations are stored as two TF32 numbers
    slots: int  # tiles that a warp prefetches
    live: int = 0  # rows in use, if not all

    def operand(self, units: int) -> int:
        """Floats of an operand with so many activations per row."""
        return units * self.rows * (2 if self.split else 1)


#: For kernels that do not go through a flow row by row.
ANY_BLOCK = Block(8, True, 4)


class Group(NamedTuple):
    """Degrees that the inverse solves together; strides as in groups.cuh."""

    degrees: int
    units: int = 0  # of a layer, at most
    degree_units: int = 0  # of one degree, at most
    rows: int = 0  # of a matrix between units of the group, padded by the units of one degree
    unit_stride: int = 0
    output_stride: int = 0
    weights: int = 0  # within a group


class CompiledShape:
    """What is compiled into kernels: the constants that ``COMPILED`` names, in capitals."""

    COMPILED: ClassVar[str]

    def defines(self, block: Block) -> dict[str, str]:
        """The constants as the preprocessor takes them."""
        return {name.upper(): str(int(getattr(self, name))) for name in self.COMPILED.split()}


@dataclass(frozen=True)
class FlowShape(CompiledShape):
    """The shape of a flow whose networks are all alike."""

    features: int
    context: int
    hidden: tuple[int, ...]  # all of one width
    residual: bool  # whether hidden layers have skip connections
    scales: int
    waves: int
    squash: float  # 0: off
    conditional: bool  # whether the networks compute the waves, or only shifts
    networks: int

    COMPILED = "features context depth residual outputs scales waves conditional networks direct paired source_bits"

    def defines(self, block: Block) -> dict[str, str]:
        group = {"GROUP": self.group.degrees, "GROUP_UNITS": self.group.units, "DEGREE_UNITS": self.group.degree_units}
        rows = {"ROWS": block.rows, "LIVE": block.live or block.rows, "SPLIT": block.split, "SLOTS": block.slots}
        values = {**group, **rows, "HIDDEN": self.hidden[0], "FAR_WARP": FAR_WARPS.start, "WARPS": WARPS}
        integers = {name: str(int(value)) for name, value in values.items()}
        return super().defines(block) | integers | {"SQUASH": f"{float(self.squash)!r}f"}

    @property
    def depth(self) -> int:
        return len(self.hidden)

    @property
    def outputs(self) -> int:
        """Outputs of a network per feature."""
        return Shape(self.scales, self.waves).parameters if self.conditional else 1

    @property
    def plan(self) -> Plan:
        return plan(self.features, self.context, self.outputs, self.hidden)

    @property
    def blocks(self) -> int:
        """LDU blocks: an upper shift, scales and a lower shift."""
        return self.networks // 2

    # Sizes padded to tiles: of a network's inputs, a hidden layer and the outputs.

    @property
    def inputs(self) -> int:
        return round_up(self.context + self.features, TILE)

    @property
    def units(self) -> int:
        return round_up(self.hidden[0], TILE)

    @property
    def head(self) -> int:
        return round_up(self.features * self.outputs, TILE)

    @property
    def biases(self) -> int:
        """Biases of one network."""
        return self.depth * self.units + self.head

    @property
    def source_bits(self) -> int:
        """Of the 32 bits of a packed index, those for the offset within one parameter."""
        parameters = 2 * self.networks * (self.depth + 1) + (0 if self.conditional else 5 * self.blocks + 2)
        return 32 - parameters.bit_length()  # there is also a zero

    @property
    def paired(self) -> bool:
        """Whether pairs of warps share pairs of rows of tiles in hidden layers, where rows are few."""
        return self.units < 2 * TILE * WARPS

    @property
    def wave_size(self) -> int:
        """Floats of one block's waves, WAVE_SIZE in common.cuh."""
        return 0 if self.conditional else round_up(self.scales * (4 * self.waves + 1) * self.features, 4)

    # ---------------------------------------------------------------- degrees that the inverse solves together

    @property
    def direct(self) -> bool:
        """Whether the inverse computes first layers without products: with single degrees and few inputs.

        With conditional waves it would save little, and take scarce shared memory.
        """
        inputs = self.context + self.features
        return not self.conditional and self.group.degrees == 1 and self.units * inputs <= _MOST_DIRECT

    @property
    def inner_weights(self) -> int:
        """Weights of a group, or of a first layer, that the inverse reads one by one."""
        return round_up(self.units * (self.context + self.features), 4) if self.direct else self.group.weights

    @cached_property
    def group(self) -> Group:
        """The largest group of degrees that the inverse can solve by one warp per row."""
        group, counts = Group(1), self.plan.hidden[0].rows
        degree_units = max(counts[m] - below(counts, m) for m in range(self.features))
        for degrees in range(2, min(self.features, LANES) + 1):  # a lane for every feature
            units = max(counts[end - 1] - below(counts, begin) for begin, end in self.ranges(degrees))
            rows, outputs = units + degree_units, round_up(degrees * self.outputs, LANES)
            stride = round_up(units, LANES)
            weights = (degrees + (self.depth - 1) * rows) * stride + rows * outputs
            if units > _MOST_UNITS or degree_units > LANES or weights > _MOST_INNER:
                break
            group = Group(degrees, units, degree_units, rows, stride, outputs, weights)
        return group

    def ranges(self, degrees: int) -> list[tuple[int, int]]:
        """The first degree of every group of this size, and its end."""
        return [(begin, min(begin + degrees, self.features)) for begin in range(0, self.features, degrees)]

    # ---------------------------------------------------------------- floats of shared memory, as kernels lay it out

    def forward_shared(self, block: Block, parts: int) -> int:
        """Of flow_forward, besides tables and prefetched tiles."""
        operands = 2 * block.operand(self.units) + block.operand(self.inputs)
        each = (self.head if self.conditional else TILE * parts) + 2 * self.features + self._exchange
        return operands + block.rows * each + 2 * (self.biases + self.wave_size)

    def backward_shared(self, block: Block, parts: int) -> int:
        """Of flow_backward."""
        operands = 2 * block.operand(self.units) + block.operand(self.head)
        each = TILE * parts + self.features + self.context + 1 + self._exchange
        return operands + block.rows * each + self.wave_size

    def inverse_shared(self, block: Block, parts: int) -> int:
        """Of flow_inverse."""
        group, operands = self.group, self.depth * block.operand(self.units) + block.operand(self.inputs)
        if group.degrees > 1:
            copies = 4 if block.rows == 8 else 2  # halves, also of the next group where that overlaps
            known = copies * (self.depth * group.unit_stride + group.output_stride + 4)
        else:
            known = self.units if self.residual else 0
        each = TILE * parts + 4 * self.features + 1 + (self.outputs if self.conditional else 0) + known
        constants = 2 * (self.biases + self.inner_weights) + self.wave_size + round_up(self.features, 4)
        return operands + block.rows * each + constants

    @property
    def _exchange(self) -> int:
        return 2 * WARPS * TILE if self.paired else 0


def round_up(number: int, multiple: int) -> int:
    """The next multiple."""
    return -(-number // multiple) * multiple
