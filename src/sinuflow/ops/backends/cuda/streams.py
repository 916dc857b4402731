"""Assignment of the tiles of masked matrices to warps, and the index that gathers them, as products.cuh reads them.

Every network of a flow has the same products, called stages here. Each matrix is cut into tiles of 16 by 16; those that
the mask leaves are assigned to warps, and a warp's tiles of all stages and networks form one stream.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...degrees import Layer, below
from .shape import FAR_WARPS, LANES, TILE, WARPS, FlowShape, round_up

#: For every network, where the weights (or biases) of its hidden layers and head begin among the parameters of a flow.
LayerOffsets = list[tuple[int, ...]]

#: Marks a row of tiles that does not exist.
_NONE = 0xFFFF


#: A layer, and for every element of a matrix its index in the layer's weight, -1 for zeros.
Matrix = tuple[int, Tensor]


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


# ---------------------------------------------------------------- the stages of each direction


def forward_stages(shape: FlowShape) -> list[Stage]:
    """Layer by layer."""
    *hidden, head = [(i, _places(layer)) for i, layer in enumerate(shape.plan.layers)]
    last = Stage([head], "rows" if shape.conditional else "parts")
    return [*(Stage([matrix], "pairs" if shape.paired else "rows") for matrix in hidden), last]


def backward_stages(shape: FlowShape) -> list[Stage]:
    """The transposed matrices, from the head down."""
    first, *others = [(i, _places(layer).mT) for i, layer in enumerate(shape.plan.layers)]
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
        return [Stage([(i, _places(layer)[_group_rows(shape, i, m, m + 1)])], "parts") for i, layer, m in pieces]
    stages, ranges = list[Stage](), shape.ranges(shape.group.degrees)
    for g in range(len(ranges)):
        stages.append(Stage(_known_matrices(shape, ranges, g, near=True), "halves"))
        if g + 1 < len(ranges):
            stages.append(Stage(_known_matrices(shape, ranges, g + 1, near=False), "halves", FAR_WARPS))
    return stages


def _known_matrices(shape: FlowShape, ranges: list[tuple[int, int]], group: int, near: bool) -> list[Matrix]:
    """A group's rows, with the columns of the group before it (near), or of everything before that (far)."""
    (begin, end), matrices = ranges[group], []
    for i, layer in enumerate(shape.plan.layers):
        between = _known(shape, i, ranges[group - 1][0]) // TILE * TILE if group else 0  # tiles are aligned
        places = _places(layer)[_group_rows(shape, i, begin, end)].clone()
        if near:
            places[:, :between] = -1
        matrices.append((i, places[:, : _known(shape, i, begin) if near else between]))
    return matrices


def inner_index(shape: FlowShape, weights: LayerOffsets, zero: int) -> Tensor:
    """Gathers the weights that inverse.cu reads one by one: of every group, or of the first layer."""
    group, offsets = shape.group, torch.tensor(weights)
    if shape.direct:
        seen = _places(shape.plan.layers[0])
        first = F.pad(seen, (0, 0, 0, shape.units - len(seen)), value=-1).flatten()
        places = F.pad(first, (0, shape.inner_weights - len(first)), value=-1)
        layers = torch.zeros(1, dtype=torch.int64)
    elif group.degrees == 1:
        return torch.zeros(0, dtype=torch.int32)
    else:
        parts, owners = [], []
        for begin, end in shape.ranges(group.degrees):
            for i, layer in enumerate(shape.plan.layers):
                rows, known = _group_rows(shape, i, begin, end), _known(shape, i, begin)
                last = shape.context + end if i == 0 else layer.columns[end - 1]
                inside = _places(layer)[rows, known:last].mT
                height = group.degrees if i == 0 else group.rows
                width = group.output_stride if i == shape.depth else group.unit_stride
                part = F.pad(inside, (0, width - inside.shape[1], 0, height - len(inside)), value=-1)
                parts.append(part.view(height, -1, LANES).mT.flatten())  # the values of one lane are contiguous
                owners.append(torch.full_like(parts[-1], i))
        places, layers = torch.cat(parts), torch.cat(owners)
    return torch.where(places < 0, zero, places + offsets[:, layers]).flatten().to(torch.int32)


