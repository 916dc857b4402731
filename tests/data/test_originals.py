"""Recipes on small files in the published formats, compared with direct computations."""

from __future__ import annotations

import gzip
import sys
from collections import Counter

import numpy as np
import pytest

from sinuflow.data import BENCHMARKS, load_benchmark
from sinuflow.data.originals import images, prepare, tables
from sinuflow.data.originals.tables import read_table, repeats_smallest, split_tenths, standardize
from sinuflow.errors import ArgumentError, DataError, StorageError

# ---------------------------------------------------------------- files as they are published


def write_power(path, rows=300):
    random = np.random.default_rng(0)
    names = "Date;Time;Global_active_power;Global_reactive_power;Voltage;Global_intensity"
    lines, complete = [f"{names};Sub_metering_1;Sub_metering_2;Sub_metering_3"], []
    for i in range(rows):
        minute = (1044 + i * 7) % 1440
        start = f"{16 + i // 200}/12/2006;{minute // 60:02d}:{minute % 60:02d}:00"
        if i % 25 == 3:
            lines.append(f"{start};?;?;?;?;?;?;")
            continue
        watts, volts = random.integers(100, 9000) / 1000, random.integers(22000, 25000) / 100
        meters = [float(m) for m in random.integers(0, 40, 3)]
        lines.append(f"{start};{watts:.3f};0.418;{volts:.3f};18.400;{';'.join(f'{m:.3f}' for m in meters)}")
        complete.append([watts, volts, *meters, minute])
    path.write_text("\n".join(lines) + "\n")
    return np.array(complete)


def write_gas(path, rows=1200):
    """Eight sensors that differ and eight that nearly copy them."""
    random = np.random.default_rng(1)
    base = random.normal(size=(rows, 8)) * np.arange(1, 9)
    sensors = np.empty((rows, 16))
    sensors[:, ::2], sensors[:, 1::2] = base, 3 * base + 0.01 * random.normal(size=base.shape)
    with path.open("w") as file:
        file.write("Time (seconds), CO conc (ppm), Ethylene conc (ppm), sensor readings (16 channels) \n")
        for i, row in enumerate(sensors):
            file.write(f"{i / 100:.2f} 0.00  0.00 " + "  ".join(f"{x:.4f}" for x in row) + " \n")
    return np.loadtxt(path, skiprows=1)[:, 3:]


def write_hepmass(folder, rows=(400, 150)):
    """27 features to the row; 5 of the first 26 are counts, and the first header names one column less."""
    random = np.random.default_rng(2)
    tables = []
    for name, n, named in zip(("1000_train.csv.gz", "1000_test.csv.gz"), rows, (26, 27), strict=True):
        table = random.normal(2, 3, size=(n, 28)).round(6)
        table[:, 0] = np.arange(n) % 3 != 0
        table[:, [6, 10, 14, 18, 22]] = random.integers(0, 3, size=(n, 5))
        table[:, 2] = table[:, 2].clip(max=2)  # a value that repeats, but not the smallest
        with gzip.open(folder / name, "wt") as file:
            file.write("# label," + ",".join(f"f{i}" for i in range(named)) + "\n")
            file.writelines(",".join(f"{x:.6e}" for x in row) + "\n" for row in table)
        tables.append(table)
    return tables


def write_miniboone(path, signal=212, background=90):
    random = np.random.default_rng(3)
    table = random.gamma(2.0, size=(signal + background, 50)).round(5)
    table[:, [3, 9, 12, 20, 31, 40, 49]] = table[:, [3, 9, 12, 20, 31, 40, 49]].clip(min=2)
    table[[5, signal - 2]] = -999.0
    with path.open("w") as file:
        file.write(f"  {signal}  {background}\n")
        file.writelines("  " + "  ".join(f"{x:.6E}" for x in row) + "\n" for row in table)
    return table[:signal]


# ---------------------------------------------------------------- recipes


def test_power_is_the_published_recipe(tmp_path):
    complete = write_power(tmp_path / "household_power_consumption.txt")
    # In the order of the published code: rows are shuffled in place, then noise is drawn for voltage, active
    # power and meters.
    random = np.random.RandomState(42)
    rows = complete.copy()
    random.shuffle(rows)
    n = len(rows)
    rows[:, 1] += 0.01 * random.rand(n)
    rows[:, 0] += 0.001 * random.rand(n)
    rows[:, 2:5] += random.rand(n, 3)
    rows[:, 5] += np.random.RandomState(2006).rand(n)
    test = rows[-int(0.1 * n) :]
    rest = rows[: -int(0.1 * n)]
    val, train = rest[-int(0.1 * len(rest)) :], rest[: -int(0.1 * len(rest))]
    for found, expected in zip(tables.prepare_power(tmp_path), (train, val, test), strict=True):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, (expected - rest.mean(0)) / rest.std(0), rtol=1e-5, atol=1e-6)


