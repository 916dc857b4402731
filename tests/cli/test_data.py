"""``sinuflow data`` in a process of its own."""

from __future__ import annotations

import numpy as np

from sinuflow.data import BENCHMARKS, load_benchmark
from sinuflow.data.image_sets import IMAGE_SETS
from sinuflow.data.toys import TOYS
from tests.cli.test_commands import fails, succeeds
from tests.data.test_image_sets import write_mnist
from tests.data.test_originals import write_power


def test_list_describes_every_dataset(tmp_path):
    out = succeeds("data", "list", cwd=tmp_path)
    for dataset in (*BENCHMARKS.values(), *IMAGE_SETS.values()):
        assert f"{dataset.name}: {dataset.description}; " in out
        assert dataset.source in out
        assert dataset.comparable in out
    assert (
        "electric power of one household, every minute of four years; 6 columns, 1,659,917 / 184,435 / 204,928 rows"
        in out
    )
    assert out.count("licence: ") == len(BENCHMARKS) + len(IMAGE_SETS) + len(TOYS)
    assert all(f"\n{name}: a toy density" in out for name in TOYS)
    assert "unknown: pass the folder with --data" in out


def test_prepare_then_list_then_prepare_again(tmp_path):
    write_power(tmp_path / "household_power_consumption.txt")
    prepare = ("data", "prepare", "power", "--from", "household_power_consumption.txt", "--to", "sets")
    out = succeeds(*prepare, cwd=tmp_path)
    assert "power: 234 / 26 / 28 rows of 6 columns in sets/power" in out
    first = load_benchmark("power", tmp_path / "sets")
    assert "--force" in fails(*prepare, cwd=tmp_path)
    succeeds(*prepare, "--force", cwd=tmp_path)
    np.testing.assert_array_equal(load_benchmark("power", tmp_path / "sets").train, first.train)
    (tmp_path / "sets/gas").mkdir()
    for split in ("train", "val", "test"):
        (tmp_path / "sets/gas" / f"{split}.npy").write_bytes(b"cat")
    lines = succeeds("data", "list", "--data", "sets", cwd=tmp_path).splitlines()
    present = [line for line in lines if line.startswith("  present: ")]
    assert present[0] == "  present: yes, with 234 / 26 / 28 rows"
    assert present[1].startswith("  present: damaged: sets/gas/train.npy")
    assert present[2:] == ["  present: no"] * (len(BENCHMARKS) + len(IMAGE_SETS) - 2)


def test_images_are_prepared_and_listed(tmp_path):
    write_mnist(tmp_path)
    out = succeeds("data", "prepare", "mnist", "--from", ".", "--to", "sets", cwd=tmp_path)
    assert "mnist: 3 / 10,000 / 4 images of 1 x 28 x 28 bytes in sets/mnist" in out
    assert "not comparable" in out
    assert "  present: yes, with 3 / 10,000 / 4 images" in succeeds("data", "list", "--data", "sets", cwd=tmp_path)


def test_what_goes_wrong_is_one_line(tmp_path):
    to = ("--to", "sets")
    assert "choose one of power" in fails("data", "prepare", "cat", "--from", ".", *to, cwd=tmp_path)
    assert "no recipe" in fails("data", "prepare", "gas-small", "--from", ".", *to, cwd=tmp_path)
    assert "there is no missing.txt" in fails("data", "prepare", "power", "--from", "missing.txt", *to, cwd=tmp_path)
    (tmp_path / "other.txt").write_text("a;b\n1;2\n")
    error = fails("data", "prepare", "power", "--from", "other.txt", *to, cwd=tmp_path)
    assert "other.txt is not the published file" in error
    assert "there is no folder nowhere" in fails("data", "list", "--data", "nowhere", cwd=tmp_path)
    fails("data", "prepare", "power", cwd=tmp_path, code=2)