def _group_rows(shape: FlowShape, i: int, begin: int, end: int) -> slice:
    """The rows of a layer with these degrees; of the head, with these features."""
    rows = shape.plan.layers[i].rows
    if i == shape.depth:
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


# ---------------------------------------------------------------- streams of tiles


class _Row(NamedTuple):
    """A row of tiles, or half of one."""

    layer: int
    matrix: int  # as the kernels count: layers, or their halves
    number: int  # in its matrix
    column: int  # of the first tile
    tiles: Tensor  # as fragments of a warp, (tiles, 256)


def streams(stages: list[Stage], weights: LayerOffsets, zero: int) -> Streams:
    """Assign the stages of all networks, in this order; ``zero`` is the index of a zero."""
    taken: list[list[Tensor]] = [[torch.empty((0, TILE * TILE), dtype=torch.int64)] for _ in range(WARPS)]
    owners: list[list[int]] = [[] for _ in range(WARPS)]
    # The tables of Plan in products.cuh.
    tiles, runs, matrices, places, parts = list[list[int]](), list[list[int]](), list[int](), list[int](), 1
    for stage in stages:
        rows = list[_Row]()
        for matrix in stage.matrices:
            matrices.append(len(places) + len(rows))
            rows += _rows_of_tiles(*matrix, halved=stage.assignment == "halves")
        assigned = _assign(stage, [len(row.tiles) for row in rows])
        # Runs of whole rows begin and end with a row; others have parts.
        first, end = len(tiles), 0 if stage.assignment == "parts" else len(tiles)
        runs += [[run[0] + first, run[1] + end, *run[2:]] for run in assigned.runs]
        before = 0
        for i in assigned.order:
            if i < 0:
                tiles.append([0, 0, 0, _NONE])
                continue
            after = before + len(rows[i].tiles)
            tiles.append([before, after, rows[i].column, rows[i].matrix << 16 | rows[i].number])
            before = after
        places += assigned.places + [0] * (len(assigned.order) - len(rows))
        parts = max(parts, assigned.parts)
        for warp, pieces in enumerate(assigned.pieces):
            taken[warp] += [rows[i].tiles[a:b] for i, a, b in pieces]
            owners[warp] += [rows[i].layer for i, a, b in pieces for _ in range(a, b)]
    gathered, starts, offsets = [], [0], torch.tensor(weights)
    for own, owner in zip(taken, owners, strict=True):
        index = torch.cat(own)
        at = offsets[:, torch.tensor(owner, dtype=torch.int64)].unsqueeze(-1) + index
        gathered.append(torch.where(index < 0, zero, at).flatten())
        starts.append(starts[-1] + len(weights) * len(index))
    tables = [number for table in (tiles, runs) for row in table for number in row] + matrices + places
    begins, flat = (torch.tensor(numbers, dtype=torch.int32) for numbers in (starts, tables))
    return Streams(torch.cat(gathered).to(torch.int32), begins, flat, len(tiles), parts)


