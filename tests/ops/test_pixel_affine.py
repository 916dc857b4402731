"""The Triton kernels of the image affine layer against the reference: on a GPU, or by Triton's interpreter."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")

from sinuflow.ops import pixel_affine as op
from sinuflow.ops.backends.triton import pixel_affine
from tests.ops.test_triton import DEVICE, close, few, randn

pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []

shapes = {
    "features": st.sampled_from([1, 3, 64, 70]),  # more than 64 are cut into tiles
    "rows": st.sampled_from([0, 1, 7, 70, 600]),
    "spread": st.sampled_from([1e-3, 1.0, 30.0]),  # of r: almost no scale, and the largest
    "seed": st.integers(0, 10**6),
}


@few
@given(**shapes)
def test_kernels_match_the_reference(features, rows, spread, seed):
    outputs = (
        randn(2 * features, rows, seed=seed)
        * torch.tensor([3.0, spread], device=DEVICE).repeat_interleave(features)[:, None]
    )
    for ours, theirs in zip(pixel_affine.forward(outputs), op.reference(outputs, features), strict=True):
        close(ours, theirs, 1e-14)
    grads = randn(features, rows, seed=seed + 1), randn(rows, seed=seed + 2)
    leaf = outputs.clone().requires_grad_()
    (expected,) = torch.autograd.grad(op.reference(leaf, features), leaf, grads)
    close(pixel_affine.backward(outputs, *grads)[0], expected, 1e-14)
    for ours, theirs in zip(
        pixel_affine.forward(outputs.float()), op.reference(outputs.float().double(), features), strict=True
    ):
        close(ours.double(), theirs, 1e-6)


def test_first_and_second_derivatives(monkeypatch):
    """The first by kernels, the second by the reference."""
    monkeypatch.setattr(op, "use_triton", lambda _: True)
    used = []
    monkeypatch.setattr(pixel_affine, "backward", lambda *a, inner=pixel_affine.backward: used.append(1) or inner(*a))
    outputs = randn(6, 4).requires_grad_()

    def slope(function, **options):
        z, ladj = function(outputs)
        return torch.autograd.grad((z.square().sum(0) + ladj.square()).sum(), outputs, **options)[0]

    definition = partial(op.reference, features=3)
    expected = slope(definition, create_graph=True)
    close(slope(lambda t: op.scaled(t, 3)), expected.detach(), 1e-14)
    assert used == [1]
    second = [
        torch.autograd.grad(slope(function, create_graph=True).square().sum(), outputs)[0]
        for function in (definition, lambda t: op.scaled(t, 3))
    ]
    close(second[1], second[0], 1e-14)
    with torch.no_grad():
        close(op.scaled(outputs, 3).z, definition(outputs).z, 1e-14)
        half = outputs.half()  # which kernels do not support
        assert op.scaled(half, 3).z.equal(definition(half).z)


def test_nan_stays_nan():
    outputs = randn(6, 4)
    outputs[4, 2] = torch.nan
    z, ladj = pixel_affine.forward(outputs)
    assert z.isnan().nonzero().tolist() == [[1, 2]]
    assert ladj.isnan().tolist() == [False, False, True, False]
