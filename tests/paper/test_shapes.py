from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sinuflow import ArgumentError
from sinuflow.data.toys import toy
from sinuflow.paper import Options, reproduce
from sinuflow.paper.shapes import divergence

DATASETS = ("8gaussians", "moons", "pinwheel")


def test_shapes_are_learned(tmp_path: Path) -> None:
    figures = reproduce("shapes", Options(tmp_path, "smoke", device="cpu", datasets=DATASETS, progress=False))
    found = {figure["set"]: figure["value"] for figure in figures}
    assert set(found) == {"8gaussians", "moons"}  # the pinwheel's density is not known
    assert 0 < found["8gaussians"] < 0.9  # 1.4 and 1.0 before training
    assert 0 < found["moons"] < 0.5


def test_a_density_of_one_dimension_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="one dimension"):
        reproduce("shapes", Options(tmp_path, "smoke", datasets=("gaussians",), progress=False))


def test_the_divergence_of_a_scaled_density() -> None:
    moons = toy("moons")

    class Itself:
        def __call__(self) -> Itself:
            return self

        def log_prob(self, x: torch.Tensor) -> torch.Tensor:
            assert moons.log_prob is not None
            return moons.log_prob(x) - 0.25

    rows = moons.sample(500, torch.Generator().manual_seed(0))
    found, error = divergence(moons, Itself(), rows)
    assert found == pytest.approx(0.25)
    assert error < 1e-12
