"""Crafted files with valid checksums: refused with a StorageError within bounds, or usable.

The environment variable SINUFLOW_CASES sets the number of cases.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch

import sinuflow
from sinuflow import SinuflowError, SinusoidalFlow, StorageError, TrainingError
from sinuflow.cli.info import command as info
from sinuflow.flows.storage import read_model, write_model
from tests.builders import trained_flow
from tests.hostile.bounds import costs_of
from tests.hostile.files import checkpoints, model_files, mutate, table
from tests.models.small_images import gradients
from tests.training.small import quick, small_flow

CASES = int(os.environ.get("SINUFLOW_CASES", 500))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return [read_model(path) for path in model_files(tmp_path_factory.mktemp("models"))]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return [(read_model(path), options) for path, options in checkpoints(tmp_path_factory.mktemp("runs"))]


def use(path: Path) -> None:
    """Use a loaded file: describe, score, sample."""
    model = sinuflow.load(path)
    info(path)
    if isinstance(model, sinuflow.TableModel):
        scores = model.log_prob(table())
        model.anomaly_percentile(scores)
        model.sample(3, {"kind": "red"} if model.preprocessor.context_columns else None, seed=0)
        return
    if isinstance(model, sinuflow.ImageModel):
        labels = None if model.classes is None else [0] * 60
        model.anomaly_percentile(model.bits_per_dimension(gradients(), labels))
        model.sample(2)
        return
    dtype = next(model.parameters()).dtype
    context = torch.zeros(3, model.context, dtype=dtype) if model.context else None
    model(context).log_prob(torch.zeros(3, model.features, dtype=dtype))
    model(context).sample((2,))


def test_crafted_model_files_are_refused_or_usable(models, tmp_path, capsys):
    path, loaded, failures = tmp_path / "m.safetensors", 0, list[str]()
    for case in range(CASES * 7 // 10):
        generator = random.Random(case)
        write_model(path, mutate(generator.choice(models), generator))
        try:
            if costs_of(sinuflow.load, path, StorageError):
                loaded += 1
                use(path)
        except SinuflowError:
            pass
        except Exception as error:
            failures.append(f"case {case} gives {type(error).__name__}: {error}")
        capsys.readouterr()
    assert not failures, "\n".join(failures)
    assert loaded < 0.6 * CASES


@pytest.mark.filterwarnings("ignore:the loss diverged")
def test_crafted_checkpoints_are_refused_or_resumed(runs, tmp_path):
    flow = small_flow(hidden=(4,))
    failures = list[str]()
    fresh = {name: t.clone() for name, t in flow.state_dict().items()}
    for case in range(CASES * 3 // 10):
        generator = random.Random(case)
        model, options = generator.choice(runs)
        write_model(tmp_path / "checkpoint.safetensors", mutate(model, generator))
        flow.load_state_dict(fresh)
        try:
            quick(flow, checkpoint=tmp_path, resume=True, **options)
        except (StorageError, TrainingError):
            continue
        except Exception as error:
            failures.append(f"case {case} gives {type(error).__name__}: {error}")
            continue
        if not all(bool(t.isfinite().all()) for t in flow.state_dict().values()):
            failures.append(f"case {case} ends with weights that are not finite")
    assert not failures, "\n".join(failures)


def test_unchanged_files_load_and_runs_resume(models, runs, tmp_path, capsys):
    for model in models:
        write_model(tmp_path / "m.safetensors", model)
        use(tmp_path / "m.safetensors")
    for i, (model, options) in enumerate(runs):
        (tmp_path / str(i)).mkdir()
        write_model(tmp_path / str(i) / "checkpoint.safetensors", model)
        assert quick(small_flow(hidden=(4,)), checkpoint=tmp_path / str(i), resume=True, **options).steps == 6


def test_a_loaded_flow_equals_the_saved_one(tmp_path):
    """Flows are built without values first: every parameter and mask must have them afterwards."""
    for flow in (
        trained_flow(3, 1, "shift", hidden=(8,), blocks=2),
        trained_flow(3, 0, "full", hidden=(8, 8), residual=True, dtype=torch.float32),
        trained_flow(3, 2, "none", blocks=2),
        SinusoidalFlow.image((1, 3, 3), blocks=1, channels=4),
    ):
        flow.save(tmp_path / "m")
        loaded = sinuflow.load(tmp_path / "m")
        assert {name: t.device.type for name, t in [*loaded.named_parameters(), *loaded.named_buffers()]} == {
            name: "cpu" for name, _ in [*flow.named_parameters(), *flow.named_buffers()]
        }
        for (name, ours), (_, theirs) in zip(flow.named_buffers(), loaded.named_buffers(), strict=True):
            assert torch.equal(ours, theirs), name
            assert ours.dtype == theirs.dtype
        assert all(p.requires_grad for p in loaded.parameters())


def test_a_file_may_change_after_it_was_loaded(tmp_path):
    flow = trained_flow(2, hidden=(4,), blocks=1)
    flow.save(tmp_path / "m")
    loaded = sinuflow.load(tmp_path / "m")
    size = (tmp_path / "m").stat().st_size
    with open(tmp_path / "m", "r+b") as file:
        file.write(b"\xff" * size)
        file.truncate(10)
    x = torch.zeros(3, 2, dtype=torch.float64)
    assert torch.equal(loaded().log_prob(x), flow().log_prob(x))


def test_flows_that_cannot_be_loaded_are_not_saved(tmp_path):
    flow = trained_flow(2, hidden=(4,), blocks=1)
    flow.save(tmp_path / "m")
    before = (tmp_path / "m").read_bytes()
    with torch.no_grad():
        flow.bijection.bijections[1].log_scale[0] = -1000.0
    with pytest.raises(StorageError, match=r"cannot write .*: the elementwise affine map is degenerate"):
        flow.save(tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == before
