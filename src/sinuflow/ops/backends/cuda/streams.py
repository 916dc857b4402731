"""Assignment of the tiles of masked matrices to warps, and the index that gathers them, as products.cuh reads them.

Every network of a flow has the same products, called stages here. Each matrix is cut into tiles of 16 by 16; those that
the mask leaves are assigned to warps, and a warp's tiles of all stages and networks form one stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...degrees import Layer, below
from .shape import LANES, TILE, WARPS, FlowShape, round_up

#: Marks a row of tiles that does not exist.
_NONE = 0xFFFF


class NetworkOffsets(NamedTuple):
    """Where a network's parameters begin among those of the flow: hidden layers, then the head."""

    weights: tuple[int, ...]
    biases: tuple[int, ...]


class Matrix(NamedTuple):
    """The matrix of a product."""

    layer: int
    places: Tensor  # (rows, columns): indices into the layer's weight, -1 for zeros


class Stage(NamedTuple):
    """Matrices that are multiplied at the same time, each with an operand of its own."""

    matrices: list[Matrix]
    assignment: Literal["rows", "halves", "pairs", "parts"]
    warps: range = range(WARPS)  # that take part in rows or halves


class Streams(NamedTuple):
    """The streams of a flow; all tensors are int32."""

    gather: Tensor  # indices of all tiles' elements
    starts: Tensor  # tiles before each warp's, and their total
    tables: Tensor  # see Plan in products.cuh
    tiles: int  # rows of tiles of all stages
    parts: int  # the most partial sums of a stage


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
    """For every group of degrees, its rows of every layer, with the columns that are known before the group.

    A single degree goes layer by layer, so that the layer below is complete. For larger groups, the columns known
    before the previous group form a stage of their own, for idle warps.
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
    """A group's rows, with the columns of the group before it (near), or of everything before that (far)."""
    (begin, end), matrices = ranges[group], []
    for i, layer in enumerate(shape.plan.layers):
        between = _known(shape, i, ranges[group - 1][0]) // TILE * TILE if group else 0  # tiles are aligned
        places = _places(layer)[_group_rows(shape, i, begin, end)].clone()
        if near:
            places[:, :between] = -1
        matrices.append(Matrix(i, places[:, : _known(shape, i, begin) if near else between]))
    return matrices


def inner_index(shape: FlowShape, networks: list[NetworkOffsets], zero: int) -> Tensor:
    """Gathers the weights that inverse.cu reads one by one: of every group, or of the first layer."""
    group = shape.group
    if shape.direct:
        first = torch.full((shape.units, shape.context + shape.features), -1)
        seen = _places(shape.plan.layers[0])
        first[: len(seen)] = seen
        flat = F.pad(first.flatten(), (0, shape.inner_weights - first.numel()), value=-1)
        return torch.cat([torch.where(flat < 0, zero, flat + n.weights[0]) for n in networks]).to(torch.int32)
    if group.degrees == 1:
        return torch.zeros(0, dtype=torch.int32)
    offsets, places = [], []
    for begin, end in group.ranges(shape.features):
        for i, layer in enumerate(shape.plan.layers):
            rows, known = _group_rows(shape, i, begin, end), _known(shape, i, begin)
            stride = group.output_stride if i == len(shape.hidden) else group.unit_stride
            part = torch.full((group.degrees if i == 0 else group.rows, stride), -1)
            last = shape.context + end if i == 0 else layer.columns[end - 1]
            inside = _places(layer)[rows, known:last].mT
            part[: inside.shape[0], : inside.shape[1]] = inside
            places.append(part.view(len(part), -1, LANES).mT.flatten())  # the values of one lane are contiguous
            offsets.append(torch.full_like(places[-1], i))
    flat, layers = torch.cat(places), torch.cat(offsets)
    starts = torch.tensor([network.weights for network in networks])
    return torch.where(flat < 0, zero, flat + starts[:, layers]).flatten().to(torch.int32)


def _group_rows(shape: FlowShape, i: int, begin: int, end: int) -> slice:
    """The rows of a layer with these degrees; of the head, with these features."""
    rows = shape.plan.layers[i].rows
    if i == len(shape.hidden):
        return slice(shape.outputs * begin, shape.outputs * end)
    return slice(below(rows, begin), rows[end - 1])


