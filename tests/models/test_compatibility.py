"""Files that version 0.1.0 wrote, which must never be regenerated."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import sinuflow
from sinuflow import TrainingError
from tests.hostile.files import table
from tests.models.small_images import gradients
from tests.training.small import banana, quick, small_flow

FOLDER = Path(__file__).parents[1] / "data" / "0.1.0"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())


def test_a_table_model_of_version_0_1_0():
    model = sinuflow.load(FOLDER / "table.safetensors")
    np.testing.assert_allclose(model.log_prob(table())[:20], EXPECTED["table"]["log_prob"], rtol=2e-6)
    rows = model.sample(5, {"kind": "red"}, seed=3).to_pylist()
    for row, expected in zip(rows, EXPECTED["table"]["sample"], strict=True):
        assert row == {**expected, "size": pytest.approx(expected["size"], rel=1e-5)}


def test_an_image_model_of_version_0_1_0():
    model = sinuflow.load(FOLDER / "images.safetensors")
    bits = model.bits_per_dimension(gradients(), [0, 1, 2] * 20)[:20]
    np.testing.assert_allclose(bits, EXPECTED["images"]["bits"], rtol=2e-6)
    sample = model.sample(2, label=1, seed=3).flatten().int() - torch.tensor(EXPECTED["images"]["sample"])
    assert int(sample.abs().max()) <= 1  # the edge of a cell may be rounded to the other side


def resumed(folder: Path, **options: object) -> sinuflow.SinusoidalFlow:
    shutil.copy(FOLDER / "checkpoint.safetensors", folder)
    flow = small_flow(seed=8, hidden=(4,))
    quick(flow, **{"steps": 12, "validate_every": 4, "ema": 0.9, "checkpoint": folder, "resume": True, **options})
    return flow


def test_a_run_of_version_0_1_0_resumes(tmp_path):
    state = resumed(tmp_path).state_dict()
    assert {name: t.flatten().tolist() for name, t in state.items()}.keys() == EXPECTED["checkpoint"]["final"].keys()
    for name, values in EXPECTED["checkpoint"]["final"].items():
        torch.testing.assert_close(state[name].flatten(), torch.tensor(values), rtol=1e-4, atol=1e-6)


def test_a_run_of_version_0_1_0_does_not_resume_with_other_data(tmp_path):
    shutil.copy(FOLDER / "checkpoint.safetensors", tmp_path)
    with pytest.raises(TrainingError, match="other data"):
        sinuflow.fit(
            small_flow(hidden=(4,)), banana(400, seed=5), banana(200, seed=1), steps=12, batch_size=64,
            validate_every=4, ema=0.9, progress=False, device="cpu", checkpoint=tmp_path, resume=True,
        )  # fmt: skip
