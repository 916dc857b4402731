from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sinuflow import ArgumentError
from sinuflow.paper import Options
from sinuflow.paper.contraction import DATASETS, attempt, constants, run
from tests.builders import batch, trained_flow


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], float]:
    folder = tmp_path_factory.mktemp("contraction")
    return {(f.dataset, f.metric): f.value for f in run(Options(folder, "smoke", device="cpu", progress=False))}


@pytest.mark.parametrize("name", DATASETS)
def test_g_is_a_contraction_within_its_bound(found: dict[tuple[str, str], float], name: str) -> None:
    constant = found[name, "Lipschitz constant of G, largest over blocks"]
    bound = found[name, "proven bound of it, largest over blocks"]
    assert 0.1 < constant <= bound + 1e-12  # it was trained, and is not the identity any more
    assert bound < 1


@pytest.mark.parametrize("name", DATASETS)
def test_the_certified_solver_takes_fewer_iterations_to_be_more_exact(
    found: dict[tuple[str, str], float], name: str
) -> None:
    for which in ("mean", "largest"):
        assert (
            found[name, f"iterations of the certified solver, {which}"]
            < found[name, f"iterations of Algorithm 1, {which}"]
        )
    assert found[name, "error of the certified solver, largest"] < found[name, "error of Algorithm 1, largest"] < 1e-6
    assert found[name, "samples that the certified solver gave up, percent"] == 0


def test_constants_agree_with_the_slopes_of_the_transformers() -> None:
    flow = trained_flow(2, blocks=1, scales=1)
    x, _ = batch(2, rows=500)
    (block,) = constants(flow, x)
    upper, scale, _ = flow.bijection.bijections[0]
    inputs = upper(x)[0].detach().requires_grad_()
    (slopes,) = torch.autograd.grad(scale(inputs)[0].sum(), inputs)  # the Jacobian is diagonal
    largest = float((slopes - 1).abs().max())
    assert block.layer >= largest - 1e-12
    assert block.layer == pytest.approx(largest, rel=0.02)
    assert block.block == block.layer  # it has one layer
    assert block.layer <= block.bound


def test_algorithm_1_with_too_few_iterations_is_wrong_and_does_not_converge() -> None:
    flow = trained_flow(2, blocks=1, scales=1)
    with torch.no_grad():
        scale = flow.bijection.bijections[0].bijections[1]
        scale.strength.fill_(4.0)  # |α| = 0.998
        scale.frequency.fill_(1.0)
        scale.phase.fill_(1.4)
    x, _ = batch(2, rows=500, scale=3)
    with torch.no_grad():
        z, _ = flow.bijection(x)
        cut, error = attempt(flow, x, z, "fixed_point", 20)
    wrong = error > 1e-6
    assert bool(wrong.any())
    assert not bool((wrong & cut.converged).any())


def test_unknown_datasets_and_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no dataset 'moons'"):
        list(run(Options(tmp_path, "smoke", datasets=("moons",))))
    with pytest.raises(ArgumentError, match="no model '3 LDU blocks'"):
        list(run(Options(tmp_path, "smoke", models=("3 LDU blocks",))))
