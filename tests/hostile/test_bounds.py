"""Loading a model file takes bounded memory and time, and trusts no number in it."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import sinuflow
from sinuflow import Flow, SinusoidalFlow, StorageError
from sinuflow.bijections import Autoregressive, AutoregressiveWaves, Bijection, Linear
from sinuflow.bijections.whitening import Whitening
from sinuflow.conditioners import PixelCNN
from sinuflow.flows import StudentT, storage
from sinuflow.flows.storage import Model, read_model, write_model
from sinuflow.transformers import Shift
from tests.builders import trained_flow
from tests.hostile.bounds import MEBIBYTE, costs_of
from tests.hostile.files import model_files


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return [read_model(path) for path in model_files(tmp_path_factory.mktemp("models"))]


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
        {"hidden": [9900, 9900]},
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


@sinuflow.register(name="tests.Grid")
class Grid(Bijection):
    """A layer whose buffer a chosen factory makes."""

    def __init__(self, features: int, factory: str, sizes: list[int]) -> None:
        super().__init__(features)
        self.register_buffer("grid", getattr(torch, factory)(*sizes))


def layer(name: str, **arguments: object) -> dict[str, object]:
    return {"class": name, "arguments": arguments}


@pytest.mark.parametrize(
    "bijection",
    [
        layer("Whitening", features=10_000),
        layer("LowerShift", features=2, hidden=[9900, 9900]),
        layer("LowerShift", features=5000, hidden=[1] * 9000),
        layer("SinusoidalLayer", features=2, context=1, hidden=[9900, 9900]),
        layer("tests.Grid", features=2, factory="eye", sizes=[10_000]),
        layer("tests.Grid", features=2, factory="eye", sizes=[10_000, 3000]),
        layer("tests.Grid", features=2, factory="arange", sizes=[0, 3 * 10**7]),
        layer("tests.Grid", features=2, factory="linspace", sizes=[0, 1, 3 * 10**7]),
        layer("tests.Grid", features=2, factory="randperm", sizes=[3 * 10**7]),
        layer("tests.Grid", features=2, factory="tril_indices", sizes=[10**4, 10**4]),
    ],
    ids=lambda bijection: "-".join(map(str, [bijection["class"], *bijection["arguments"].values()]))[:50],
)
def test_a_small_composed_file_takes_little_memory(bijection, tmp_path):
    write_model(tmp_path / "m", Model("flow", layer("Flow", bijection=bijection, base=None), {"a": torch.zeros(1)}), 2)
    assert not costs_of(sinuflow.load, tmp_path / "m", StorageError)


def test_a_row_of_an_enormous_image_is_not_evaluated(tmp_path):
    """The weights of convolutions do not depend on the size of the image."""
    network = layer("PixelCNN", shape=[1, 9000, 900], channels=1, residual_blocks=0)
    bijection = layer("Autoregressive", transformer=layer("Shift"), conditioner=network)
    state = Flow(Autoregressive(Shift(), PixelCNN((1, 2, 2), channels=1, residual_blocks=0))).state_dict()
    write_model(tmp_path / "m", Model("flow", layer("Flow", bijection=bijection), state), 2)
    assert costs_of(sinuflow.load, tmp_path / "m", StorageError)


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


def test_other_than_regular_files_are_refused_at_once(tmp_path):
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
        assert not thread.is_alive(), f"{path} blocks"
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
        (lambda: Flow(AutoregressiveWaves(2, hidden=(5000, 5000)), StudentT(2)), 90),
        (lambda: Flow(Whitening(3000)), 68),
        (lambda: Flow(Linear(3000)), 68),
    ],
    ids=["wide", "bfloat16", "image", "features", "layers", "blocks", "composed", "whitening", "linear"],
)
def test_a_valid_file_loads_within_the_bounds(make, least, tmp_path):
    """At most twice the size of the file, although a conditioner has a mask for every weight."""
    flow = make()
    write_model(tmp_path / "m", Model("flow", flow.config, flow.state_dict()))
    size = (tmp_path / "m").stat().st_size
    assert size >= least << 20
    del flow
    assert costs_of(sinuflow.load, tmp_path / "m", StorageError)


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
    """The bounds of these tests need a measurement that sees large allocations."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("this system does not report a process's peak memory")
    # In another process, where nothing else is freed at the same time.
    done = subprocess.run([sys.executable, "-c", ALLOCATION], capture_output=True, text=True, check=True)
    assert 150 * MEBIBYTE < int(done.stdout) < 250 * MEBIBYTE


ALLOCATION = """
from tests.hostile.bounds import MEBIBYTE, measured

with measured() as cost:
    sum(bytearray(200 * MEBIBYTE)[:: MEBIBYTE])
print(cost.peak)
"""
