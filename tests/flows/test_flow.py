from __future__ import annotations

import numpy as np
import pytest
import torch

import sinuflow
from sinuflow import ArgumentError, InversionError, SinuflowError, SinusoidalFlow
from sinuflow.bijections import AutoregressiveWaves, ElementwiseAffine, LDUBlock, SinusoidalLayer
from tests.builders import CONDITIONINGS, batch, trained_flow

DOUBLE = torch.float64


def test_defaults_of_the_paper():
    flow = SinusoidalFlow(6)
    assert flow.config == {
        "features": 6,
        "context": 0,
        "conditioning": "shift",
        "blocks": 12,
        "scales": 4,
        "waves": 4,
        "hidden": [256, 256],
        "residual": False,
        "activation": "relu",
        "dropout": 0.0,
        "squash": 0.0,
    }
    *blocks, last = flow.bijection
    assert len(blocks) == 12
    assert all(isinstance(b, LDUBlock) for b in blocks)
    assert isinstance(last, ElementwiseAffine)
    _, scale, lower = blocks[0]
    assert scale.frequency.shape == (4, 6, 4)
    assert [len(layer.bias) for layer in lower.conditioner.layers] == [256, 256]
    assert lower.conditioner.squash is None


def test_defaults_of_full_conditioning():
    flow = SinusoidalFlow(6, conditioning="full")
    layers = list(flow.bijection)
    assert len(layers) == 6
    assert all(isinstance(layer, AutoregressiveWaves) for layer in layers)
    assert [layer.reverse for layer in layers] == [False, True] * 3
    assert layers[0].transformer.scales == 2
    assert layers[0].transformer.waves == 4
    assert layers[0].conditioner.squash == 4.0
    assert SinusoidalFlow(6, conditioning="full", squash=0).bijection.bijections[0].conditioner.squash is None
    assert SinusoidalFlow(6, squash=2).bijection.bijections[0].bijections[0].conditioner.squash == 2


def test_no_conditioning_is_sinusoidal_layers_alone():
    flow = SinusoidalFlow(2, conditioning="none", blocks=3)
    *scales, last = flow.bijection
    assert [type(s) for s in scales] == [SinusoidalLayer] * 3
    assert isinstance(last, ElementwiseAffine)


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_a_fresh_flow_is_the_standard_normal(conditioning):
    flow = SinusoidalFlow(4, conditioning=conditioning, hidden=(16,)).double()
    x, _ = batch(4)
    want = torch.distributions.Normal(torch.zeros(4, dtype=DOUBLE), 1.0).log_prob(x).sum(-1)
    torch.testing.assert_close(flow().log_prob(x), want)


@pytest.mark.parametrize("conditioning", ["shift", "none"])
def test_initialize_standardises(conditioning):
    flow = trained_flow(3, 2, conditioning)
    x, c = batch(3, 2, rows=400, scale=5.0)
    flow.initialize(x, c)
    z, _ = flow.bijection(x, c)
    torch.testing.assert_close(z.mean(0), torch.zeros(3, dtype=DOUBLE), atol=1e-8, rtol=0)
    torch.testing.assert_close(z.std(0, correction=0), torch.ones(3, dtype=DOUBLE))


def test_initialize_needs_finite_rows():
    flow = trained_flow(2)
    for x in (torch.empty(0, 2), torch.tensor([[1.0, torch.nan]])):
        with pytest.raises(ArgumentError, match="at least one row, and no NaN"):
            flow.initialize(x.double())


def test_wrong_arguments_say_what_would_be_right():
    cases = [
        ({"features": 0}, "features must be a whole number of at least 1; got 0"),
        ({"features": 2.5}, "features must be a whole number"),
        ({"features": True}, "features must be a whole number"),
        ({"features": 2, "conditioning": "half"}, "conditioning must be one of shift, full, none; got 'half'"),
        ({"features": 2, "blocks": 0}, "blocks must be"),
        ({"features": 2, "scales": 0}, "scales must be"),
        ({"features": 2, "waves": -1}, "waves must be"),
        ({"features": 2, "context": -1}, "context must be a whole number of at least 0; got -1"),
        ({"features": 2, "context": True}, "context must be a whole number"),
        ({"features": 2, "hidden": 64}, r"sequence of layer sizes, such as \(256, 256\); got 64"),
        ({"features": 2, "hidden": (8, 0)}, "every entry of hidden must be .* at least 1; got 0"),
        ({"features": 2, "dropout": "a"}, "dropout must be"),
        ({"features": 2, "squash": "a"}, "squash must be"),
        ({"features": 2, "dropout": 1.0}, "dropout must be at least 0 and below 1; got 1.0"),
        ({"features": 2, "dropout": -0.1}, "dropout must be"),
        ({"features": 2, "squash": -1.0}, "squash must be"),
        ({"features": 2, "activation": "sine"}, "activation must be one of"),
    ]
    for arguments, message in cases:
        with pytest.raises(ArgumentError, match=message) as caught:
            SinusoidalFlow(**arguments)
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, SinuflowError)


