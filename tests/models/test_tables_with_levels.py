"""Tables with categories, repeated and missing values: their densities under a flow with drawn weights."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from looks_trained import look_trained
from sinuflow import SinusoidalFlow, TableModel, fit_table
from sinuflow.bijections.base import CERTIFIED
from sinuflow.data import Preprocessor, cells
from sinuflow.data.sources import seeded
from sinuflow.flows.categorical import CategoricalMADE
from sinuflow.flows.mixed import MixedFlow
from tests.data.tables import survey_of

DOUBLE = torch.float64


def make_frame(rows: int = 400) -> pd.DataFrame:
    """A category with missing values, a column with 60 % zeros, and a plain one."""
    random = np.random.default_rng(0)
    kind = random.choice(["red", "green", "blue"], size=rows, p=[0.6, 0.3, 0.1])
    rain = np.where(random.random(rows) < 0.6, 0.0, random.gamma(2, 3, rows))
    return pd.DataFrame(
        {
            "kind": np.where(random.random(rows) < 0.2, None, kind),
            "rain": rain,
            "plain": 1 + 2 * random.normal(size=rows) + (rain > 0),
        }
    )


def model_of(frame: pd.DataFrame, context: tuple[str, ...] = (), seed: int = 0, **options: Any) -> TableModel:
    """A model whose flow has drawn weights, and the rows of its table."""
    surveyed = survey_of(frame, context=list(context))
    preprocessor = Preprocessor(surveyed.columns(np.arange(len(frame))), **options)
    x, _ = numbers_of(preprocessor, surveyed)
    preprocessor.initialize(x, seeded(0))
    side, sizes = preprocessor.context_width, preprocessor.sizes
    flow = SinusoidalFlow(
        len(preprocessor.axis_features), side + sum(sizes), "full", blocks=2, scales=1, waves=2, hidden=(16,)
    )
    look_trained(flow, seed, strength=0.7, frequency=(0.05, 1.0))
    if sizes:
        categories = CategoricalMADE(sizes, (16,), side)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in categories.parameters():
                scale = 2 / p.shape[-1] ** 0.5 if p.dim() == 2 else 0.5
                p.copy_(scale * torch.randn(p.shape, generator=generator))
        flow = MixedFlow(categories, flow)
    model = TableModel(flow.double().eval(), preprocessor, None, torch.zeros(0), [], {})
    model.rows = x
    return model


def numbers_of(preprocessor, surveyed):
    columns = [*preprocessor.features, *preprocessor.context_columns]
    rows = torch.from_numpy(surveyed.numbers[:, [preprocessor.columns.index(c) for c in columns]])
    return rows.split([len(preprocessor.features), len(preprocessor.context_columns)], dim=1)


def quadrature(preprocessor: Preprocessor, place: int, cells: int = 240) -> tuple[torch.Tensor, torch.Tensor]:
    """Values of a column with an axis, and the widths of the cells around them, which cover all but its far tails."""
    edges = torch.linspace(-9, 9, 2 * cells + 1, dtype=DOUBLE)
    scores = torch.zeros(len(preprocessor.axis_features), len(edges), dtype=DOUBLE)
    scores[place] = edges
    x = preprocessor.maps.invert(scores, None, CERTIFIED).x[place]
    return x[1::2], x[2::2] - x[:-2:2]


def mass(model: TableModel, columns: list[tuple[torch.Tensor, torch.Tensor]], context=None) -> float:
    """The sum of the density over the product of these values, times their weights."""
    values = torch.cartesian_prod(*(v for v, _ in columns)).view(-1, len(columns))
    weights = torch.cartesian_prod(*(w for _, w in columns)).view(-1, len(columns)).prod(1)
    if context is not None:
        context = context.expand(len(values), -1)
    return float((model.score_numbers(values, context).exp() * weights).sum())


def atoms(*values: float) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(values, dtype=DOUBLE), torch.ones(len(values), dtype=DOUBLE)


def combinations(sizes):
    return torch.cartesian_prod(*map(torch.arange, sizes))


def together(*parts):
    """The values and weights of several ranges."""
    return tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))


@pytest.fixture(scope="module")
def model() -> TableModel:
    return model_of(make_frame())


def test_features_are_divided_into_levels_and_axes(model):
    preprocessor = model.preprocessor
    assert [c.name for c in preprocessor.features] == ["kind", "rain", "plain"]
    assert (preprocessor.level_features, preprocessor.axis_features) == ([0, 1], [1, 2])
    assert preprocessor.sizes == [4, 2]
    assert preprocessor.size == 4
    assert preprocessor.axes[0].atoms == ()


@pytest.fixture
def precise(monkeypatch):
    """More points in the cells of a row, whose number is what limits the precision of its density."""
    monkeypatch.setattr(cells, "POINTS", 512)


@pytest.mark.parametrize("seed", [0, 1])
def test_probabilities_and_densities_have_the_mass_one(seed, precise):
    model = model_of(make_frame(), seed=seed)
    kinds, plain = atoms(0.0, 1.0, 2.0, math.nan), quadrature(model.preprocessor, 1)
    everything = combinations(model.preprocessor.sizes)
    expected = model.flow.categories.log_prob(everything).exp().detach().view(4, 2)
    dry = [mass(model, [atoms(kind), atoms(0.0), plain]) for kind in kinds[0].tolist()]
    wet = [mass(model, [atoms(kind), quadrature(model.preprocessor, 0), plain]) for kind in kinds[0].tolist()]
    np.testing.assert_allclose(dry, expected[:, 0], rtol=3e-3)  # without rain, its axis is integrated out
    np.testing.assert_allclose(wet, expected[:, 1], rtol=5e-4)
    assert math.fsum([*dry, *wet]) == pytest.approx(1, abs=1e-3)
    assert max(*dry, *wet) > 3 * min(*dry, *wet)


def test_few_points_are_precise_enough(model):
    rain = together(atoms(0.0), quadrature(model.preprocessor, 0, 60))
    kinds, plain = atoms(0.0, 1.0, 2.0, math.nan), quadrature(model.preprocessor, 1, 60)
    assert mass(model, [kinds, rain, plain]) == pytest.approx(1, abs=2e-2)


def test_the_density_is_the_product_of_its_terms(model):
    """Of a row without cells: probabilities of the codes, the flow's density, and the slopes of the maps."""
    rows = torch.tensor([[1.0, 3.0, 4.0], [2.0, 0.5, 6.0]], dtype=DOUBLE)
    flow, preprocessor = model.flow, model.preprocessor
    codes = torch.tensor([[1, 1], [2, 1]])
    values = rows[:, 1:].mT.requires_grad_()
    y = preprocessor.whitening.value(preprocessor.maps.transform(values, None)[0])
    slopes = torch.stack([
        torch.autograd.grad(y[i, j], values, retain_graph=True)[0][:, j] for j in range(2) for i in range(2)
    ]).view(2, 2, 2)  # fmt: skip
    log_p = flow(None).log_prob(torch.cat([codes.double(), y.mT], dim=1)) + torch.linalg.slogdet(slopes)[1]
    torch.testing.assert_close(model.score_numbers(rows.detach(), None), log_p.detach(), rtol=1e-9, atol=1e-9)


