"""certify="end-to-end": every returned sample maps back to its noise."""

from __future__ import annotations

import copy
import os

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import sinuflow
from looks_trained import look_trained
from sinuflow import ArgumentError, InversionError
from sinuflow.flows.inversion import inverse_with_fallback
from tests.builders import CONDITIONINGS, trained_flow
from tests.models.small_images import gradients, quick_model

#: Number of flows in the property test.
CASES = int(os.environ.get("SINUFLOW_CASES", 60))


def ill_conditioned(dtype: torch.dtype = torch.float32, gain: float = 2.2) -> sinuflow.SinusoidalFlow:
    """A flow with networks about twice as steep as trained ones, so that rounding errors grow from block to block."""
    return trained_flow(6, 0, "shift", 0, dtype, {"gain": gain}, blocks=4)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=seeded(), dtype=dtype)


def relative_residual(
    flow: sinuflow.SinusoidalFlow, x: Tensor, z: Tensor, context: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """The residual in units of the tolerance of a dtype, by default that of z: at most 1 if a row is certified."""
    with torch.no_grad():
        residual = (flow.bijection(x, context)[0] - z).abs().amax(-1)
    tolerance = 1e-4 if (dtype or z.dtype) == torch.float32 else 1e-12
    return (residual / (tolerance + tolerance * z.abs().amax(-1))).nan_to_num(nan=torch.inf)


def test_end_to_end_refuses_what_the_layers_alone_certify():
    flow = ill_conditioned()
    x = flow().sample((200,), generator=seeded())
    assert (relative_residual(flow, x, noise(200, 6)) > 1).sum() > 150
    message = (
        r"rounding errors accumulate to a residual of 0\.\d+ over the whole flow, beyond the tolerance for "
        r"1\d\d of 200 samples\. Use float64 \(flow\.double\(\)\), or leave out certify"
    )
    d = flow()
    for draw in (d.sample, d.rsample, d.rsample_and_log_prob):
        with pytest.raises(InversionError, match=message):
            draw((200,), generator=seeded(), certify="end-to-end")


def test_what_maps_back_to_nan_is_not_certified():
    flow = ill_conditioned(gain=10.0)
    x = flow().sample((50,), generator=seeded())
    assert x.isfinite().all()
    assert flow.bijection(x)[0].isnan().any()
    with pytest.raises(InversionError, match=r"a residual of inf .* for 50 of 50 samples"):
        flow().sample((50,), generator=seeded(), certify="end-to-end")
    with pytest.raises(InversionError, match=r"for 50 of 50 samples\. Look for parameters of extreme size"):
        inverse_with_fallback(flow.bijection, noise(50, 6), None, "end-to-end")


def test_whatever_is_certified_maps_back_to_its_noise():
    random = np.random.default_rng(0)
    certified = refused = precise = 0
    for case in range(CASES):
        conditioning, features = CONDITIONINGS[case % 3], int(random.integers(1, 7))
        context = 2 * int(random.integers(2))
        dtype = torch.float64 if random.random() < 0.3 else torch.float32
        gain = 10 ** random.uniform(-0.3, 2)
        flow = trained_flow(features, context, conditioning, case, dtype, {"gain": gain}, blocks=3)
        c = torch.randn(4, context, generator=seeded(case), dtype=dtype) if context else None
        temperature = float(10 ** random.uniform(-2, 2))
        shape = (2, 4, features) if context else (8, features)
        z = temperature * torch.randn(shape, generator=seeded(case), dtype=dtype)
        try:
            x = flow(c).sample(2 if context else 8, seeded(case), temperature, certify="end-to-end")
            assert (relative_residual(flow, x, z, c) <= 1).all()
            certified += 1
        except InversionError:
            refused += 1
        rows, rows_context = z.reshape(-1, features), None if c is None else c.repeat(2, 1)
        try:
            drawn = inverse_with_fallback(flow.bijection, rows, rows_context, "end-to-end")
        except InversionError:
            continue
        dtype_used = drawn.values.dtype
        precise += dtype_used != dtype
        wide = copy.deepcopy(flow).to(dtype_used)
        measured = relative_residual(
            wide,
            drawn.values,
            rows.to(dtype_used),
            None if rows_context is None else rows_context.to(dtype_used),
            dtype,
        )
        assert (measured <= 1).all()

    assert certified > CASES // 4
    assert refused > CASES // 10
    assert precise


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_certifying_changes_no_draw_and_no_gradient(conditioning):
    flow = trained_flow(3, 2, conditioning)
    d = flow(torch.randn(4, 2, dtype=torch.float64))
    x = d.sample((5,), generator=seeded())
    assert torch.equal(d.sample((5,), generator=seeded(), certify="end-to-end"), x)
    gradients = []
    for certify in ("layers", "end-to-end"):
        y, log_p = d.rsample_and_log_prob((5,), generator=seeded(), certify=certify)
        assert torch.equal(y, x)
        gradients.append(torch.autograd.grad(y.sum() + log_p.sum(), list(flow.parameters())))
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.equal(ours, theirs)
    assert d.sample((0,), certify="end-to-end").shape == (0, 4, 3)


def test_invert_and_sample_use_the_same_tolerance():
    flow = ill_conditioned(gain=1.85)
    z = noise(500, 6)
    inverse = flow.invert(z, on_failure="return")
    assert torch.equal(inverse.converged, relative_residual(flow, inverse.x, z) <= 1)
    assert 0 < int(inverse.converged.sum()) < 500
    drawn = inverse_with_fallback(flow.bijection, z, None, "end-to-end")
    assert drawn.values.dtype == torch.float64
    assert (relative_residual(copy.deepcopy(flow).double(), drawn.values, z.double(), dtype=torch.float32) <= 1).all()


def test_a_compiled_draw_is_nan_where_it_is_not_certified():
    torch._dynamo.reset()
    flow = trained_flow(6, 0, "shift", 0, torch.float32, {"gain": 3.5}, blocks=2, scales=1, waves=1, hidden=(16,))

    def draw():
        return flow().rsample_and_log_prob((300,), certify="end-to-end")

    with torch.no_grad():
        torch.manual_seed(0)
        z = torch.randn(300, 6)
        torch.manual_seed(0)
        x, log_p = torch.compile(draw, fullgraph=True, backend="aot_eager")()
    missing = x.isnan().all(-1)
    assert torch.equal(missing, x.isnan().any(-1))
    assert torch.equal(missing, log_p.isnan())
    assert 0 < int(missing.sum()) < 300
    assert (relative_residual(flow, x[~missing], z[~missing]) <= 2).all()  # rounding in a compiled graph is its own


@pytest.fixture(scope="module")
def table() -> sinuflow.TableModel:
    random = np.random.default_rng(0)
    frame = pd.DataFrame({name: random.normal(size=100) for name in "abcdef"} | {"g": random.integers(3, size=100)})
    return sinuflow.fit_table(
        frame,
        context=["g"],
        conditioning="shift",
        steps=2,
        progress=False,
        device="cpu",
        architecture={"hidden": (16, 16)},
    )


@pytest.fixture(scope="module")
def images() -> sinuflow.ImageModel:
    return quick_model(gradients(), conditioning="shift")


def steeper_images(model: sinuflow.ImageModel, factor: float) -> sinuflow.ImageModel:
    steep = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in steep.flow.named_parameters():
            if "conditioner" in name:
                parameter.mul_(factor)
    return steep


def steeper_table(model: sinuflow.TableModel, gain: float) -> sinuflow.TableModel:
    steep = copy.deepcopy(model)
    look_trained(steep.flow, gain=gain)
    return steep


def test_fitted_models_certify_their_draws(table, images):
    rows = table.sample(9, {"g": 1}, seed=0)
    assert table.sample(9, {"g": 1}, seed=0, certify="end-to-end") == rows
    batches = list(table.draw_batches(9, {"g": 1}, 0, "end-to-end"))
    assert [batch.values for batch in batches] == rows.to_batches()
    assert 0 < batches[0].residual < 1e-4
    assert next(table.draw_batches(9, {"g": 1}, 0)).residual is None
    drawn = images.draw(9, certify="end-to-end")
    assert torch.equal(drawn.values, images.sample(9))
    assert 0 < drawn.residual < 1e-4
    assert images.draw(9).residual is None


def test_fitted_models_fall_back_to_float64_or_raise(table, images):
    steep = steeper_table(table, 2.2)
    z = noise(300, 6)
    with torch.no_grad():
        c = steep._context({"g": 1}).expand(300, -1)
        assert (relative_residual(steep.flow, steep.flow.bijection.inverse(z, c)[0], z, c) > 1).any()
    (batch,) = steep.draw_batches(300, {"g": 1}, 0, "end-to-end")
    assert batch.residual < 1e-3
    with pytest.raises(InversionError, match=r"Look for parameters of extreme size.*, or leave out certify"):
        steeper_table(table, 6.0).sample(30, {"g": 1}, seed=0, certify="end-to-end")
    steep = steeper_images(images, 5.0)
    with pytest.raises(InversionError, match="Use float64"):
        steep.flow().sample((20,), generator=seeded(), certify="end-to-end")
    assert steep.draw(20, certify="end-to-end").residual < 1e-3
    with pytest.raises(InversionError, match=r"Look for parameters of extreme size.*, or leave out certify"):
        steeper_images(images, 6.5).sample(20, certify="end-to-end")


def test_rows_whose_layers_fail_in_float32_are_measured_in_float64():
    """Their layers alone would be certified in float64, with a residual of 1e92."""
    flow = ill_conditioned(gain=30.0)
    with pytest.raises(InversionError, match="layer"):
        flow().sample((20,), generator=seeded())
    with torch.no_grad():
        copy.deepcopy(flow).double().bijection.inverse(noise(20, 6).double())
    with pytest.raises(InversionError, match=r"cannot invert to this tolerance\.$"):
        inverse_with_fallback(flow.bijection, noise(20, 6), None, "layers")


def test_an_unknown_certificate_is_refused(table, images):
    flow = trained_flow(2)
    for draw in (
        lambda: flow().sample((2,), certify="all"),
        lambda: flow().rsample_and_log_prob((2,), certify=True),
        lambda: table.sample(0, {"g": 1}, certify="all"),
        lambda: images.sample(2, certify="all"),
    ):
        with pytest.raises(ArgumentError, match=r"certify must be one of layers, end-to-end; got (True|'all')"):
            draw()