def test_gas_drops_correlated_columns_and_is_standardized_by_all_rows(tmp_path):
    table = write_gas(tmp_path / "ethylene_CO.txt")
    splits = tables.prepare_gas(tmp_path / "ethylene_CO.txt")
    assert [part.shape for part in splits] == [(243, 8), (27, 8), (30, 8)]
    chosen = table[np.random.RandomState(42).permutation(len(table))[:300]][:, 1::2]
    expected = (chosen - chosen.mean(0)) / chosen.std(0, ddof=1)
    np.testing.assert_allclose(np.vstack(splits), expected, rtol=1e-4, atol=1e-5)


def test_correlated_columns_are_dropped_one_by_one():
    """Compared with the published loop: correlate, count, drop the first, repeat."""
    random = np.random.default_rng(4)
    base = random.normal(size=(500, 3))
    table = base[:, random.integers(0, 3, 12)] + 0.12 * random.normal(size=(500, 12))
    expected = table
    while True:
        counts = (np.corrcoef(expected.T) > 0.98).sum(1)
        if not (counts > 1).any():
            break
        expected = np.delete(expected, np.flatnonzero(counts > 1)[0], axis=1)
    assert 3 <= expected.shape[1] < 12
    np.testing.assert_array_equal(tables.drop_correlated(table), expected)


def test_hepmass_keeps_the_signal_and_drops_counts_and_the_unnamed_column(tmp_path):
    train, test = write_hepmass(tmp_path)
    splits = tables.prepare_hepmass(tmp_path)
    kept = [i for i in range(1, 27) if i not in (6, 10, 14, 18, 22)]
    train, test = (table[table[:, 0] == 1][:, kept] for table in (train, test))
    mean, std = train.mean(0), train.std(0, ddof=1)
    at = len(train) - len(train) // 10
    for found, expected in zip(splits, (train[:at], train[at:], test), strict=True):
        np.testing.assert_allclose(found, (expected - mean) / std, rtol=1e-5, atol=1e-5)
    for name in ("1000_train.csv", "1000_test.csv"):  # unpacked
        (tmp_path / name).write_bytes(gzip.decompress((tmp_path / f"{name}.gz").read_bytes()))
        (tmp_path / f"{name}.gz").unlink()
    np.testing.assert_array_equal(tables.prepare_hepmass(tmp_path / "1000_train.csv").test, splits.test)


def test_hepmass_reads_the_first_tenth_only(tmp_path, monkeypatch):
    write_hepmass(tmp_path)
    monkeypatch.setattr(tables, "_TRAIN_ROWS", 300)
    monkeypatch.setattr(tables, "_TEST_ROWS", 30)
    assert [len(part) for part in tables.prepare_hepmass(tmp_path)] == [180, 20, 20]


def test_miniboone_is_signal_without_outliers(tmp_path):
    signal = write_miniboone(tmp_path / "MiniBooNE_PID.txt")
    splits = tables.prepare_miniboone(tmp_path)
    table = np.delete(np.delete(signal, [5, 210], axis=0), [3, 9, 12, 20, 31, 40, 49], axis=1)
    assert [part.shape for part in splits] == [(171, 43), (18, 43), (21, 43)]
    rest = table[: len(table) - 21]
    np.testing.assert_allclose(np.vstack(splits), (table - rest.mean(0)) / rest.std(0), rtol=1e-4, atol=1e-5)


def test_columns_that_repeat_are_those_of_the_published_code():
    """It counts all values, sorts them, and takes the first count."""
    random = np.random.default_rng(5)
    table = np.stack([random.poisson(3.0 * (i + 1), 200) for i in range(12)], 1).astype(float)
    expected = [sorted(Counter(column).items())[0][1] > 5 for column in table.T]
    assert 0 < sum(expected) < 12
    assert repeats_smallest(table).tolist() == expected


def photographs(folder, count, size=(12, 20)):
    pillow = pytest.importorskip("PIL.Image")
    folder.mkdir(parents=True)
    random = np.random.default_rng(count)
    images = [random.integers(0, 256, size, dtype=np.uint8) for _ in range(count)]
    for i, image in enumerate(images):
        pillow.fromarray(image).save(folder / f"{8 + i}.png")
    return images


