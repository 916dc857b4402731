"""Two tangents, one result."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sinuflow.ops import tangent
from sinuflow.ops.tangent import tan_


@pytest.mark.parametrize("numpy", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [8, 5000, 40_000])
def test_it_is_the_tangent_wherever_it_is_computed(monkeypatch, numpy, dtype, size):
    monkeypatch.setattr(tangent, "numpy_is_faster", lambda: numpy)
    angle = (torch.rand(size, dtype=dtype) - 0.5) * 3
    want = torch.tan(angle.double())
    got = angle.clone()
    assert tan_(got) is got
    torch.testing.assert_close(got.double(), want, rtol=8 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("numpy", [False, True])
def test_what_is_not_finite_becomes_nan_without_a_word(monkeypatch, numpy):
    monkeypatch.setattr(tangent, "numpy_is_faster", lambda: numpy)
    angle = torch.zeros(5000)
    angle[:3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    got = tan_(angle)
    assert got[:3].isnan().all()
    assert (got[3:] == 0).all()


def test_small_tensors_and_many_threads_stay_with_pytorch(monkeypatch):
    monkeypatch.setattr(tangent, "numpy_is_faster", lambda: True)
    monkeypatch.setattr(np, "tan", lambda *_, **__: pytest.fail("NumPy was used"))
    tan_(torch.zeros(100))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    tan_(torch.zeros(100_000))


def test_numpy_is_asked_what_it_can_do():
    assert tangent.numpy_is_faster() in (True, False)
