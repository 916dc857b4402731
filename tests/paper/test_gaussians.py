from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sinuflow.data.toys import toy
from sinuflow.paper import Options, reproduce
from sinuflow.paper.gaussians import compare, on_grid


def test_d_scales_learn_what_an_affine_flow_cannot(tmp_path: Path) -> None:
    figures = reproduce("gaussians", Options(tmp_path, "smoke", device="cpu", progress=False))
    found = {(figure["model"], figure["metric"][:4]): figure["value"] for figure in figures}
    assert 0 < found["scales", "KL f"] < 0.6
    assert found["scales", "RMSE"] < 0.1
    assert found["maf", "KL f"] > 1.2
    assert found["maf", "RMSE"] > 0.2


def test_the_true_transformation_is_that_of_the_density() -> None:
    x, log_p, z = on_grid(toy("gaussians"))
    normal = torch.distributions.Normal(0.0, 1.0)
    slope = (z[2:] - z[:-2]) / (x[2:] - x[:-2])
    inside = z.abs()[1:-1] < 4  # by change of variables
    torch.testing.assert_close(
        (normal.log_prob(z[1:-1]).exp() * slope)[inside], log_p[1:-1].exp()[inside], rtol=1e-3, atol=1e-6
    )


class _Normal:
    """A flow that is its base distribution."""

    bijection = None

    def __call__(self) -> torch.distributions.Distribution:
        normal = torch.distributions.Normal(torch.zeros(1, dtype=torch.float64), 1.0)
        flow = torch.distributions.Independent(normal, 1)
        flow.transform = lambda x: x  # type: ignore[attr-defined]
        return flow


def test_the_divergence_is_that_of_closed_forms() -> None:
    # KL(p | normal) = -H(p) + log(scale sqrt(2 pi)) + E x^2 / (2 scale^2), H of separated Gaussians = log 7 + H(1).
    variance = 1 + sum((40 * k / 3) ** 2 for k in range(-3, 4)) / 7
    entropy = torch.log(torch.tensor(7.0)) + 0.5 * torch.log(torch.tensor(2 * torch.pi * torch.e))
    expected = 0.5 * torch.log(torch.tensor(2 * torch.pi * variance)) + 0.5 - entropy
    assert compare(toy("gaussians"), _Normal(), 0.0, variance**0.5).kl == pytest.approx(float(expected), rel=1e-4)