def _known(shape: FlowShape, i: int, begin: int) -> int:
    """Columns of a layer that are known before a group: earlier features, units of lower degrees."""
    return shape.context + begin if i == 0 else below(shape.plan.layers[i].columns, begin)


def _places(layer: Layer) -> Tensor:
    """The index of each element in the weight, -1 where it is masked."""
    rows, columns = len(layer.reach), layer.columns[-1]
    places = torch.arange(rows * columns).view(rows, columns)
    return torch.where(torch.arange(columns) < torch.tensor(layer.reach).unsqueeze(-1), places, -1)


def streams(stages: list[Stage], networks: list[NetworkOffsets], zero: int) -> Streams:
    """Assign the stages of all networks, in this order; ``zero`` is the index of a zero."""
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
    return Streams(gather, torch.tensor(starts, dtype=torch.int32), tables.flat(), len(tables.tiles), tables.most_parts)


class _Row(NamedTuple):
    """A row of tiles, or half of one."""

    layer: int
    matrix: int  # as the kernels count: layers, or their halves
    number: int  # in its matrix
    column: int  # of the first tile
    tiles: Tensor


class _Tables:
    """The tables of Plan in products.cuh."""

    def __init__(self) -> None:
        self.tiles, self.runs = list[list[int]](), list[list[int]]()
        self.matrices, self.places = list[int](), list[int]()
        self.most_parts = 1

    def add(self, stage: Stage) -> list[list[tuple[int, Tensor]]]:
        """For every warp, its tiles of a stage, with their layer."""
        rows = list[_Row]()
        for matrix in stage.matrices:
            self.matrices.append(len(self.places) + len(rows))
            for number, (column, tiles) in enumerate(_rows_of_tiles(matrix.places)):
                row = _Row(matrix.layer, matrix.layer, number, column, tiles)
                rows += _halves(row) if stage.assignment == "halves" else [row]
        counts = [len(row.tiles) for row in rows]
        if stage.assignment == "parts":
            assigned = equal_runs(counts)
        else:
            assigned = pairs_of_rows(counts) if stage.assignment == "pairs" else whole_rows(counts, stage.warps)
        first, before = len(self.tiles), 0
        # Runs of whole rows begin and end with a row; others have parts.
        end = 0 if stage.assignment == "parts" else first
        self.runs += [[run[0] + first, run[1] + end, *run[2:]] for run in assigned.runs]
        for i in assigned.order:
            if i is None:
                self.tiles.append([0, 0, 0, _NONE])
                continue
            after = before + len(rows[i].tiles)
            self.tiles.append([before, after, rows[i].column, rows[i].matrix << 16 | rows[i].number])
            before = after
        self.places += assigned.places + [0] * (len(assigned.order) - len(rows))
        self.most_parts = max(self.most_parts, assigned.parts)
        return [[(rows[i].layer, rows[i].tiles[a:b]) for i, a, b in pieces] for pieces in assigned.pieces]

    def flat(self) -> Tensor:
        """All tables, concatenated."""
        flat = [number for table in (self.tiles, self.runs) for row in table for number in row]
        return torch.tensor(flat + self.matrices + self.places, dtype=torch.int32)


