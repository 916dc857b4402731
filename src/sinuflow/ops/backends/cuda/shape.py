"""Constants that are compiled into the kernels of a flow, and the shared memory that these take."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...degrees import Plan, below, plan

#: Warps to a block.
WARPS = 16
#: Threads of a warp.
LANES = 32
#: Rows and columns of a tile of weights.
TILE = 16
#: Of a group: units of a layer, and weights. Of a first layer without products: weights.
_MOST_UNITS, _MOST_INNER, _MOST_DIRECT = 64, 7168, 4096

#: Properties of a shape that are compiled into its kernels, in capitals.
_COMPILED = (
    "features", "context", "residual", "outputs", "scales", "waves", "conditional", "networks", "direct", "paired",
    "source_bits",
)  # fmt: skip


@dataclass(frozen=True)
class FlowShape:
    """The shape of a flow whose networks are all alike."""

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
        """Outputs of a network per feature."""
        return 2 + self.scales * (3 * self.waves + 1) if self.conditional else 1

    @property
    def plan(self) -> Plan:
        """The layers of a network."""
        return plan(self.features, self.context, self.outputs, self.hidden)

    @property
    def blocks(self) -> int:
        """LDU blocks: an upper shift, scales and a lower shift."""
        return self.networks // 2

    @property
    def inputs(self) -> int:
        """Inputs of a network, padded to a multiple of 16."""
        return round_up(self.context + self.features, 16)

    @property
    def units(self) -> int:
        """Units of a hidden layer, padded."""
        return round_up(self.hidden[0], 16)

    @property
    def head(self) -> int:
        """Outputs of a network, padded."""
        return round_up(self.features * self.outputs, 16)

    @property
    def biases(self) -> int:
        """Biases of one network."""
        return len(self.hidden) * self.units + self.head

    @property
    def source_bits(self) -> int:
        """Of the 32 bits of a packed index, those for the offset within one parameter."""
        parameters = 2 * self.networks * (len(self.hidden) + 1) + (0 if self.conditional else 5 * self.blocks + 2)
        return 32 - parameters.bit_length()  # there is also a zero

    @property
    def streams(self) -> bool:
        """Whether hidden layers have skip connections."""
        return self.residual and len(self.hidden) > 2

    @property
    def paired(self) -> bool:
        """Whether pairs of warps share pairs of rows of tiles in hidden layers, where rows are few."""
        return self.units < 2 * TILE * WARPS

    @property
    def wave_size(self) -> int:
        """Floats of one block's waves, WAVE_SIZE in common.cuh."""
        return 0 if self.conditional else round_up(self.scales * (4 * self.waves + 1) * self.features, 4)

    def defines(self, block: Block) -> dict[str, str]:
        """The shape as the preprocessor takes it."""
        group = {"GROUP": self.group.degrees, "GROUP_UNITS": self.group.units, "DEGREE_UNITS": self.group.degree_units}
        rest = {"HIDDEN": self.hidden[0], "DEPTH": len(self.hidden), "FAR_WARP": self.far_warps.start, "WARPS": WARPS}
        rows = {"ROWS": block.rows, "LIVE": block.live or block.rows, "SPLIT": block.split, "SLOTS": block.slots}
        values = {name.upper(): getattr(self, name) for name in _COMPILED} | group | rest | rows
        return {name: str(int(value)) for name, value in values.items()} | {"SQUASH": f"{float(self.squash)!r}f"}

    # ---------------------------------------------------------------- shared memory, as the kernels lay it out

    def forward_shared(self, block: Block, tiles: int, parts: int) -> int:
        """Bytes that flow_forward takes."""
        operands = 2 * block.operand(self.units) + block.operand(self.inputs)
        each = (self.head if self.conditional else 16 * parts) + 2 * self.features + self._exchange
        constants = 2 * (self.biases + self.wave_size)
        stages = len(self.hidden) + 1
        return 4 * (block.ring + operands + block.rows * each + constants + _tables(stages, stages, tiles))

    def backward_shared(self, block: Block, tiles: int, parts: int) -> int:
        """Bytes that flow_backward takes."""
        operands = 2 * block.operand(self.units) + block.operand(self.head)
        each = 16 * parts + self.features + self.context + 1 + self._exchange
        stages = len(self.hidden) + 1
        tables = _tables(stages, stages, tiles)
        return 4 * (block.ring + operands + block.rows * each + self.wave_size + tables)

    def inverse_shared(self, block: Block, tiles: int, parts: int) -> int:
        """Bytes that flow_inverse takes."""
        depth = len(self.hidden)
        operands = depth * block.operand(self.units) + block.operand(self.inputs)
        group = self.group
        residual = self.units if self.streams else 0
        copies = 4 if block.rows == 8 else 2  # halves, also of the next group where that overlaps
        known = copies * (depth * group.unit_stride + group.output_stride + 4) if group.degrees > 1 else residual
        each = 16 * parts + 4 * self.features + 1 + (self.outputs if self.conditional else 0) + known
        constants = 2 * (self.biases + self.inner_weights) + self.wave_size + round_up(self.features, 4)
        groups = len(group.ranges(self.features))
        stages = 2 * groups - 1 if group.degrees > 1 else groups * (depth + 1 - self.direct)
        tables = _tables(stages, stages * (depth + 1) if group.degrees > 1 else stages, tiles)
        return 4 * (block.ring + operands + block.rows * each + constants + tables)

    @property
    def _exchange(self) -> int:
        return 2 * WARPS * TILE if self.paired else 0

    @property
    def direct(self) -> bool:
        """Whether the inverse computes first layers without products: with single degrees and few inputs.

        With conditional waves it would save little, and take scarce shared memory.
        """
        return (
            not self.conditional
            and self.group.degrees == 1
            and self.units * (self.context + self.features) <= _MOST_DIRECT
        )

    @property
    def inner_weights(self) -> int:
        """Weights of a group, or of a first layer, that the inverse reads one by one."""
        return round_up(self.units * (self.context + self.features), 4) if self.direct else self.group.weights

    @property
    def _most_units(self) -> int:
        """The most units of one degree in a hidden layer."""
        hidden = self.plan.hidden[0].rows
        return max(hidden[m] - below(hidden, m) for m in range(self.features))

    @property
    def far_warps(self) -> range:
        """Warps that are idle while four warps solve a group."""
        return range(4, WARPS)

    @cached_property
    def group(self) -> Group:
        """The largest group of degrees that the inverse can solve by one warp per row."""
        group = Group(1, 0, 0, 0, 0)
        for degrees in range(2, min(self.features, LANES) + 1):  # a lane for every feature
            hidden = self.plan.hidden[0].rows
            counts = [hidden[end - 1] - below(hidden, begin) for begin, end in _ranges(self.features, degrees)]
            larger = Group(degrees, max(counts), self._most_units, len(self.hidden), degrees * self.outputs)
            if larger.units > _MOST_UNITS or larger.degree_units > LANES or larger.weights > _MOST_INNER:
                break
            group = larger
        return group


