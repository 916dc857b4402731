"""Damaged checkpoints are refused."""

from __future__ import annotations

import pytest
import torch

from sinuflow import StorageError, TrainingError
from sinuflow.flows.storage import read_model, write_model
from tests.hostile.files import checkpoints
from tests.training.small import quick, small_flow


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return [(read_model(path), options) for path, options in checkpoints(tmp_path_factory.mktemp("runs"))]


def test_a_wrong_shape_in_a_checkpoint_never_reaches_the_optimizer(runs, tmp_path):
    model, options = runs[0]
    for name in ("optimizer/2/exp_avg", "good_optimizer/0/exp_avg_sq", "weights/", "best/", "good/"):
        key = next(k for k in sorted(model.tensors) if k.startswith(name))
        short = model.tensors[key].reshape(-1)[:1].clone()
        write_model(tmp_path / "checkpoint.safetensors", model._replace(tensors={**model.tensors, key: short}))
        with pytest.raises(StorageError, match="do not fit the flow"):
            quick(small_flow(hidden=(4,)), checkpoint=tmp_path, resume=True, **options)


def test_a_checkpoint_cannot_bring_weights_that_are_not_finite(runs, tmp_path):
    model, options = runs[1]
    nan = {name: torch.full_like(t, torch.nan) if t.is_floating_point() else t for name, t in model.tensors.items()}

    def with_nan(*groups):
        return {name: nan[name] if name.startswith(groups) else t for name, t in model.tensors.items()}

    bare = {name: t for name, t in model.tensors.items() if not name.startswith("best/")}
    for config, tensors in (
        ({}, with_nan("best/")),
        ({}, with_nan("good/")),
        ({}, bare),
        ({"best_nll": None}, {}),
        (
            {"finished": True, "best_nll": None},
            {**bare, **{n: nan[n] for n in bare if n.startswith("average")}},
        ),
        ({"step": 2**53}, {}),
        ({"best_step": 5}, {}),
        ({}, {**model.tensors, "random/cpu": model.tensors["random/cpu"].double()}),
        ({}, {**model.tensors, "random/cuda": torch.zeros(4)}),
    ):
        write_model(
            tmp_path / "checkpoint.safetensors",
            model._replace(config={**model.config, **config}, tensors=tensors or model.tensors),
        )
        with pytest.raises((StorageError, TrainingError)):
            quick(small_flow(hidden=(4,)), checkpoint=tmp_path, resume=True, **options)
