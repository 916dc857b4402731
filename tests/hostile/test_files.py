"""Crafted files with valid checksums: refused with a StorageError within bounds, or usable.

SINUFLOW_CASES in the environment says how many are tried.
"""

from __future__ import annotations

import json
import os
import random
import re
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import sinuflow
from sinuflow import SinuflowError, SinusoidalFlow, StorageError, TrainingError
from sinuflow.cli.info import command as info
from sinuflow.flows import storage
from sinuflow.flows.storage import Model, read_model, write_model
from tests.builders import trained_flow
from tests.hostile.bounds import MEBIBYTE, costs_of
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
    """Everything that a user would first do with a loaded file."""
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


def test_the_files_that_are_not_changed_load_and_the_runs_go_on(models, runs, tmp_path, capsys):
    for model in models:
        write_model(tmp_path / "m.safetensors", model)
        use(tmp_path / "m.safetensors")
    for i, (model, options) in enumerate(runs):
        (tmp_path / str(i)).mkdir()
        write_model(tmp_path / str(i) / "checkpoint.safetensors", model)
        assert quick(small_flow(hidden=(4,)), checkpoint=tmp_path / str(i), resume=True, **options).steps == 6


# ---------------------------------------------------------------- cases that were expensive or fatal


def forged(path: Path, config: object, tensors: dict[str, torch.Tensor] | None = None, kind: str = "flow") -> Path:
    write_model(path, Model(kind, config, {"a": torch.zeros(10)} if tensors is None else tensors))
    return path


