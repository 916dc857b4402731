"""Which warp multiplies which tiles in which order, as products.cuh wants it.

A flow is a sequence of products, the same for every network. Of each matrix, the tiles of 16 by 16
that the mask leaves are shared out to the warps (see sharing.py). So the tiles that
a warp needs are a stream, and packing a flow is one gather from its parameters, with an index that is
computed once.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ...degrees import Layer, below
from .shape import LANES, TILE, WARPS, FlowShape, round_up
from .sharing import Shares, equal_runs, pairs_of_rows, whole_rows

#: The number of a row of tiles that is not there.
_NOTHING = 0xFFFF


class NetworkOffsets(NamedTuple):
    """Where a network's numbers begin among the parameters of the flow: hidden layers, then the head."""

    weights: tuple[int, ...]
    biases: tuple[int, ...]


class Matrix(NamedTuple):
    """What stands in a product."""

    layer: int  # whose numbers they are
    places: Tensor  # (rows, columns), among the layer's own numbers, -1 for a zero


class Stage(NamedTuple):
    """Matrices that are multiplied at the same time; each with an operand of its own."""

    matrices: list[Matrix]
    sharing: Literal["rows", "halves", "pairs", "parts"]  # see sharing.py
    warps: range = range(WARPS)  # that take part in rows or halves


class Streams(NamedTuple):
    """For a whole flow; all tensors are int32."""

    gather: Tensor  # what to gather: an index
    starts: Tensor  # tiles before each warp's, and all
    tables: Tensor  # see Plan in products.cuh
    tiles: int  # rows of tiles of all stages
    parts: int  # that one stage can have


def forward_stages(shape: FlowShape) -> list[Stage]:
    """Layer by layer."""
    *hidden, head = [Matrix(i, _places(layer)) for i, layer in enumerate(shape.plan.layers)]
    last = Stage([head], "rows" if shape.conditional else "parts")
    return [*(Stage([matrix], "pairs" if shape.paired else "rows") for matrix in hidden), last]


def backward_stages(shape: FlowShape) -> list[Stage]:
    """The transposed matrices, from the head down."""
    first, *others = [Matrix(i, _places(layer).mT) for i, layer in enumerate(shape.plan.layers)]
    stages = [Stage([matrix], "pairs" if shape.paired else "rows") for matrix in reversed(others)]
    return [*stages, Stage([first], "parts")]


def inverse_stages(shape: FlowShape) -> list[Stage]:
    """For every group of degrees, its rows of every layer, as far as they depend on what is known before.

    A single degree goes layer by layer, so that the layer below is known altogether. For groups, what is known
    before the last group has been found is another product, for warps that have nothing else to do. Both come in
    halves, of which each begins with what it has found before.
    """
    if shape.group.degrees == 1:
        layers = list(enumerate(shape.plan.layers))[int(shape.direct) :]
        pieces = [(i, layer, m) for m in range(shape.features) for i, layer in layers]
        return [Stage([Matrix(i, _places(layer)[_group_rows(shape, i, m, m + 1)])], "parts") for i, layer, m in pieces]
    stages, ranges = list[Stage](), shape.group.ranges(shape.features)
    for g in range(len(ranges)):
        stages.append(Stage(_known_matrices(shape, ranges, g, near=True), "halves"))
        if g + 1 < len(ranges):
            far = _known_matrices(shape, ranges, g + 1, near=False)
            stages.append(Stage(far, "halves", shape.far_warps))
    return stages


def _known_matrices(shape: FlowShape, ranges: list[tuple[int, int]], group: int, near: bool) -> list[Matrix]:
    """What a group's rows see of what the group before it has found, or of all that was known before that."""
    (begin, end), matrices = ranges[group], []
    for i, layer in enumerate(shape.plan.layers):
        # Tiles begin at multiples of their size.
        between = _known(shape, i, ranges[group - 1][0]) // TILE * TILE if group else 0
        places = _places(layer)[_group_rows(shape, i, begin, end)].clone()
        if near:
            places[:, :between] = -1
        matrices.append(Matrix(i, places[:, : _known(shape, i, begin) if near else between]))
    return matrices


def inner_index(shape: FlowShape, networks: list[NetworkOffsets], zero: int) -> Tensor:
    """What to gather for the weights that are read one by one, in the order of inverse.cu.

    Of every network, every group; or its first layer.
    """
    group = shape.group
    if shape.direct:
        first = torch.full((shape.units, shape.context + shape.features), -1)
        seen = _places(shape.plan.layers[0])
        first[: len(seen)] = seen
        flat = torch.nn.functional.pad(first.flatten(), (0, shape.inner_numbers - first.numel()), value=-1)
        return torch.cat([torch.where(flat < 0, zero, flat + network.weights[0]) for network in networks]).to(
            torch.int32
        )
    if group.degrees == 1:
        return torch.zeros(0, dtype=torch.int32)
    offsets, places = [], []
    for begin, end in group.ranges(shape.features):
        for i, layer in enumerate(shape.plan.layers):
            rows, known = _group_rows(shape, i, begin, end), _known(shape, i, begin)
            head = i == len(shape.hidden)
            height = group.degrees if i == 0 else group.rows
            part = torch.full((height, group.output_stride if head else group.unit_stride), -1)
            last = shape.context + end if i == 0 else layer.columns[end - 1]
            inside = _places(layer)[rows, known:last].mT
            part[: inside.shape[0], : inside.shape[1]] = inside
            # A lane's numbers are neighbours.
            places.append(part.view(height, -1, LANES).mT.flatten())
            offsets.append(torch.full_like(places[-1], i))
    flat, layers = torch.cat(places), torch.cat(offsets)
    starts = torch.tensor([network.weights for network in networks])
    return torch.where(flat < 0, zero, flat + starts[:, layers]).flatten().to(torch.int32)