def test_invert_returns_a_certificate():
    flow = trained_flow(3, 2)
    x, c = batch(3, 2, rows=6)
    z, ladj = flow.bijection(x.view(2, 3, 3), c.view(2, 3, 2))
    inverse = flow.invert(z, c.view(2, 3, 2))
    torch.testing.assert_close(inverse.x.view(6, 3), x, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(inverse.ladj, -ladj, rtol=1e-6, atol=1e-6)
    assert inverse.x.is_contiguous()
    for field in (inverse.iterations, inverse.residual, inverse.converged, inverse.ladj):
        assert field.shape == (2, 3)
    measured = (flow.bijection(inverse.x, c.view(2, 3, 2))[0] - z).abs().amax(-1)
    torch.testing.assert_close(inverse.residual, measured.detach())
    assert inverse.converged.all()
    assert inverse.converged.dtype == torch.bool
    assert not inverse.residual.requires_grad


def test_invert_raises_or_returns():
    flow = trained_flow(3)
    z, _ = batch(3)
    z[2, 0] = torch.inf
    with pytest.raises(InversionError, match="of 5 samples"):
        flow.invert(z)
    inverse = flow.invert(z, on_failure="return")
    assert inverse.converged.tolist() == [True, True, False, True, True]
    z, _ = batch(3)
    cut = flow.invert(z, solver="fixed_point", max_iterations=2, on_failure="return")
    assert not cut.converged.all()
    assert (cut.residual[~cut.converged] > 1e-9).all()
    assert cut.iterations.max() <= 2
    with pytest.raises(InversionError, match=r"after 2 iterations the largest residual is .*on_failure='return'"):
        flow.invert(z, solver="fixed_point", max_iterations=2)


def test_invert_judges_the_residual_by_the_given_tolerance():
    flow = trained_flow(4, dtype=torch.float32, blocks=6)
    z, _ = batch(4, rows=200, dtype=torch.float32)
    assert flow.invert(z).converged.all()
    strict = flow.invert(z, rtol=0.0, atol=1e-9, on_failure="return")
    assert not strict.converged.all()
    assert torch.equal(strict.converged, strict.residual <= 1e-9)
    with pytest.raises(InversionError, match=r"inverted, but rounding errors accumulate to .* of 200 samples"):
        flow.invert(z, rtol=0.0, atol=1e-9)
    relative = flow.invert(z, rtol=1.0, atol=0.0, on_failure="return")
    assert relative.converged.all()


def test_invert_checks_its_arguments():
    flow = trained_flow(3)
    z, _ = batch(3)
    with pytest.raises(ArgumentError, match="on_failure must be one of raise, return; got 'ignore'"):
        flow.invert(z, on_failure="ignore")
    with pytest.raises(ArgumentError, match="solver must be one of"):
        flow.invert(z, solver="bisection")
    with pytest.raises(ArgumentError, match=r"z must have shape \(\.\.\., 3\); got \(5, 2\)"):
        flow.invert(z[:, :2])


def test_invert_is_differentiable():
    flow = trained_flow(2)
    z, _ = batch(2)
    z.requires_grad_()
    inverse = flow.invert(z)
    (grad,) = torch.autograd.grad(inverse.x.sum(), z)
    (want,) = torch.autograd.grad(flow.bijection.inverse(z)[0].sum(), z)
    torch.testing.assert_close(grad, want)


def test_repr_shows_the_configuration():
    assert "conditioning='full'" in repr(SinusoidalFlow(2, conditioning="full", blocks=1, hidden=(4,)))


def test_public_names():
    for name in sinuflow.__all__:
        assert hasattr(sinuflow, name)
    assert issubclass(sinuflow.InversionError, sinuflow.SinuflowError)
    assert issubclass(sinuflow.StorageError, sinuflow.SinuflowError)


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_dropout_is_refused_while_training(conditioning):
    flow = SinusoidalFlow(2, conditioning=conditioning, blocks=1, hidden=(8,), dropout=0.5)
    flow().log_prob(torch.zeros(3, 2))
    if conditioning == "none":
        flow().sample((3,))
        return
    with pytest.raises(SinuflowError, match=r"dropout.*\.eval\(\)"):
        flow().sample((3,))
    with pytest.raises(SinuflowError, match=r"dropout.*\.eval\(\)"):
        flow.invert(torch.zeros(3, 2))
    flow.eval()
    flow().sample((3,))


def test_numpy_integers_are_accepted():
    flow = SinusoidalFlow(np.int64(2), blocks=np.int32(1), hidden=[np.int64(4)])
    assert flow.config["features"] == 2
    assert type(flow.config["features"]) is int
    assert flow.config["hidden"] == [4]


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_second_derivatives_through_the_inverse_are_refused(conditioning):
    """They would be wrong: the solver's own iterations are not differentiated."""
    flow = trained_flow(2, 0, conditioning, blocks=1)
    z, _ = batch(2)
    x, _ = flow.bijection.inverse(z.requires_grad_())
    (slope,) = torch.autograd.grad(x.sum(), z, create_graph=True)
    with pytest.raises(SinuflowError, match="second derivatives through an inverse are not available"):
        (slope**2).sum().backward()


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
@pytest.mark.parametrize("limit", [1, 5])
def test_algorithm_1_cut_off_is_never_silent(conditioning, limit):
    flow = trained_flow(3, 0, conditioning, blocks=1)
    z, _ = batch(3, rows=100)
    inverse = flow.invert(z, solver="fixed_point", max_iterations=limit, on_failure="return")
    assert not inverse.converged.all()
    assert (inverse.residual[inverse.converged] <= 1e-9).all()


def test_tensors_on_other_devices_are_refused():
    flow = SinusoidalFlow(2, context=1, conditioning="full", blocks=1, hidden=(8,))
    with pytest.raises(ArgumentError, match="move one of them"):
        flow.bijection(torch.zeros(3, 2, device="meta"), torch.zeros(3, 1, device="meta"))
    with pytest.raises(ArgumentError, match="the context is on"):
        flow.bijection(torch.zeros(3, 2), torch.zeros(3, 1, device="meta"))