@pytest.mark.parametrize(
    "change",
    [
        {"context": 20_000_000},
        {"conditioning": "none", "context": 20_000_000},
        {"conditioning": "full", "scales": 10**6, "waves": 10**6},
        {"blocks": "9"},
        {"blocks": 200_000},
        {"hidden": [1] * 10**5},
        {"features": 10**9},
        {"hidden": [10**12]},
        {"dropout": float("nan")},
        {"activation": ["relu"]},
        {"image": [1, 10**5, 10**5]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_configuration_takes_no_more_memory_than_its_file_allows(change, tmp_path):
    config = {**trained_flow(2, hidden=(4,), blocks=1).config, **change}
    if "image" in change:
        config = {**SinusoidalFlow.image((1, 3, 3), blocks=1).config, **change}
    assert not costs_of(sinuflow.load, forged(tmp_path / "m", config), StorageError)


def test_row_counts_take_no_memory(models, tmp_path):
    tables = next(model for model in models if model.kind == "table")
    for rows in (10**8, 2**53):
        config = json.loads(json.dumps(tables.config))
        config["facts"]["rows"] = rows
        path = forged(tmp_path / "m", config, tables.tensors, "table")
        assert not costs_of(sinuflow.load, path, StorageError)


DEEP_OR_LARGE = [
    "[" * 100_000,
    "[]," * 10**6,
    '{"a":' * 5_000,
    '{"a":1' + ',"b":{}' * 10**6 + "}",
    '{"features":2,"hidden":[%s1]}' % ("1," * 10**6),
    "[%s1]" % ("12345678901234567890," * 10**6),
    '["%s\\ud83d\\ude00"]' % ("a" * 10**7),
]


@pytest.mark.parametrize("text", DEEP_OR_LARGE, ids=range(len(DEEP_OR_LARGE)))
def test_json_that_is_nested_deeply_or_expands_is_refused(text, tmp_path, monkeypatch):
    monkeypatch.setattr(storage.json, "dumps", lambda _: text)
    assert not costs_of(sinuflow.load, forged(tmp_path / "m", None), StorageError)


def test_headers_are_bounded(tmp_path):
    path = tmp_path / "m"
    many = {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(60_000)}
    cases = [
        json.dumps(many).encode(),
        b'{"a":' + b"[" * 10**6,
        b'{"a":{"dtype":"F32","shape":[%s],"data_offsets":[0,0]}}' % b",".join([b"0"] * 10**6),
        b'{"a":{"dtype":"F32","shape":[0,%d],"data_offsets":[0,0]}}' % 2**52,
        b'{"\\ud800":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}',
        b'{"__metadata__":{"format":"\\ud800"}}',
        b'{"__metadata__":["a"]}',
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        b'{"a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}',
        b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}',
        b"[]",
        json.dumps({"__metadata__": {"format": "a" * 10**7 + "\N{GRINNING FACE}"}}).encode(),
    ]
    for header in cases:
        path.write_bytes(struct.pack("<Q", len(header)) + header)
        assert not costs_of(sinuflow.load, path, StorageError)
    for raw in (b"", b"\0" * 7, b"\xff" * 8, struct.pack("<Q", 2**63) + b"{}", struct.pack("<Q", 3) + b"{}"):
        path.write_bytes(raw)
        assert not costs_of(sinuflow.load, path, StorageError)


def test_what_is_not_a_regular_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path / "fifo", tmp_path / "loop", Path("/dev/zero"), Path("/dev/null"), tmp_path):
        failures: list[Exception] = []

        def load(path: Path = path, failures: list[Exception] = failures) -> None:
            try:
                sinuflow.load(path)
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=load, daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive(), f"{path} is waited for"
        assert isinstance(failures[0], StorageError)
        assert path.name == "loop" or re.search("it is (not a file|a folder)", str(failures[0]))


@pytest.mark.parametrize(
    ("make", "least"),
    [
        (lambda: SinusoidalFlow(2, blocks=1, conditioning="full", hidden=(5000, 5000)), 90),
        (lambda: SinusoidalFlow(2, blocks=1, conditioning="full", hidden=(5000, 5000)).bfloat16(), 45),
        (lambda: SinusoidalFlow.image((1, 1, 1), blocks=1, channels=1000, scales=1, waves=1, residual_blocks=1), 70),
        (lambda: SinusoidalFlow(200_000, blocks=1, conditioning="full", scales=1, waves=1, hidden=(1,)), 9),
        (lambda: SinusoidalFlow(1, blocks=1, conditioning="full", scales=1, waves=1, hidden=(1,) * 8000), 1),
        (lambda: SinusoidalFlow(1, blocks=2000, conditioning="none", scales=1, waves=1), 0),
    ],
    ids=["wide", "bfloat16", "image", "features", "layers", "blocks"],
)
def test_a_valid_file_loads_within_the_bounds(make, least, tmp_path):
    """At most twice the size of the file, although a conditioner has a mask for every weight."""
    flow = make()
    write_model(tmp_path / "m", Model("flow", flow.config, flow.state_dict()))
    size = (tmp_path / "m").stat().st_size
    assert size >= least << 20
    del flow
    assert costs_of(sinuflow.load, tmp_path / "m", StorageError)


def test_a_loaded_flow_is_like_the_one_that_was_saved(tmp_path):
    """It is built on the meta device: no meta tensor may remain."""
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


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    flow = trained_flow(2, hidden=(4,), blocks=1)
    flow.save(tmp_path / "m")
    before = (tmp_path / "m").read_bytes()
    with torch.no_grad():
        flow.bijection.bijections[1].log_scale[0] = -1000.0
    with pytest.raises(StorageError, match=r"cannot write .*: the elementwise affine map is degenerate"):
        flow.save(tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == before


def test_splits_that_no_table_has_are_refused(models, tmp_path):
    tables = next(model for model in models if model.kind == "table")
    path = tmp_path / "m"
    validation = tables.tensors["split/validation"]
    for name, ids in {
        "split/test": validation.clone(),
        "split/validation": validation.flip(0),
        "split/unused": torch.arange(5, dtype=torch.int32) + 200,
    }.items():
        forged(path, tables.config, {**tables.tensors, name: ids}, "table")
        with pytest.raises(StorageError, match=r"rows are|does not belong|both"):
            sinuflow.load(path)


def test_memory_is_measured():
    """The bounds above mean nothing if a large allocation would go unnoticed."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("this system does not report a process's peak memory")
    # In a process of its own, where nothing else is freed at the same time.
    done = subprocess.run([sys.executable, "-c", ALLOCATION], capture_output=True, text=True, check=True)
    assert 150 * MEBIBYTE < int(done.stdout) < 250 * MEBIBYTE


ALLOCATION = """
from tests.hostile.bounds import MEBIBYTE, measured

with measured() as cost:
    sum(bytearray(200 * MEBIBYTE)[:: MEBIBYTE])
print(cost.peak)
"""