def _halves(row: _Row) -> list[_Row]:
    cut = -(-len(row.tiles) // 2)
    first = row._replace(matrix=2 * row.matrix, tiles=row.tiles[:cut])
    return [first, first._replace(matrix=2 * row.matrix + 1, column=row.column + cut, tiles=row.tiles[cut:])]


def _rows_of_tiles(matrix: Tensor) -> list[tuple[int, Tensor]]:
    """For each row of tiles, the column of its first tile, and its tiles as fragments of a warp, (tiles, 256)."""
    rows, columns = matrix.shape
    whole = torch.full((round_up(rows, TILE), round_up(max(1, columns), TILE)), -1)
    whole[:rows, :columns] = matrix
    # (row of tiles, half, group, column of tiles, product, half, member) to the order of products and lanes.
    tiles = whole.view(-1, 2, 8, whole.shape[1] // TILE, 2, 2, 4).permute(0, 3, 4, 2, 6, 5, 1).flatten(2)
    result = []
    for row in tiles:
        used = (row >= 0).any(1).nonzero().flatten()
        first, end = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
        result.append((first, row[first:end]))
    return result


# ---------------------------------------------------------------- assignment of rows of tiles to warps


class Piece(NamedTuple):
    """Tiles ``begin`` to ``end`` of a row of tiles."""

    row: int
    begin: int
    end: int


class Assignment(NamedTuple):
    """Which warp multiplies which tiles of a stage."""

    order: Sequence[int | None]  # rows of tiles as they stand in the table; None for an empty entry
    runs: list[list[int]]  # for every warp, see Run in products.cuh; rows of tiles are counted by ``order``
    places: list[int]  # of every row: first part << 16 | parts
    pieces: list[list[Piece]]  # of every warp, in the order in which it takes them
    parts: int


def whole_rows(counts: list[int], warps: range) -> Assignment:
    """Every row of tiles to one of these warps; ``counts`` are the lengths of the rows."""
    shares: list[list[int]] = [[] for _ in range(WARPS)]
    shares[warps.start : warps.stop] = _balanced(counts, len(warps))
    order, runs = list[int](), list[list[int]]()
    for share in shares:
        runs.append([len(order), len(order) + len(share), 0, 0])
        order += share
    pieces = [[Piece(i, 0, counts[i]) for i in share] for share in shares]
    return Assignment(order, runs, [0] * len(counts), pieces, 0)


def pairs_of_rows(counts: list[int]) -> Assignment:
    """A long and a short row of tiles to a pair of warps: each warp multiplies about half of either row.

    A warp begins with its half of the other warp's row: the first warp of the second row, and vice versa.
    """
    ranked = sorted(range(len(counts)), key=lambda i: -counts[i])
    half = -(-len(ranked) // 2)
    pairs = [(ranked[i], ranked[-1 - i] if i < len(ranked) - half else None) for i in range(half)]
    loads = [counts[a] + (0 if b is None else counts[b]) for a, b in pairs]
    order, runs, pieces = list[int | None](), list[list[int]](), list[list[Piece]]()
    for share in _balanced(loads, WARPS // 2):
        mine: list[list[Piece]] = [[], []]
        first = len(order)
        for a, b in (pairs[i] for i in share):
            order += [a, b]
            cut = -(-counts[a] // 2)
            if b is not None:
                mine[0].append(Piece(b, 0, counts[b] // 2))
            mine[0].append(Piece(a, 0, cut))
            mine[1].append(Piece(a, cut, counts[a]))
            if b is not None:
                mine[1].append(Piece(b, counts[b] // 2, counts[b]))
        runs += [[first, len(order), 0, 0]] * 2
        pieces += mine
    return Assignment(order, runs, [0] * len(counts), pieces, 0)


def equal_runs(counts: list[int]) -> Assignment:
    """Equally long runs, which may end inside of a row: then its sums come in parts."""
    total = sum(counts)
    each = -(-total // WARPS)
    starts = [min(total, warp * each) for warp in range(WARPS + 1)]
    runs, places, pieces = [[0, 0, 0, 0] for _ in range(WARPS)], list[int](), [list[Piece]() for _ in range(WARPS)]
    part = before = 0
    for i, count in enumerate(counts):
        after, first = before + count, part
        for warp in range(WARPS):
            begin, end = max(before, starts[warp]), min(after, starts[warp + 1])
            if begin >= end:
                continue
            pieces[warp].append(Piece(i, begin - before, end - before))
            part += begin > before  # this warp has a part of its own
            if begin == starts[warp]:
                runs[warp] = [i, part, begin, starts[warp + 1]]
        places.append(first << 16 | (part - first + 1 if count else 0))
        part, before = part + 1, after  # a row without tiles has a place, too
    return Assignment(list(range(len(counts))), runs, places, pieces, part)


def _balanced(loads: list[int], count: int) -> list[list[int]]:
    """Distribute indices over so many shares: the heaviest first, to the lightest share."""
    shares: list[list[int]] = [[] for _ in range(count)]
    totals = [0] * count
    for i in sorted(range(len(loads)), key=lambda i: -loads[i]):
        least = totals.index(min(totals))
        shares[least].append(i)
        totals[least] += max(1, loads[i])
    return shares
