"""The kernel density of the rows of a table."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sinuflow.data import Column
from sinuflow.data.kernel_density import KernelDensity
from sinuflow.data.sources import seeded

DOUBLE = torch.float64
SIZE = Column("size", "number", "double", rows=90)
GAP = Column("gap", "number", "double", rows=90, missing=0.2)
KIND = Column(
    "kind", "category", "string", rows=90, categories=("a", "b", "c"), atoms=(0.0, 1.0, 2.0), masses=(0.5, 0.3, 0.2)
)


def rows_of(*columns: Column, rows: int = 300, seed: int = 0) -> torch.Tensor:
    """Random rows of numbers for columns."""
    random = np.random.default_rng(seed)
    parts = []
    for column in columns:
        if column.kind == "category":
            parts.append(random.choice(3, p=[0.5, 0.3, 0.2], size=rows).astype(float))
        else:
            numbers = 5 + 3 * random.normal(size=rows)
            parts.append(np.where(random.random(rows) < column.missing, np.nan, numbers))
    return torch.from_numpy(np.stack(parts, axis=1))


def test_the_density_is_that_of_the_kernels():
    columns = [SIZE, GAP, KIND]
    tensors = {
        "median": torch.tensor([1.0, 2.0], dtype=DOUBLE),
        "width": torch.tensor([4.0, 8.0], dtype=DOUBLE),
        "scale": torch.tensor([0.5, 0.25], dtype=DOUBLE),
        "centres": torch.tensor([[0.0, 1.0, 0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 2.0, 0.0, 1.0, 0.0]], dtype=DOUBLE),
        "log_weights": torch.tensor([0.25, 0.75], dtype=DOUBLE).log(),
        "bandwidth": torch.tensor(0.7, dtype=DOUBLE),
    }
    density = KernelDensity(columns, [], tensors)
    spread, flag = math.sqrt(1 - 0.25 - 0.09 - 0.04), math.sqrt(0.2 * 0.8)
    size = math.asinh((3.0 - 1.0) / 4.0) / 0.5
    points = {
        (3.0, math.nan, 0.0): [size, 0.0, 1 / flag, 1 / spread, 0.0, 0.0],
        (3.0, 10.0, 2.0): [size, math.asinh(1.0) / 0.25, 0.0, 0.0, 0.0, 1 / spread],
        (3.0, 10.0, math.inf): [size, math.asinh(1.0) / 0.25, 0.0, 0.0, 0.0, 0.0],
    }
    for row, point in points.items():
        distances = ((np.array(point) - tensors["centres"].numpy()) ** 2).sum(1)
        expected = math.log(0.25 * math.exp(-distances[0] / 0.98) + 0.75 * math.exp(-distances[1] / 0.98))
        assert density.log_prob(torch.tensor([row], dtype=DOUBLE)).item() == pytest.approx(expected, rel=1e-9)


def test_a_density_given_a_context_is_the_joint_one_divided_by_that_of_the_context():
    x, side = rows_of(SIZE), rows_of(GAP, KIND, seed=1)
    density = KernelDensity.fit([SIZE], [GAP, KIND], x, side, seeded(0))
    joint = KernelDensity([SIZE, GAP, KIND], [], density.tensors())
    tensors = density.tensors()
    alone = {name: t[1:] if t.dim() == 1 and len(t) == 2 else t for name, t in tensors.items()}
    marginal = KernelDensity([GAP, KIND], [], alone | {"centres": tensors["centres"][:, 1:]})
    expected = joint.log_prob(torch.cat([x, side], dim=1)) - marginal.log_prob(side)
    torch.testing.assert_close(density.log_prob(x, side), expected)


def test_units_do_not_matter():
    x = rows_of(SIZE, GAP)
    scaled = x * torch.tensor([1e-6, 3.0], dtype=DOUBLE) + torch.tensor([0.0, 50.0], dtype=DOUBLE)
    first, second = (KernelDensity.fit([SIZE, GAP], [], rows, None, seeded(0)).log_prob(rows) for rows in (x, scaled))
    torch.testing.assert_close(first, second)


def test_what_is_rare_or_far_from_all_rows_is_less_likely():
    x = rows_of(SIZE, GAP, KIND, rows=2000)
    density = KernelDensity.fit([SIZE, GAP, KIND], [], x, None, seeded(0))
    usual = (5.0, 5.0, 0.0)
    rarer = [(15.0, 5.0, 0.0), (5.0, 12.0, 0.0), (5.0, 5.0, 2.0), (5.0, 5.0, math.inf), (math.inf, 5.0, 0.0)]
    scores = density.log_prob(torch.tensor([usual, *rarer], dtype=DOUBLE))
    assert bool((scores[1:] < scores[0]).all())
    assert float(scores[5]) < float(scores[1:5].min())
    # Two clusters: a row between them is far from both.
    halves = torch.cat([torch.randn(500, 1, generator=seeded(0)) - 8, torch.randn(500, 1, generator=seeded(1)) + 8])
    density = KernelDensity.fit([SIZE], [], halves.double(), None, seeded(0))
    between, inside = density.log_prob(torch.tensor([[0.0], [8.0]], dtype=DOUBLE))
    assert between < inside - 3


def test_kernels_are_centres_of_rows():
    x = rows_of(SIZE, rows=101)
    tensors = KernelDensity.fit([SIZE], [], x, None, seeded(0)).tensors()
    assert len(tensors["centres"]) <= 50
    assert tensors["log_weights"].exp().sum().item() == pytest.approx(1.0)
    assert len(KernelDensity.fit([SIZE], [], rows_of(SIZE, rows=20_000), None, seeded(0)).tensors()["centres"]) <= 500


@given(
    st.integers(1, 40), st.integers(0, 2**32 - 1), st.lists(st.sampled_from([SIZE, GAP, KIND]), min_size=1, max_size=4)
)
@settings(max_examples=40, deadline=None)
def test_every_table_has_a_density(rows, seed, columns):
    x = rows_of(*columns, rows=rows, seed=seed)
    x = x.where(torch.rand(x.shape, generator=seeded(seed)) > 0.1, x[:1])  # repeated values, or nothing else
    density = KernelDensity.fit(columns, [], x, None, seeded(seed))
    assert bool(density.log_prob(x).isfinite().all())
    extreme = torch.tensor([-1e300, 1e300, torch.inf, torch.nan], dtype=DOUBLE).unsqueeze(1).expand(-1, x.shape[1])
    assert bool(density.log_prob(extreme).isfinite().all())
    assert density.log_prob(x[:0]).shape == (0,)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("centres", torch.zeros((0, 2), dtype=DOUBLE)),
        ("centres", torch.zeros((3, 3), dtype=DOUBLE)),
        ("centres", torch.zeros(3, dtype=DOUBLE)),
        ("width", torch.zeros(2, dtype=DOUBLE)),
        ("median", torch.full((2,), torch.nan, dtype=DOUBLE)),
        ("bandwidth", torch.tensor(0.0, dtype=DOUBLE)),
        ("bandwidth", torch.tensor(1.0)),
        ("log_weights", None),
    ],
)
def test_tensors_that_do_not_fit_are_refused(name, value):
    columns = [SIZE, replace(GAP, missing=0.0)]
    tensors = KernelDensity.fit(columns, [], rows_of(*columns), None, seeded(0)).tensors()
    KernelDensity(columns, [], tensors)
    wrong = {k: t for k, t in {**tensors, name: value}.items() if t is not None}
    with pytest.raises(ValueError, match=r"its kernel density|scales"):
        KernelDensity(columns, [], wrong)
