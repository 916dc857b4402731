"""Image datasets: preparing the published files and reading them."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from sinuflow.data.image_sets import IMAGE_SETS, Splits, image_set, load_image_set
from sinuflow.data.originals import prepare
from sinuflow.errors import ArgumentError, DataError, StorageError


def idx(array: np.ndarray) -> bytes:
    sizes = np.array(array.shape, ">u4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def write_mnist(folder: Path, train: int = 10_003, side: int = 28) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    images = [random.integers(256, size=(n, side, side), dtype=np.uint8) for n in (train, 4)]
    for name, part in zip(("train", "t10k"), images, strict=True):
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(part), 1))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx((np.arange(len(part)) % 10).astype(np.uint8)))
    return images[0], images[1]


def write_cifar10(folder: Path, each: int = 1001) -> np.ndarray:
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    rows = random.integers(256, size=(6, each, 3073), dtype=np.uint8)
    for name, part in zip([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], rows, strict=True):
        (folder / f"{name}.bin").write_bytes(part.tobytes())
    return rows


def refused(*arguments: object, error: type[Exception] = DataError) -> str:
    with pytest.raises(error) as caught:
        prepare(*arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_mnist_is_split_in_the_order_of_the_files(tmp_path: Path) -> None:
    train, test = write_mnist(tmp_path)
    made = prepare("mnist", tmp_path, tmp_path / "sets")
    read = load_image_set("mnist", tmp_path / "sets")
    np.testing.assert_array_equal(read.train, train[:3, None])
    np.testing.assert_array_equal(read.val, train[3:, None])
    np.testing.assert_array_equal(read.test, test[:, None])
    assert image_set("mnist").count(tmp_path / "sets") == (3, 10_000, 4)
    labels = np.load(tmp_path / "sets" / "mnist" / "val_labels.npy")
    np.testing.assert_array_equal(labels, np.arange(3, 10_003) % 10)
    np.testing.assert_array_equal(made[4], labels)


def test_cifar10_is_read_from_its_folder_and_from_its_archive(tmp_path: Path) -> None:
    rows = write_cifar10(tmp_path / "cifar-10-batches-bin")
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "cifar-10-batches-bin", "cifar-10-batches-bin")
    pixels = rows[..., 1:].reshape(6, -1, 3, 32, 32)
    for i, original in enumerate((tmp_path, tmp_path / "cifar-10-batches-bin", tmp_path / "cifar-10-binary.tar.gz")):
        made = prepare("cifar10", original, tmp_path / str(i))
        np.testing.assert_array_equal(made.train, pixels[:5].reshape(-1, 3, 32, 32)[:5])
        np.testing.assert_array_equal(made.test, pixels[5])
        np.testing.assert_array_equal(np.load(tmp_path / str(i) / "cifar10" / "test_labels.npy"), rows[5, :, 0])
        assert len(load_image_set("cifar10", tmp_path / str(i)).val) == 5000


def test_files_that_are_not_the_published_ones_are_refused(tmp_path: Path) -> None:
    sets = tmp_path / "sets"
    assert "no folder" in refused("mnist", tmp_path / "nowhere", sets)
    assert "train-images-idx3-ubyte.gz" in refused("mnist", tmp_path, sets)
    write_mnist(tmp_path, side=27)
    assert "1 x 27 x 27 bytes where mnist has 1 x 28 x 28 bytes" in refused("mnist", tmp_path, sets)
    write_mnist(tmp_path, train=20)
    assert "not the published ones" in refused("mnist", tmp_path, sets)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"cat")
    assert "cannot be read" in refused("mnist", tmp_path, sets)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"cat"))
    assert "not the published file" in refused("mnist", tmp_path, sets)
    assert "cifar-10-binary.tar.gz" in refused("cifar10", tmp_path / "nowhere", sets)
    assert "data_batch_1.bin" in refused("cifar10", tmp_path, sets)
    (tmp_path / "file.tar.gz").write_bytes(b"cat")
    assert "damaged" in refused("cifar10", tmp_path / "file.tar.gz", sets)
    with tarfile.open(tmp_path / "other.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("cifar-10-batches-py"), io.BytesIO())
    assert "binary version" in refused("cifar10", tmp_path / "other.tar.gz", sets)
    write_cifar10(tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(b"cat")
    assert "test_batch.bin is not the published file" in refused("cifar10", tmp_path, sets)
    assert not sets.exists()


def test_an_existing_dataset_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "test_labels.npy").write_text("mine")
    assert "--force" in refused("mnist", tmp_path, tmp_path, error=StorageError)


def test_errors_of_missing_and_damaged_datasets_say_how_to_get_them(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        with pytest.raises(DataError) as caught:
            load_image_set("cifar10", folder)
        message = str(caught.value)
        assert IMAGE_SETS["cifar10"].source in message
        assert "sinuflow data prepare cifar10 --from cifar-10-binary.tar.gz" in message
        assert "\n" not in message
    (tmp_path / "mnist").mkdir()
    for split in Splits._fields:
        np.save(tmp_path / "mnist" / f"{split}.npy", np.zeros((2, 28, 28), np.uint8))
    with pytest.raises(DataError, match=r"must hold uint8 of shape \(N, 1, 28, 28\), and holds uint8 of shape \(2, 28"):
        load_image_set("mnist", tmp_path)
    np.save(tmp_path / "mnist" / "train.npy", np.zeros((0, 1, 28, 28), np.uint8))
    with pytest.raises(DataError, match="no images"):
        load_image_set("mnist", tmp_path)
    with pytest.raises(ArgumentError, match="no image dataset 'svhn'; choose one of mnist, cifar10"):
        image_set("svhn")
