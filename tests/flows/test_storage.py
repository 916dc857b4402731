from __future__ import annotations

import json
import os
import stat
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from safetensors.torch import save as to_safetensors

import sinuflow
from sinuflow import SinusoidalFlow, StorageError
from sinuflow.flows import storage
from tests.builders import CONDITIONINGS, batch, trained_flow
from tests.processes import python

HERE = Path(__file__).parents[1]
CONFIG = (
    '{{"features": {features}, "conditioning": "shift", "blocks": 1, "scales": 4, "waves": 4, "hidden": [{hidden}]}}'
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_loaded_is_what_was_saved(conditioning, dtype, path):
    flow = trained_flow(3, 2, conditioning, dtype=dtype, residual=True, activation="silu", dropout=0.1, squash=3.0)
    flow.save(path)
    loaded = sinuflow.load(path)
    assert loaded.config == flow.config
    assert not loaded.training
    x, c = batch(3, 2, dtype=dtype)
    assert torch.equal(loaded(c).log_prob(x), flow(c).log_prob(x))
    z, _ = flow.bijection(x, c)
    assert torch.equal(loaded.bijection.inverse(z, c)[0], flow.bijection.inverse(z, c)[0])


@pytest.mark.parametrize("hidden", [(30_000,), (10**9, 10**12), (1,) * 30_000])
def test_hidden_sizes_without_networks_do_not_matter(hidden, path):
    flow = SinusoidalFlow(20, conditioning="none", blocks=1, hidden=hidden)
    flow.save(path)
    assert sinuflow.load(path).config == flow.config


def test_what_cannot_be_loaded_is_not_saved(path, monkeypatch):
    def refuse(*_):
        raise storage.TooLargeError

    monkeypatch.setattr(storage, "check_size", refuse)
    with pytest.raises(StorageError, match="needs far more parameters"):
        SinusoidalFlow(2, blocks=1, hidden=(4,)).save(path)
    assert not path.exists()


def save_unchecked(flow, path):
    """Write a flow that ``save`` itself would refuse."""
    storage.write_model(path, storage.Model("flow", flow.config, flow.state_dict()))


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_a_file_with_parameters_that_are_not_finite_is_refused(conditioning, path):
    flow = trained_flow(3, 0, conditioning)
    for value in (torch.nan, torch.inf):
        for parameter in flow.parameters():
            before = parameter.detach().clone()
            parameter.data.view(-1)[-1] = value
            save_unchecked(flow, path)
            with pytest.raises(StorageError, match=r"holds parameters that cannot be used.*NaN or infinite in 1 of"):
                sinuflow.load(path)
            parameter.data.copy_(before)
    flow.save(path)
    x, _ = batch(3)
    assert torch.equal(sinuflow.load(path)().log_prob(x), flow().log_prob(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_file_whose_scale_collapses_all_draws_is_refused(dtype, path):
    flow = trained_flow(3, dtype=dtype)
    x, _ = batch(3, dtype=dtype)
    affine = flow.bijection.bijections[-1]
    for log_scale, loads in [(-110.0, False), (-50.0, False), (-8.0, True), (30.0, True), (1000.0, False)]:
        affine.log_scale.data[1] = log_scale
        save_unchecked(flow, path)
        if loads:
            assert torch.equal(sinuflow.load(path)().log_prob(x), flow().log_prob(x))
        else:
            with pytest.raises(StorageError, match=r"holds parameters that cannot be used.*degenerate in 1 of 3"):
                sinuflow.load(path)


def test_paths_can_be_strings_and_relative(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    trained_flow(2).save("here.safetensors")
    assert sinuflow.load("here.safetensors", device="cpu").features == 2


def test_a_file_of_version_1_loads_for_ever():
    """The file was written by the first version of the format. It must never be written again."""
    flow = sinuflow.load(HERE / "data" / "format-1.safetensors")
    record = json.loads((HERE / "data" / "format-1.json").read_text())
    assert flow.config == record["config"]
    x = torch.tensor(record["x"], dtype=torch.float64)
    c = torch.tensor(record["context"], dtype=torch.float64)
    torch.testing.assert_close(flow(c).log_prob(x), torch.tensor(record["log_prob"], dtype=torch.float64))


def damaged(path: Path, tmp_path: Path, data: bytes) -> Path:
    other = tmp_path / "damaged.safetensors"
    other.write_bytes(data)
    return other


@settings(max_examples=60)
@given(data=st.data())
def test_a_flipped_bit_is_noticed(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bits")
    trained_flow(2, hidden=(4,), blocks=1).save(folder / "m")
    raw = bytearray((folder / "m").read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (folder / "m").write_bytes(bytes(raw))
    try:
        flow = sinuflow.load(folder / "m")
    except StorageError:
        return
    # A flip that changes nothing (white space outside of what is hashed) is all that may pass.
    original = trained_flow(2, hidden=(4,), blocks=1)
    assert flow.config == original.config
    torch.testing.assert_close(flow.state_dict(), original.state_dict(), rtol=0, atol=0)


def test_a_changed_configuration_is_noticed(path):
    flow = trained_flow(2, conditioning="full", hidden=(4,), blocks=1)
    flow.save(path)
    raw = path.read_bytes()
    assert raw.count(b'squash\\": 4.0') == 1
    path.write_bytes(raw.replace(b'squash\\": 4.0', b'squash\\": 5.0'))
    with pytest.raises(StorageError, match="damaged: its contents do not match"):
        sinuflow.load(path)


@settings(max_examples=40)
@given(keep=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_noticed(keep, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cut")
    trained_flow(2, hidden=(4,), blocks=1).save(folder / "m")
    raw = (folder / "m").read_bytes()
    (folder / "m").write_bytes(raw[: int(keep * len(raw))])
    with pytest.raises(StorageError, match=r"damaged|not a safetensors"):
        sinuflow.load(folder / "m")


def test_foreign_files_are_refused(tmp_path):
    save_file({"a": np.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(StorageError, match="but not a Sinuflow model"):
        sinuflow.load(tmp_path / "other.safetensors")
    (tmp_path / "text").write_text("hello, world")
    with pytest.raises(StorageError, match="not a safetensors file, or is damaged"):
        sinuflow.load(tmp_path / "text")
    torch.save({"a": 1}, tmp_path / "pickle.pt")
    with pytest.raises(StorageError, match="not a safetensors"):
        sinuflow.load(tmp_path / "pickle.pt")
    with pytest.raises(StorageError, match=r"cannot read .*missing: there is no such file$"):
        sinuflow.load(tmp_path / "missing")
    with pytest.raises(StorageError, match="it is a folder"):
        sinuflow.load(tmp_path)


def forged(path, change_header=None, change_tensors=None):
    """A file with one mistake and a valid checksum."""
    flow = trained_flow(2, hidden=(4,), blocks=1)
    tensors = dict(flow.state_dict())
    if change_tensors:
        change_tensors(tensors)
    header = {
        "format": "sinuflow",
        "format_version": "1",
        "kind": "flow",
        "config": json.dumps(flow.config),
    }
    if change_header:
        change_header(header)
    header.setdefault("sha256", storage._checksum(header, tensors))
    path.write_bytes(to_safetensors(tensors, metadata=header))
    return path


def test_an_unchanged_forged_file_loads(path):
    assert sinuflow.load(forged(path)).features == 2


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("format_version", "3", "format version 3, and this Sinuflow reads up to 2: upgrade"),
        ("format_version", "one", "no valid format version"),
        ("format_version", "²", "its header is not plain ASCII"),
        ("format_version", "9" * 5000, "no valid format version"),
        ("kind", "teapot", "holds a 'teapot'"),
        ("sha256", "0" * 64, "damaged: its contents do not match their checksum"),
        ("config", "{", "invalid configuration for a flow"),
        ("config", "[]", "invalid configuration for a flow"),
        ("config", '{"features": 2, "conditioning": "shift", "blocks": Infinity}', "invalid configuration for a flow"),
        ("config", '{"features": 2, "colour": 3}', "invalid configuration for a flow"),
        ("config", '{"features": 2}', "far too few parameters"),
        ("config", '{"context": 2}', "invalid configuration for a flow: features must be given"),
        ("config", CONFIG.format(features=0, hidden=4), "invalid configuration for a flow: features must be"),
        ("config", CONFIG.format(features=3, hidden=4), "does not fit its configuration in"),
        ("config", CONFIG.format(features=2, hidden=10**9), "far too few parameters"),
        ("config", CONFIG.format(features=10**9, hidden=4), "far too few parameters"),
    ],
)
def test_invalid_headers_are_refused(path, field, value, message):
    with pytest.raises(StorageError, match=message):
        sinuflow.load(forged(path, lambda header: header.update({field: value})))
    if field != "sha256":
        with pytest.raises(StorageError):
            sinuflow.load(forged(path, lambda header: header.pop(field)))


def test_tensors_that_do_not_fit_are_refused(path):
    name = "bijection.bijections.1.mean"

    def wrong_shape(tensors):
        tensors[name] = torch.zeros(3, dtype=torch.float64)

    with pytest.raises(StorageError, match=r"in 1 tensors; .*mean' should have shape \(2,\) and has \(3,\)"):
        sinuflow.load(forged(path, change_tensors=wrong_shape))
    with pytest.raises(StorageError, match=r"should have shape \(2,\) and has none"):
        sinuflow.load(forged(path, change_tensors=lambda t: t.pop(name)))
    with pytest.raises(StorageError, match=r"'zzz' should have shape none and has \(1,\)"):
        sinuflow.load(forged(path, change_tensors=lambda t: t.update(zzz=torch.zeros(1))))
    with pytest.raises(StorageError, match=r"dtypes: torch.float32, torch.float64"):
        sinuflow.load(forged(path, change_tensors=lambda t: t.update({name: torch.zeros(2)})))


def test_saving_is_atomic(path):
    """A process killed while it writes leaves the old file whole."""
    trained_flow(2, hidden=(4,), blocks=1).save(path)
    before = path.read_bytes()
    script = textwrap.dedent(
        f"""
        import os, signal, sinuflow
        from sinuflow.flows import storage
        real = os.fsync
        def crash(handle):
            real(handle)
            os.kill(os.getpid(), signal.SIGKILL)
        storage.os.fsync = crash
        sinuflow.SinusoidalFlow(2, blocks=2, hidden=(32,)).save({str(path)!r})
        """
    )
    assert python(script).returncode == -9
    assert path.read_bytes() == before
    assert sinuflow.load(path).config["blocks"] == 1


def test_a_failed_save_leaves_nothing_behind(path, monkeypatch):
    trained_flow(2, hidden=(4,), blocks=1).save(path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.os, "fsync", full)
    with pytest.raises(StorageError, match=r"cannot write .*: No space left on device"):
        SinusoidalFlow(2, blocks=1, hidden=(4,)).save(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]
    with pytest.raises(StorageError, match=r"cannot write .*: No such file or directory"):
        SinusoidalFlow(2, blocks=1, hidden=(4,)).save(path.parent / "no" / "folder" / "m")


def test_permissions_follow_the_umask(path):
    old = os.umask(0o027)
    try:
        trained_flow(2, hidden=(4,), blocks=1).save(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
