"""Sharing out the rows of tiles of a product to the warps of a block."""

from __future__ import annotations

from typing import NamedTuple

from .shape import WARPS


class Piece(NamedTuple):
    """Tiles ``begin`` to ``end`` of a row of tiles."""

    row: int
    begin: int
    end: int


class Shares(NamedTuple):
    """Who does what."""

    order: list[int | None]  # rows of tiles as they stand in the table; None for an empty place
    runs: list[list[int]]  # for every warp, see Run in products.cuh; rows of tiles are counted by ``order``
    places: list[int]  # of every row: first part << 16 | parts
    pieces: list[list[Piece]]  # of every warp, in the order in which it takes them
    parts: int


def whole_rows(counts: list[int], warps: range) -> Shares:
    """Every row of tiles to one of these warps; ``counts`` says how many tiles each has."""
    shares: list[list[int]] = [[] for _ in range(WARPS)]
    shares[warps.start : warps.stop] = _evenly(list(range(len(counts))), counts, len(warps))
    order, runs = list[int | None](), list[list[int]]()
    for share in shares:
        runs.append([len(order), len(order) + len(share), 0, 0])
        order += share
    pieces = [[Piece(i, 0, counts[i]) for i in share] for share in shares]
    return Shares(order, runs, [0] * len(counts), pieces, 0)


def pairs_of_rows(counts: list[int]) -> Shares:
    """Two rows of tiles, a long one and a short one, to two warps: each multiplies about half of either.

    The first warp begins with its half of the second row, the second one with its half of the first row; what
    each of them begins with is for the other one.
    """
    ranked = sorted(range(len(counts)), key=lambda i: -counts[i])
    half = -(-len(ranked) // 2)
    twos = [(ranked[i], ranked[-1 - i] if i < len(ranked) - half else None) for i in range(half)]
    loads = [counts[a] + (0 if b is None else counts[b]) for a, b in twos]
    order, runs, pieces = list[int | None](), list[list[int]](), list[list[Piece]]()
    for share in _evenly(list(range(len(twos))), loads, WARPS // 2):
        mine: list[list[Piece]] = [[], []]
        first = len(order)
        for two in share:
            a, b = twos[two]
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
    return Shares(order, runs, [0] * len(counts), pieces, 0)


def equal_runs(counts: list[int]) -> Shares:
    """Equal runs to the warps, which may end inside of a row: then its sums come in parts."""
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
            part += begin > before  # this warp makes a part of its own
            if begin == starts[warp]:
                runs[warp] = [i, part, begin, starts[warp + 1]]
        places.append(first << 16 | (part - first + 1 if count else 0))
        part, before = part + 1, after  # also a row without tiles has a place
    return Shares(list(range(len(counts))), runs, places, pieces, part)


def _evenly(things: list[int], loads: list[int], count: int) -> list[list[int]]:
    """The heaviest first, to who has least."""
    shares: list[list[int]] = [[] for _ in range(count)]
    totals = [0] * count
    for i in sorted(things, key=lambda i: -loads[i]):
        least = totals.index(min(totals))
        shares[least].append(i)
        totals[least] += max(1, loads[i])
    return shares