def _group_rows(shape: FlowShape, i: int, begin: int, end: int) -> slice:
    """The rows of a layer for these degrees; of the head, for these features."""
    rows = shape.plan.layers[i].rows
    if i == len(shape.hidden):
        return slice(shape.outputs * begin, shape.outputs * end)
    return slice(below(rows, begin), rows[end - 1])


def _known(shape: FlowShape, i: int, begin: int) -> int:
    """Columns of a layer that are known when a group begins: features before it, units of lower degrees."""
    return shape.context + begin if i == 0 else below(shape.plan.layers[i].columns, begin)


def _places(layer: Layer) -> Tensor:
    """Where each number of a matrix is among them, -1 where it is masked."""
    rows, columns = len(layer.reach), layer.columns[-1]
    places = torch.arange(rows * columns).view(rows, columns)
    return torch.where(torch.arange(columns) < torch.tensor(layer.reach).unsqueeze(-1), places, -1)


def streams(stages: list[Stage], networks: list[NetworkOffsets], zero: int) -> Streams:
    """Share out the stages of all networks, in this order; ``zero`` is where a number is that is always zero."""
    runs: list[list[Tensor]] = [[torch.empty((0, TILE * TILE), dtype=torch.int64)] for _ in range(WARPS)]
    owners: list[list[int]] = [[] for _ in range(WARPS)]
    tables = _Tables()
    for stage in stages:
        for warp, pieces in enumerate(tables.add(stage)):
            runs[warp] += [tiles for _, tiles in pieces]
            owners[warp] += [layer for layer, tiles in pieces for _ in tiles]
    offsets = torch.tensor([network.weights for network in networks])
    gathered, starts = [], [0]
    for run, owner in zip(runs, owners, strict=True):
        places = torch.cat(run)
        at = offsets[:, torch.tensor(owner, dtype=torch.int64)].unsqueeze(-1) + places
        gathered.append(torch.where(places < 0, zero, at).flatten())
        starts.append(starts[-1] + len(networks) * len(places))
    gather = torch.cat(gathered).to(torch.int32)
    return Streams(
        gather, torch.tensor(starts, dtype=torch.int32), tables.joined(), len(tables.tiles), tables.most_parts
    )


class _Tables:
    """What products.cuh has to know of the stages."""

    def __init__(self) -> None:
        self.tiles, self.runs = list[list[int]](), list[list[int]]()
        self.matrices, self.places = list[int](), list[int]()
        self.most_parts = 1

    def add(self, stage: Stage) -> list[list[tuple[int, Tensor]]]:
        """For every warp, the tiles of a stage that it takes, with their layer."""
        rows = list[_Row]()
        for matrix in stage.matrices:
            self.matrices.append(len(self.places) + len(rows))
            for number, (column, tiles) in enumerate(_rows_of_tiles(matrix.places)):
                whole = _Row(matrix.layer, matrix.layer, number, column, tiles)
                rows += _halves(whole) if stage.sharing == "halves" else [whole]
        shares = _shares(stage, [len(row.tiles) for row in rows])
        first, before = len(self.tiles), 0
        # Runs of whole rows begin and end with a row; others have parts.
        self.runs += [
            [run[0] + first, run[1] + (first if stage.sharing != "parts" else 0), *run[2:]] for run in shares.runs
        ]
        for i in shares.order:
            if i is None:
                self.tiles.append([0, 0, 0, _NOTHING])
                continue
            after = before + len(rows[i].tiles)
            self.tiles.append([before, after, rows[i].column, rows[i].matrix << 16 | rows[i].number])
            before = after
        self.places += shares.places + [0] * (len(shares.order) - len(rows))
        self.most_parts = max(self.most_parts, shares.parts)
        return [[(rows[i].layer, rows[i].tiles[a:b]) for i, a, b in pieces] for pieces in shares.pieces]

    def joined(self) -> Tensor:
        """All of them, one after the other."""
        flat = [number for table in (self.tiles, self.runs) for row in table for number in row]
        return torch.tensor(flat + self.matrices + self.places, dtype=torch.int32)


def _shares(stage: Stage, counts: list[int]) -> Shares:
    if stage.sharing in ("rows", "halves"):
        return whole_rows(counts, stage.warps)
    return pairs_of_rows(counts) if stage.sharing == "pairs" else equal_runs(counts)


class _Row(NamedTuple):
    """A row of tiles, or half of one."""

    layer: int
    matrix: int  # as the kernels count: layers, or their halves
    number: int  # in its matrix
    column: int  # the first one that is not empty
    tiles: Tensor


def _halves(row: _Row) -> list[_Row]:
    cut = -(-len(row.tiles) // 2)
    first = row._replace(matrix=2 * row.matrix, tiles=row.tiles[:cut])
    return [first, first._replace(matrix=2 * row.matrix + 1, column=row.column + cut, tiles=row.tiles[cut:])]


def _rows_of_tiles(matrix: Tensor) -> list[tuple[int, Tensor]]:
    """For each row of tiles, its first column of tiles, and the tiles in the order of a warp's lanes, (tiles, 256)."""
    rows, columns = matrix.shape
    whole = torch.full((round_up(rows, TILE), round_up(max(1, columns), TILE)), -1)
    whole[:rows, :columns] = matrix
    # (row of tiles, half, group, column of tiles, product, half, member) to the order of products and lanes.
    tiles = whole.view(-1, 2, 8, whole.shape[1] // TILE, 2, 2, 4).permute(0, 3, 4, 2, 6, 5, 1).flatten(2)
    found = []
    for row in tiles:
        used = (row >= 0).any(1).nonzero().flatten()
        first, end = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
        found.append((first, row[first:end]))
    return found