@dataclass(frozen=True)
class Group:
    """Degrees that the inverse solves together; strides as in groups.cuh."""

    degrees: int
    units: int  # of a layer, at most
    degree_units: int  # likewise
    depth: int
    outputs: int

    @property
    def unit_stride(self) -> int:
        return round_up(self.units, LANES)

    @property
    def output_stride(self) -> int:
        return round_up(self.outputs, LANES)

    @property
    def weights(self) -> int:
        """Weights within a group."""
        if self.degrees == 1:
            return 0
        between = (self.depth - 1) * self.rows * self.unit_stride
        return self.degrees * self.unit_stride + between + self.rows * self.output_stride

    @property
    def rows(self) -> int:
        """Rows of a matrix between units of the group, padded by the units of one degree."""
        return self.units + self.degree_units

    def ranges(self, features: int) -> list[tuple[int, int]]:
        """The first degree of every group, and its end."""
        return _ranges(features, self.degrees)


def _ranges(features: int, size: int) -> list[tuple[int, int]]:
    return [(begin, min(begin + size, features)) for begin in range(0, features, size)]


@dataclass(frozen=True)
class Block:
    """The launch configuration of a thread block."""

    rows: int  # of the batch, for which there is memory
    split: bool  # whether activations are stored as two TF32 numbers
    slots: int  # tiles that a warp prefetches
    live: int = 0  # rows in use, if not all

    @property
    def ring(self) -> int:
        """Floats of prefetched tiles."""
        return WARPS * self.slots * TILE * TILE

    def operand(self, units: int) -> int:
        """Floats of an operand with so many activations per row."""
        return units * self.rows * (2 if self.split else 1)


#: For kernels that do not go through a flow row by row.
ANY_BLOCK = Block(8, True, 4)


def _tables(stages: int, matrices: int, tiles: int) -> int:
    return 5 * tiles + 4 * WARPS * stages + matrices


def round_up(number: int, multiple: int) -> int:
    """The next multiple."""
    return -(-number // multiple) * multiple