def test_bsds300_patches_come_from_the_photographs(tmp_path):
    train, test = photographs(tmp_path / "images/train", 11), photographs(tmp_path / "images/test", 2)
    read = images.read_photographs(tmp_path / "images/train")
    for found, expected in zip(read, train, strict=True):  # 8.png comes before 10.png
        np.testing.assert_array_equal(found, expected)
    splits = images.split_bsds300(read, images.read_photographs(tmp_path / "images/test"), (40, 10, 30))
    again = images.split_bsds300(train, test, (40, 10, 30))
    assert [part.shape for part in splits] == [(40, 63), (10, 63), (30, 63)]
    for found, expected in zip(splits, again, strict=True):
        np.testing.assert_array_equal(found, expected)

    def windows(images):
        return np.concatenate(
            [np.lib.stride_tricks.sliding_window_view(image, (8, 8)).reshape(-1, 64) for image in images]
        )

    held = [train[i] for i in np.random.RandomState(300).permutation(11)[:1]]
    for part, pool in ((splits.val, windows(held)), (splits.test, windows(test))):
        light = pool / 256.0
        centred = (light - light.mean(1, keepdims=True))[:, :63]
        gaps = np.abs(part[:, None] - centred).max(-1).min(1)
        assert gaps.max() < 2 / 256  # noise, and the noise of the mean


def test_bsds300_noise_is_uniform_within_a_grey_value():
    patches = np.full((400, 64), 100, dtype=np.uint8)
    random = np.random.RandomState(0)
    noise = np.random.RandomState(0).rand(400, 64)
    expected = (noise - noise.mean(1, keepdims=True)) / 256
    np.testing.assert_allclose(images.dequantize(patches, random), expected[:, :63], atol=1e-7)


def test_bsds300_is_found_in_its_folder(tmp_path, monkeypatch):
    photographs(tmp_path / "BSDS300/images/train", 3)
    photographs(tmp_path / "BSDS300/images/test", 2)
    cut = images.split_bsds300
    monkeypatch.setattr(images, "split_bsds300", lambda train, test: cut(train, test, (30, 20, 10)))
    for folder in (tmp_path, tmp_path / "BSDS300", tmp_path / "BSDS300/images"):
        assert prepare("bsds300", folder, tmp_path / folder.name).train.shape == (30, 63)


# ---------------------------------------------------------------- from the file to the folder