def _rows_of_tiles(layer: int, places: Tensor, halved: bool) -> list[_Row]:
    """The rows of tiles of a matrix, without the zeros at both ends."""
    rows, columns = places.shape
    whole = F.pad(places, (0, round_up(max(1, columns), TILE) - columns, 0, -rows % TILE), value=-1)
    # (row of tiles, half, group, column of tiles, product, half, member) to the order of products and lanes.
    tiles = whole.view(-1, 2, 8, whole.shape[1] // TILE, 2, 2, 4).permute(0, 3, 4, 2, 6, 5, 1).flatten(2)
    result = []
    for number, row in enumerate(tiles):
        used = (row >= 0).any(1).nonzero().flatten()
        first, end = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
        cuts = [first, first + -(-(end - first) // 2), end] if halved else [first, end]
        for part, (a, b) in enumerate(pairwise(cuts)):
            result.append(_Row(layer, (len(cuts) - 1) * layer + part, number, a, row[a:b]))
    return result


# ---------------------------------------------------------------- assignment of rows of tiles to warps


class Assignment(NamedTuple):
    """Which warp multiplies which tiles of a stage."""

    order: list[int]  # rows of tiles as they stand in the table; -1 for an empty entry
    runs: list[list[int]]  # for every warp, see Run in products.cuh; rows of tiles are counted by ``order``
    pieces: list[list[tuple[int, int, int]]]  # of every warp, in its order: a row of tiles, its first tile and the end
    places: list[int]  # of every row: first part << 16 | parts
    parts: int = 0


def _assign(stage: Stage, counts: list[int]) -> Assignment:
    """Assign rows of tiles of these lengths."""
    if stage.assignment == "parts":
        return equal_runs(counts)
    return pairs_of_rows(counts) if stage.assignment == "pairs" else whole_rows(counts, stage.warps)


def whole_rows(counts: list[int], warps: range) -> Assignment:
    """Every row of tiles to one of these warps."""
    shares: list[list[int]] = [[] for _ in range(WARPS)]
    shares[warps.start : warps.stop] = _balanced(counts, len(warps))
    order, runs = list[int](), list[list[int]]()
    for share in shares:
        runs.append([len(order), len(order) + len(share), 0, 0])
        order += share
    return Assignment(order, runs, [[(i, 0, counts[i]) for i in share] for share in shares], [0] * len(counts))


def pairs_of_rows(counts: list[int]) -> Assignment:
    """A long and a short row of tiles to a pair of warps: each warp multiplies about half of either row.

    A warp begins with its half of the other warp's row: the first warp of the second row, and vice versa.
    """
    ranked = sorted(range(len(counts)), key=lambda i: -counts[i])
    half = -(-len(ranked) // 2)
    pairs = [(ranked[i], ranked[-1 - i] if i < len(ranked) - half else -1) for i in range(half)]
    sizes = [*counts, 0]  # the last is of the row -1, which does not exist
    order, runs, pieces = list[int](), list[list[int]](), list[list[tuple[int, int, int]]]()
    for share in _balanced([sizes[a] + sizes[b] for a, b in pairs], WARPS // 2):
        runs += [[len(order), len(order) + 2 * len(share), 0, 0]] * 2
        mine: list[list[tuple[int, int, int]]] = [[], []]
        for a, b in (pairs[i] for i in share):
            order += [a, b]
            cut, other = -(-sizes[a] // 2), sizes[b] // 2
            mine[0] += [(b, 0, other), (a, 0, cut)]
            mine[1] += [(a, cut, sizes[a]), (b, other, sizes[b])]
        pieces += mine
    return Assignment(order, runs, pieces, [0] * len(counts))


def equal_runs(counts: list[int]) -> Assignment:
    """Equally long runs, which may end inside of a row: then its sums come in parts."""
    total = sum(counts)
    starts = [min(total, warp * -(-total // WARPS)) for warp in range(WARPS + 1)]
    runs, places = [[0, 0, 0, 0] for _ in range(WARPS)], list[int]()
    pieces: list[list[tuple[int, int, int]]] = [[] for _ in range(WARPS)]
    part = before = 0
    for i, count in enumerate(counts):
        after, first = before + count, part
        for warp in range(WARPS):
            begin, end = max(before, starts[warp]), min(after, starts[warp + 1])
            if begin >= end:
                continue
            pieces[warp].append((i, begin - before, end - before))
            part += begin > before  # this warp has a part of its own
            if begin == starts[warp]:
                runs[warp] = [i, part, begin, starts[warp + 1]]
        places.append(first << 16 | (part - first + 1 if count else 0))
        part, before = part + 1, after  # a row without tiles has a place, too
    return Assignment(list(range(len(counts))), runs, pieces, places, part)


def _balanced(loads: list[int], count: int) -> list[list[int]]:
    """Distribute indices over so many shares: the heaviest first, to the lightest share."""
    shares: list[list[int]] = [[] for _ in range(count)]
    totals = [0] * count
    for i in sorted(range(len(loads)), key=lambda i: -loads[i]):
        least = totals.index(min(totals))
        shares[least].append(i)
        totals[least] += max(1, loads[i])
    return shares
