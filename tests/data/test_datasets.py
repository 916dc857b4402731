"""Reading prepared benchmark datasets, and refusing damaged ones."""

from __future__ import annotations

import os
import pickle
import zipfile

import numpy as np
import pytest

from sinuflow.data import BENCHMARKS, Splits, load_benchmark
from sinuflow.errors import ArgumentError, DataError


def write(folder, name="power", **replaced):
    """A small dataset; a split can be replaced by another array, or omitted with None."""
    place = folder / name
    place.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    for split, rows in zip(Splits._fields, (20, 5, 7), strict=True):
        array = replaced.get(split, random.normal(size=(rows, BENCHMARKS[name].features)).astype(np.float32))
        if array is not None:
            np.save(place / f"{split}.npy", array)
    return place


def refused(folder, name="power"):
    with pytest.raises(DataError) as caught:
        load_benchmark(name, folder)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


@pytest.mark.parametrize("name", BENCHMARKS)
def test_datasets_are_read_as_written(name, tmp_path):
    place = write(tmp_path, name)
    splits = load_benchmark(name, tmp_path)
    for split, rows in zip(Splits._fields, splits, strict=True):
        assert type(rows) is np.ndarray
        assert rows.dtype == np.float32
        assert rows.flags.writeable
        assert rows.flags.c_contiguous
        np.testing.assert_array_equal(rows, np.load(place / f"{split}.npy"))
    assert BENCHMARKS[name].count(str(tmp_path)) == (20, 5, 7)


@pytest.mark.parametrize("found", BENCHMARKS.values(), ids=BENCHMARKS)
def test_every_dataset_has_source_licence_and_comparability(found):
    assert found.source.startswith("https://")
    assert found.licence
    assert found.comparable.startswith(("yes", "no: "))
    assert (found.original is None) == found.name.endswith("-small") == found.comparable.startswith("no")
    assert BENCHMARKS[found.name] is found


def test_tenths_have_the_published_sizes():
    """The registered sizes of splits by tenths follow from each other."""
    for name in ("power", "gas", "miniboone"):
        train, val, test = BENCHMARKS[name].sizes
        assert test == (train + val + test) // 10
        assert val == (train + val) // 10
    for name in ("hepmass", "hepmass-small", "miniboone-small"):
        train, val, _ = BENCHMARKS[name].sizes
        assert val == (train + val) // 10


@pytest.mark.parametrize("dtype", ["<f8", ">f8", ">f4", "<f2"])
def test_other_floats_become_float32(dtype, tmp_path):
    values = np.asfortranarray(np.arange(12.0).reshape(2, 6).astype(dtype))
    write(tmp_path, train=values)
    rows = load_benchmark("power", tmp_path).train
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, values.astype(np.float64))


def test_the_error_of_a_missing_dataset_names_its_source_and_the_command(tmp_path):
    for message in (refused(tmp_path / "nowhere"), refused(tmp_path)):
        assert "train.npy" in message
        assert "https://archive.ics.uci.edu/dataset/235/" in message
        assert "sinuflow data prepare power --from household_power_consumption.txt --to " in message
    write(tmp_path, val=None)
    assert "val.npy" in refused(tmp_path)
    assert BENCHMARKS["power"].count(tmp_path) is None
    assert "no recipe" in refused(tmp_path, "gas-small")
    assert "take gas" in refused(tmp_path, "gas-small")


def test_a_folder_is_required():
    assert "--data" in refused(None)


def test_the_error_of_an_unknown_name_lists_all_names(tmp_path):
    with pytest.raises(ArgumentError, match=r"'cat'.*power, gas, hepmass, miniboone, bsds300, gas-small"):
        load_benchmark("cat", tmp_path)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((4, 5)), "(N, 6), and holds float64 of shape (4, 5)"),
        (np.zeros(6), "shape (6,)"),
        (np.zeros((1, 6, 1)), "shape (1, 6, 1)"),
        (np.zeros((4, 6), dtype=int), "int64"),
        (np.zeros((4, 6), dtype=complex), "complex128"),
        (np.full((4, 6), "a"), "<U1"),
        (np.zeros((0, 6)), "no rows"),
        (np.array([[0.0] * 6, [np.nan] * 6]), "row 2"),
        (np.array([[0.0] * 6, [0.0] * 6, [np.inf] * 6]), "row 3"),
        (np.full((4, 6), 1e300), "row 1"),
    ],
)
def test_wrong_arrays_are_refused(array, message, tmp_path):
    write(tmp_path, test=array)
    error = refused(tmp_path)
    assert "test.npy" in error
    assert message in error
    assert "sinuflow data prepare power" in error


class Trap:
    """Unpickled, it leaves a folder behind."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_pickles_are_never_opened(tmp_path):
    trap = tmp_path / "sprung"
    place = write(tmp_path, train=np.array([[Trap(trap)] * 6], dtype=object))
    assert "train.npy is not an array of numbers" in refused(tmp_path)
    (place / "train.npy").write_bytes(pickle.dumps(Trap(trap)))
    refused(tmp_path)
    assert not trap.exists()


def test_other_files_are_refused(tmp_path):
    place = write(tmp_path)
    whole = (place / "train.npy").read_bytes()
    for content in (b"", b"cat\n" * 50, whole[:40], whole[:-1]):
        (place / "train.npy").write_bytes(content)
        assert "train.npy is not an array of numbers" in refused(tmp_path)
        with pytest.raises(DataError):
            BENCHMARKS["power"].count(tmp_path)
    with zipfile.ZipFile(place / "train.npy", "w") as packed:
        packed.writestr("train.npy", whole)
    assert "train.npy is not an array of numbers" in refused(tmp_path)


def test_a_header_with_a_wrong_size_costs_no_memory(tmp_path):
    place = write(tmp_path)
    with (place / "train.npy").open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (10**12, 6)}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(100))
    assert "train.npy is not an array of numbers" in refused(tmp_path)