WRITERS = {
    "power": lambda folder: write_power(folder / "household_power_consumption.txt"),
    "gas": lambda folder: write_gas(folder / "ethylene_CO.txt"),
    "hepmass": write_hepmass,
    "miniboone": lambda folder: write_miniboone(folder / "MiniBooNE_PID.txt"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_prepared_datasets_can_be_loaded(name, tmp_path):
    WRITERS[name](tmp_path)
    lines = []
    splits = prepare(name, tmp_path, tmp_path / "made/sets", progress=lines.append)
    loaded = load_benchmark(name, tmp_path / "made/sets")
    for found, expected in zip(loaded, splits, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert loaded.train.shape[1] == BENCHMARKS[name].features
    assert sorted(p.name for p in (tmp_path / "made/sets" / name).iterdir()) == ["test.npy", "train.npy", "val.npy"]
    assert "not comparable" in lines[-1]  # it was not the whole file


def test_existing_files_are_replaced_only_by_force(tmp_path):
    WRITERS["power"](tmp_path)
    prepare("power", tmp_path, tmp_path)
    for split in ("train", "val"):
        (tmp_path / "power" / f"{split}.npy").unlink()
    with pytest.raises(StorageError, match=r"test.npy exists already: replace it with --force"):
        prepare("power", tmp_path, tmp_path)
    assert len(list((tmp_path / "power").iterdir())) == 1
    prepare("power", tmp_path, tmp_path, force=True)
    load_benchmark("power", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="not a folder"):
        prepare("power", tmp_path, tmp_path / "file")


def test_a_full_disk_leaves_the_old_dataset(tmp_path, monkeypatch):
    WRITERS["power"](tmp_path)
    old = prepare("power", tmp_path, tmp_path)
    save, calls = np.save, []

    def fails(file, rows, **options):
        calls.append(file)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        save(file, rows + 1, **options)

    monkeypatch.setattr(np, "save", fails)
    with pytest.raises(StorageError, match="No space left"):
        prepare("power", tmp_path, tmp_path, force=True)
    for found, expected in zip(load_benchmark("power", tmp_path), old, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert len(list((tmp_path / "power").iterdir())) == 3


def test_a_folder_that_cannot_be_made_is_reported(tmp_path):
    WRITERS["power"](tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot create the folder"):
        prepare("power", tmp_path, tmp_path / "file" / "deeper")


# ---------------------------------------------------------------- wrong originals


def refused(name, original, to, kind=DataError):
    with pytest.raises(kind) as caught:
        prepare(name, original, to)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert not (to / name).exists()
    return message


@pytest.mark.parametrize("name", ["power", "gas", "hepmass", "miniboone", "bsds300"])
def test_missing_originals_are_named(name, tmp_path):
    for original in (tmp_path, tmp_path / "nowhere"):
        assert str(original) in refused(name, original, tmp_path / "sets")


@pytest.mark.parametrize("name", WRITERS)
def test_other_files_are_refused(name, tmp_path):
    WRITERS[name](tmp_path)
    (original,) = list(tmp_path.glob("1000_train*")) or list(tmp_path.iterdir())
    for content in (b"", b"one line\n", b"3 2\na b\n" * 20, bytes(range(256)) * 40):
        original.write_bytes(gzip.compress(content) if original.suffix == ".gz" else content)
        refused(name, tmp_path, tmp_path / "sets")


def test_files_that_are_cut_off_are_refused(tmp_path):
    write_miniboone(tmp_path / "MiniBooNE_PID.txt", signal=12, background=0)
    text = (tmp_path / "MiniBooNE_PID.txt").read_text().splitlines()
    (tmp_path / "MiniBooNE_PID.txt").write_text("\n".join(text[:-2]))
    assert "ends after 10 of 12 rows" in refused("miniboone", tmp_path, tmp_path / "sets")
    write_hepmass(tmp_path)
    packed = tmp_path / "1000_train.csv.gz"
    packed.write_bytes(packed.read_bytes()[:2000])
    assert "1000_train.csv.gz is not the published file" in refused("hepmass", tmp_path, tmp_path / "sets")
    packed.write_bytes(b"not packed at all")
    assert "1000_train.csv.gz is not the published file" in refused("hepmass", tmp_path, tmp_path / "sets")


def test_the_wrong_number_of_columns_is_refused(tmp_path):
    random = np.random.default_rng(0)
    file = tmp_path / "ethylene_CO.txt"
    np.savetxt(file, random.normal(size=(400, 19)), header="all sixteen differ")
    assert "has rows of 16 columns where gas has 8 columns" in refused("gas", file, tmp_path / "sets")
    np.savetxt(file, random.normal(size=(400, 11)), header="eight sensors")
    assert "is not the published file" in refused("gas", file, tmp_path / "sets")


def test_non_finite_values_are_refused(tmp_path):
    sensors = np.random.default_rng(0).normal(size=(400, 8))
    file = tmp_path / "ethylene_CO.txt"
    for bad in (np.nan, np.inf):
        table = np.hstack([np.zeros((400, 3)), sensors, sensors])
        table[:, 12] = bad
        np.savetxt(file, table, header="names")
        refused("gas", file, tmp_path / "sets")
    write_hepmass(tmp_path)
    with gzip.open(tmp_path / "1000_test.csv.gz", "at") as rows:
        rows.write(",".join(["1", "inf"] + ["0"] * 26) + "\n")
    assert "NaN or infinite" in refused("hepmass", tmp_path, tmp_path / "sets")


def test_too_few_rows_are_refused(tmp_path):
    write_power(tmp_path / "household_power_consumption.txt", rows=8)
    assert "tenths" in refused("power", tmp_path, tmp_path / "sets")
    with pytest.raises(DataError, match="constant"):
        standardize(split_tenths(np.ones((20, 2))), by=np.ones((20, 2)))
    for name in ("1000_train.csv", "1000_test.csv"):
        np.savetxt(tmp_path / name, np.zeros((3, 28)), delimiter=",", header="background")
    assert "label 1" in refused("hepmass", tmp_path, tmp_path / "sets")
    (tmp_path / "MiniBooNE_PID.txt").write_text("2 0\n" + "-999 1 2\n" * 2)
    assert "measurement" in refused("miniboone", tmp_path, tmp_path / "sets")
    with pytest.raises(DataError, match="no rows"):
        read_table([], "nothing")
    assert tables.drop_correlated(np.ones((1, 4))).shape == (1, 4)


def test_invalid_photographs_are_refused(tmp_path):
    photographs(tmp_path / "images/train", 1)
    photographs(tmp_path / "images/test", 2)
    assert "too few" in refused("bsds300", tmp_path, tmp_path / "sets")
    (tmp_path / "images/train/9.jpg").write_bytes(b"not a picture")
    assert "9.jpg is not a picture" in refused("bsds300", tmp_path, tmp_path / "sets")
    photographs(tmp_path / "small/train", 3, size=(7, 30))
    photographs(tmp_path / "small/test", 1)
    assert "smaller than a patch" in refused("bsds300", tmp_path / "small", tmp_path / "sets")


def test_without_pillow_one_line_says_what_to_install(tmp_path, monkeypatch):
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "pip install 'sinuflow[images]'" in refused("bsds300", tmp_path, tmp_path / "sets", Exception)


def test_unknown_datasets_and_those_without_a_recipe_are_refused(tmp_path):
    assert "no recipe" in refused("gas-small", tmp_path, tmp_path / "sets", ArgumentError)
    assert "power, gas, hepmass" in refused("cat", tmp_path, tmp_path / "sets", ArgumentError)
