"""Reading and writing images."""

from __future__ import annotations

import builtins
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from sinuflow import DataError, SinuflowError
from sinuflow.data.image_files import grid_of, holds_pictures, open_pictures, read_pngs, write_png
from tests.models.small_images import gradients


def write_folder(folder, images, names=None):
    folder.mkdir(parents=True, exist_ok=True)
    for i, image in enumerate(images):
        write_png(folder / f"{i:03}.png", image)
    return folder


@pytest.mark.parametrize("channels", [1, 3])
def test_pngs_are_lossless(channels, tmp_path):
    images = gradients(5, channels)
    found = open_pictures(write_folder(tmp_path / "p", images))
    assert torch.equal(found.images, images)
    assert found.files == ["000.png", "001.png", "002.png", "003.png", "004.png"]
    assert found.labels is None
    assert found.name == "p"


def test_subfolders_are_classes(tmp_path):
    images = gradients(5)
    write_folder(tmp_path / "dog", images[:2])
    write_folder(tmp_path / "cat", images[2:])
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "cat" / "._001.png").write_bytes(b"what macOS leaves")
    (tmp_path / "cat" / "notes.txt").write_text("not a picture")
    found = open_pictures(tmp_path)
    assert found.classes == ["cat", "dog"]
    assert found.labels.tolist() == [0, 0, 0, 1, 1]
    assert found.known_labels == ["cat", "cat", "cat", "dog", "dog"]
    assert torch.equal(found.images, images[[2, 3, 4, 0, 1]])
    assert found.files[3] == "dog/000.png"
    with pytest.raises(DataError, match="classes as subfolders already"):
        open_pictures(tmp_path, labels=[0] * 5)


def test_arrays_and_their_files(tmp_path):
    images = gradients(5, 3)
    np.save(tmp_path / "x.npy", images.numpy())
    np.save(tmp_path / "grey.npy", images[:, 0].numpy())
    np.save(tmp_path / "y.npy", np.array([0, 1, 0, 1, 1], dtype=np.uint8))
    found = open_pictures(tmp_path / "x.npy", tmp_path / "y.npy")
    assert torch.equal(found.images, images)
    assert found.known_labels == [0, 1, 0, 1, 1]
    assert found.name == "x.npy"
    assert torch.equal(open_pictures(str(tmp_path / "grey.npy")).images, images[:, :1])


def test_images_are_distinguished_from_tables(tmp_path):
    for name, shape, images in [("a", (4, 3), False), ("b", (4, 3, 3), True), ("c", (4, 1, 3, 3), True)]:
        np.save(tmp_path / f"{name}.npy", np.zeros(shape))
        assert holds_pictures(tmp_path / f"{name}.npy") is images
    (tmp_path / "d.npy").write_bytes(b"nonsense")
    assert not holds_pictures(tmp_path / "d.npy")
    assert not holds_pictures(tmp_path / "nowhere.npy")
    assert not holds_pictures(tmp_path)
    write_folder(tmp_path / "deep" / "er", gradients(1))
    assert holds_pictures(tmp_path / "deep")
    assert holds_pictures(tmp_path / "deep" / "er")


def test_messages_for_invalid_arrays():
    for array, message in [
        (np.zeros((2, 1, 3, 3)), r"uint8 with values from 0 to 255; got float64 from 0 to 0: multiply by 255"),
        (np.full((2, 1, 3, 3), 200), r"got int64 from 200 to 200: round, and convert"),
        (np.full((2, 1, 3, 3), 300.0), r"got float64 from 300 to 300: rescale the values"),
        (np.full((2, 1, 3, 3), -1), r"got int64 from -1 to -1: rescale the values"),
        (np.full((2, 1, 3, 3), "x"), r"got <U1$"),
        (np.zeros((2, 3), dtype=np.uint8), r"shape \(N, C, H, W\), or \(N, H, W\) if they are greyscale; got \(2, 3\)"),
        (np.zeros((0, 3, 3), dtype=np.uint8), "holds no images"),
        (np.zeros((2, 0, 3), dtype=np.uint8), r"got \(2, 0, 3\)"),
        (np.zeros((2, 28, 28, 3), dtype=np.uint8), r"channels before the pixels; got \(2, 28, 28, 3\): numpy.moveaxis"),
        (torch.zeros(2, 1, 3, 3), r"got float32 from 0 to 0"),
    ]:
        with pytest.raises(DataError, match=message):
            open_pictures(array)