def test_the_score_of_a_row_does_not_depend_on_the_others(model):
    rows = torch.tensor(
        [
            [0.0, 0.0, 5.0],
            [1.0, 2.5, 3.0],  # a point: no other row may make it a mean over cells
            [math.nan, 0.0, 9.0],
            [2.0, 7.0, -4.0],
            [math.inf, 0.0, 5.0],  # a category that was never seen
            [0.0, math.nan, 5.0],  # nothing was missing there
            [0.0, 0.0, math.nan],
        ],
        dtype=DOUBLE,
    )
    scores = model.score_numbers(rows, None)
    assert scores.isfinite().all()
    alone = torch.cat([model.score_numbers(row[None], None) for row in rows])
    torch.testing.assert_close(alone, scores, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(model.score_numbers(rows.flip(0), None).flip(0), scores, rtol=1e-10, atol=1e-10)
    many = model.score_numbers(torch.cat([model.rows.repeat(11, 1), rows]), None)
    assert len(many) > 4096  # rows that are scored at a time
    torch.testing.assert_close(many[-len(rows) :], scores, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("row", "unknown"),
    [
        ((math.inf, 2.5, 3.0), [0]),  # a category that was never seen
        ((math.inf, 0.0, 3.0), [0]),
        ((1.0, math.nan, 3.0), [1]),  # nothing was missing there
        ((math.inf, math.nan, -2.0), [0, 1]),
    ],
)
def test_a_value_that_a_column_cannot_have_is_not_used_to_judge_the_others(row, unknown, monkeypatch):
    model = model_of(make_frame(), seed=1)
    possible = [[value] for value in row]
    for i in unknown:
        possible[i] = [[0.0, 1.0, 2.0, math.nan], [0.0, *quadrature(model.preprocessor, 0)[0].tolist()]][i]
    values = torch.cartesian_prod(*(torch.tensor(v, dtype=DOUBLE) for v in possible))
    weights = torch.ones(len(values), dtype=DOUBLE)
    if 1 in unknown:  # a number among them has a density
        widths = torch.cat([torch.ones(1), quadrature(model.preprocessor, 0)[1]])
        weights = widths.repeat(len(values) // len(widths))
    monkeypatch.setattr(cells, "POINTS", 512)
    expected = (model.score_numbers(values, None).exp() * weights).sum().log() - len(unknown) * math.log(402)
    score = model.score_numbers(torch.tensor([row], dtype=DOUBLE), None)
    assert float(score) == pytest.approx(float(expected), abs=0.02)
    monkeypatch.undo()
    assert float(model.score_numbers(torch.tensor([row], dtype=DOUBLE), None)) == pytest.approx(float(score), abs=0.3)


def test_drawn_rows_have_the_levels_and_points_that_they_were_drawn_from(model):
    flow, preprocessor = model.flow, model.preprocessor
    y = flow().sample((500,), torch.Generator().manual_seed(0))
    x = preprocessor.inverse(y, seeded(0))
    levels, cells = preprocessor.locate(x)
    assert not levels.unknown.any()
    rains = y[:, 1] == 1
    assert 100 < rains.sum() < 400
    assert torch.equal(x[~rains, 1], torch.zeros(int((~rains).sum()), dtype=DOUBLE))
    # Draws below the least value have that value, which is an atom here, and those of shares end at the largest.
    rain = preprocessor.features[1]
    inside = ~rains | ((x[:, 1] > rain.floor) & (x[:, 1] < rain.ceiling))
    assert inside.double().mean() > 0.9
    assert torch.equal(levels.codes[inside], y[inside, :2].long())
    expected = torch.stack([torch.zeros(500, dtype=torch.bool), rains], dim=1)
    assert torch.equal(levels.continuous[inside], expected[inside])
    back, _ = preprocessor.points(cells, torch.full_like(cells.start, 0.5))
    torch.testing.assert_close(back[rains & inside], y[rains & inside, 2:], rtol=1e-6, atol=1e-6)
    assert torch.equal(x[:, 0].isnan(), y[:, 0] == 3)
    assert torch.equal(preprocessor.inverse(y, seeded(0)).nan_to_num(9e9), x.nan_to_num(9e9))


def test_training_batches_have_codes_and_points_of_cells(model, precise):
    preprocessor = model.preprocessor
    cells = preprocessor.prepare(model.rows)
    batch = preprocessor.encode(cells, None, seeded(0))
    other = preprocessor.encode(cells, None, seeded(1))
    levels, _ = preprocessor.locate(model.rows)
    assert torch.equal(batch.x[:, :2].long(), levels.codes)
    assert batch.x.dtype == torch.float32
    rains = levels.continuous[:, 1]
    torch.testing.assert_close(batch.x[rains, 2:], other.x[rains, 2:], rtol=0, atol=1e-5)  # points
    assert float((batch.x[~rains, 2] - other.x[~rains, 2]).abs().median()) > 0.1  # noise where it does not rain
    # The mean density at random points is that of the fixed ones.
    rows = torch.tensor([[1.0, 0.0, 5.0], [math.nan, 0.0, 2.0], [0.0, 3.0, 4.0]], dtype=DOUBLE).repeat(20_000, 1)
    y, offset = preprocessor.draw(rows, seeded(0))
    with torch.no_grad():
        drawn = (model.flow().log_prob(y) + offset).exp().view(20_000, 3).mean(0)
    np.testing.assert_allclose(drawn, model.score_numbers(rows[:3], None).exp(), rtol=0.03)


def test_a_preprocessor_survives_json(model):
    preprocessor = model.preprocessor
    stored = json.loads(json.dumps(preprocessor.as_dict()))
    assert stored["levels"] == "atoms"
    again = Preprocessor.from_dict(stored, preprocessor.tensors())
    assert (again.level_features, again.axis_features, again.sizes) == (
        preprocessor.level_features,
        preprocessor.axis_features,
        preprocessor.sizes,
    )
    for ours, theirs in zip(preprocessor.locate(model.rows), again.locate(model.rows), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b)
    y = model.flow().sample((50,), torch.Generator().manual_seed(0))
    assert torch.equal(*(p.inverse(y, seeded(0)).nan_to_num(9e9) for p in (preprocessor, again)))


def test_without_levels_all_values_are_on_one_axis():
    """As models were for a while before levels: a file without "levels" keeps that meaning."""
    preprocessor = model_of(make_frame(), levels="none").preprocessor
    stored = json.loads(json.dumps(preprocessor.as_dict()))
    assert "levels" not in stored
    again = Preprocessor.from_dict(stored, preprocessor.tensors())
    assert (again.level_features, again.axis_features, again.levels) == ([], [0, 1, 2], None)
    x = torch.tensor([[math.nan, 0.0, 5.0], [1.0, 2.0, 3.0]], dtype=DOUBLE)
    assert torch.equal(again.locate(x)[1].start, preprocessor.locate(x)[1].start)
    assert again.locate(x)[0].codes.shape == (2, 0)


def test_missing_numbers_have_a_probability_next_to_a_density(precise):
    random = np.random.default_rng(4)
    size = np.where(random.random(400) < 0.3, np.nan, random.normal(size=400))
    model = model_of(pd.DataFrame({"size": size, "weight": np.nan_to_num(size) + random.normal(size=400)}))
    assert model.preprocessor.sizes == [2]
    weight, present = quadrature(model.preprocessor, 1), model.flow.categories.log_prob(torch.tensor([[0], [1]]))
    missing = mass(model, [atoms(math.nan), weight])
    known = mass(model, [quadrature(model.preprocessor, 0), weight])
    np.testing.assert_allclose([missing, known], present.detach().exp(), rtol=3e-3)


# ---------------------------------------------------------------- many categories


def test_grouped_categories_share_the_probability_of_their_level():
    random = np.random.default_rng(0)
    weights = 1 / np.arange(1, 301)
    names = random.choice([f"n{i}" for i in range(300)], size=3000, p=weights / weights.sum())
    model = model_of(pd.DataFrame({"name": names, "x": random.normal(size=3000)}))
    preprocessor = model.preprocessor
    column = preprocessor.features[0]
    assert preprocessor.sizes[0] < len(column.atoms)
    everything = torch.stack([torch.tensor(column.atoms), torch.full((len(column.atoms),), 0.3)], dim=1).double()
    codes = preprocessor.locate(everything)[0].codes[:, 0]
    scores = model.score_numbers(everything, None)
    group = int(torch.bincount(codes).argmax())
    members = (codes == group).nonzero().flatten()
    assert len(members) > 1
    # Members of a level differ by their shares alone.
    masses = torch.tensor(column.masses, dtype=DOUBLE)[members]
    shares = (masses / masses.sum()).log()
    torch.testing.assert_close(scores[members] - scores[members[0]], shares - shares[0], rtol=1e-9, atol=1e-9)
    y, offset = preprocessor.draw(everything, seeded(0))  # a point, without noise
    torch.testing.assert_close(model.flow().log_prob(y).detach() + offset, scores, rtol=1e-9, atol=1e-9)
    total = mass(model, [atoms(*column.atoms), quadrature(preprocessor, 0, 60)])
    assert total == pytest.approx(1, abs=5e-3)
    level = mass(model, [atoms(*members.double().tolist()), quadrature(preprocessor, 0, 60)])
    own = model.flow.categories.log_prob(torch.tensor([[group]])).detach().exp()
    assert level == pytest.approx(float(own), rel=1e-2)


# ---------------------------------------------------------------- tables without a continuous part


def test_a_table_of_categories_alone_has_the_mass_one():
    frame = make_frame()[["kind"]].assign(other=np.random.default_rng(1).choice(["a", "b"], size=400, p=[0.8, 0.2]))
    model = model_of(frame)
    assert (model.preprocessor.level_features, model.preprocessor.axis_features) == (
        [0],
        [1],
    )  # one of them is on an axis
    assert mass(model, [atoms(0, 1, 2, math.nan), atoms(0, 1)]) == pytest.approx(1, abs=2e-2)
    stored = json.loads(json.dumps(model.preprocessor.as_dict()))
    again = Preprocessor.from_dict(stored, model.preprocessor.tensors())
    assert (again.level_features, again.axis_features) == ([0], [1])
    y = model.flow().sample((300,), torch.Generator().manual_seed(0))
    x = model.preprocessor.inverse(y, seeded(0))
    levels, cells = model.preprocessor.locate(x)
    assert torch.equal(levels.codes, y[:, :1].long())
    # The drawn point of the axis is in the cell of the value.
    u = torch.special.ndtr(model.preprocessor.whitening.inverse_value(y[:, 1:].mT))
    assert bool(((u >= cells.start - 1e-9) & (u <= cells.start + cells.width + 1e-9)).all())


def test_a_single_category_has_the_mass_one():
    model = model_of(make_frame()[["kind"]])
    assert (model.preprocessor.level_features, model.preprocessor.axis_features) == ([], [0])
    assert isinstance(model.flow, SinusoidalFlow)
    assert mass(model, [atoms(0, 1, 2, math.nan)]) == pytest.approx(1, abs=2e-2)
    assert "levels" not in model.preprocessor.as_dict()


@pytest.mark.parametrize("value", [5.0, "five", True])
def test_a_column_of_one_value_and_missing_ones(value, tmp_path):
    frame = pd.DataFrame({"only": pd.array([value, None, value, value] * 30, dtype=object)})
    model = fit_table(frame, steps=30, progress=False, device="cpu", architecture={"hidden": (8,), "blocks": 1})
    both = pd.DataFrame({"only": pd.array([value, None], dtype=object)})
    p = np.exp(model.log_prob(both))
    assert p.sum() == pytest.approx(1, abs=1e-2)
    assert p[0] == pytest.approx(0.75, abs=0.1)
    drawn = model.sample(400, seed=0)["only"].to_pylist()
    assert set(drawn) == {value, None}
    assert drawn.count(value) / 400 == pytest.approx(p[0], abs=0.08)


# ---------------------------------------------------------------- contexts


def test_conditional_densities_have_the_mass_one_in_every_context(monkeypatch):
    monkeypatch.setattr(cells, "POINTS", 128)
    frame = make_frame().assign(
        place=np.random.default_rng(2).choice(["in", "out", "on"], size=400),
        hour=np.where(np.arange(400) % 9 == 0, np.nan, np.random.default_rng(3).normal(size=400)),
    )
    model = model_of(frame, context=("place", "hour"))
    preprocessor = model.preprocessor
    assert preprocessor.context_width == 3 + 2  # one-hot, the number, and whether it is missing
    rain = together(atoms(0.0), quadrature(preprocessor, 0, 40))
    plain = quadrature(preprocessor, 1, 40)
    masses = []
    for context in ([0.0, -1.0], [2.0, 0.7], [1.0, math.nan]):
        side = torch.tensor([context], dtype=DOUBLE)
        assert mass(model, [atoms(0, 1, 2, math.nan), rain, plain], side) == pytest.approx(1, abs=1e-2)
        masses.append(mass(model, [atoms(0), atoms(0.0), plain], side))
    assert max(masses) - min(masses) > 1e-3  # the context matters
    rows = torch.tensor([[0.0, 0.0, 1.0], [math.inf, 0.0, 1.0], [0.0, math.nan, 1.0]], dtype=DOUBLE)
    side = torch.tensor([[0.0, -1.0], [2.0, 0.7], [1.0, math.nan]], dtype=DOUBLE)
    alone = torch.cat([model.score_numbers(row[None], c[None]) for row, c in zip(rows, side, strict=True)])
    torch.testing.assert_close(model.score_numbers(rows, side), alone, rtol=1e-10, atol=1e-10)


def test_the_encoding_of_a_context():
    frame = pd.DataFrame(
        {"x": np.arange(50.0) ** 2, "place": ["in", "out"] * 25, "hour": [1.0, np.nan, 3.0, 5.0, 7.0] * 10}
    )
    preprocessor = model_of(frame, context=("place", "hour")).preprocessor
    rows = torch.tensor([[1.0, 3.0], [0.0, math.nan], [math.inf, 5.0]], dtype=DOUBLE)
    encoded = preprocessor.context(rows)
    assert encoded[:, :2].tolist() == [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]  # the last was never seen
    assert encoded[1, 2:].tolist() == [0.0, 1.0]
    assert encoded[[0, 2], 3].tolist() == [0.0, 0.0]
    assert float(encoded[2, 2] - encoded[0, 2]) > 0
