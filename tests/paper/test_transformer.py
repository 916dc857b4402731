from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sinuflow.paper import Options
from sinuflow.paper.transformer import evaluate, footnote_layer, formula, run


def test_the_layer_is_the_formula_of_the_footnote(tmp_path: Path) -> None:
    found = {figure.metric: figure.value for figure in run(Options(tmp_path, "smoke"))}
    assert found["largest deviation of tau from the formula"] < 1e-14
    assert found["largest deviation of its derivative"] < 1e-14
    assert found["smallest derivative"] == pytest.approx(0.1388, abs=1e-4)


def test_the_formula_and_its_derivative() -> None:
    x = torch.linspace(-10, 10, 101, dtype=torch.float64, requires_grad=True)
    value, slope = formula(x)
    sines = 0.5 * torch.sin(2 * x + 1) + 0.3 * torch.sin(-0.1 * x) + 0.2 * torch.sin(0.7 * x - 3)
    torch.testing.assert_close(value, x - 0.8 * sines)
    torch.testing.assert_close(slope, torch.autograd.grad(value.sum(), x)[0])


def test_it_holds_far_beyond_the_figure_too() -> None:
    x = torch.linspace(-1000, 1000, 9999, dtype=torch.float64)
    value, slope = evaluate(footnote_layer(), x)
    torch.testing.assert_close(value, formula(x)[0], rtol=1e-13, atol=1e-12)
    assert float(slope.min()) >= 1 - 0.936  # |α| = 0.8 (0.5 · 2 + 0.3 · 0.1 + 0.2 · 0.7)