def test_invalid_folders_and_files_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    folder = write_folder(tmp_path / "p", gradients(2))
    (tmp_path / "x.npy").write_bytes(b"nonsense")
    (tmp_path / "x.jpg").write_bytes(b"nonsense")
    np.save(tmp_path / "objects.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    for path, message in [
        ("empty", "empty holds no PNG files"),
        ("nowhere.npy", "there is no .*nowhere.npy"),
        ("x.npy", "x.npy is not an array of numbers"),
        ("objects.npy", "objects.npy is not an array of numbers"),
        ("x.jpg", "neither a .npy file nor a folder of PNG files"),
    ]:
        with pytest.raises(DataError, match=message):
            open_pictures(tmp_path / path)
    write_folder(folder / "sub", gradients(1))
    with pytest.raises(DataError, match="both in itself and in subfolders"):
        open_pictures(folder)


def test_all_pictures_have_one_size_and_kind(tmp_path):
    good = write_folder(tmp_path, gradients(1)) / "000.png"
    Image.new("L", (9, 7)).save(tmp_path / "wide.png")
    Image.new("RGB", (7, 7)).save(tmp_path / "colour.png")
    Image.new("RGBA", (7, 7)).save(tmp_path / "alpha.png")
    Image.new("I;16", (7, 7)).save(tmp_path / "deep.png")
    whole = good.read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.png").write_text("not a picture")
    for name, message in [
        ("wide", "000.png is 7x7 greyscale, and .*wide.png is 9x7 greyscale"),
        ("colour", "colour.png is 7x7 colour"),
        ("alpha", "alpha.png has mode RGBA; expected are greyscale"),
        ("deep", "deep.png has mode I;16"),
        ("cut", "cannot read the picture .*cut.png"),
        ("text", "cannot read the picture .*text.png"),
    ]:
        with pytest.raises(DataError, match=message):
            read_pngs([good, tmp_path / f"{name}.png"])


def test_a_picture_needs_one_channel_or_three(tmp_path):
    with pytest.raises(DataError, match=r"1 or 3 channels, and these images have 2: write .npy instead"):
        write_png(tmp_path / "x.png", torch.zeros(2, 4, 4, dtype=torch.uint8))
    assert not list(tmp_path.iterdir())


def test_without_pillow_the_error_names_the_extra(monkeypatch, tmp_path):
    folder = write_folder(tmp_path, gradients(1))
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("PIL"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SinuflowError, match=r"pictures need Pillow: pip install 'sinuflow\[images\]'"):
        open_pictures(folder)


def test_a_grid_of_images():
    images = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1).expand(5, 3, 16, 8)
    picture = grid_of(images)  # 3 columns, 2 rows, every pixel twice
    assert picture.shape == (3, 2 * 32 + 2, 3 * 16 + 2 * 2)
    assert [int(picture[0, 34 * (i // 3), 18 * (i % 3)]) for i in range(5)] == [0, 1, 2, 3, 4]
    assert (picture[:, 34:, 36:] == 255).all()  # nothing is in the sixth place
    assert (picture[:, 32:34] == 255).all()
    assert grid_of(images, columns=9).shape == (3, 32, 5 * 16 + 4 * 2)


@pytest.mark.parametrize("side", [8_200, 10_000, 60_000])
def test_too_large_pictures_are_refused_before_decompression(tmp_path, side):
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    content = chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + content)
    with pytest.raises(DataError, match=r"pixels"):
        read_pngs([tmp_path / "bomb.png"])


@pytest.mark.parametrize("kind", ["EPS", "GIF", "BMP", "TIFF", "PPM"])
def test_only_png_is_decoded(tmp_path, kind):
    Image.new("L", (7, 7)).save(tmp_path / "x.png", format=kind)
    with pytest.raises(DataError, match=r"cannot read the picture .*x.png"):
        read_pngs([tmp_path / "x.png"])
