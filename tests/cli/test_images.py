"""The command line with images, as users run it: in a process of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import sinuflow
from sinuflow.cli.info import reconstruction
from sinuflow.data.image_files import write_png
from tests.cli.test_commands import sinuflow_command, succeeds
from tests.models.small_images import gradients

LABELS = torch.arange(60) % 2
WORSE = "worse than the baseline"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with images, as an array and as PNG files in the subfolders of their classes, and a model of them."""
    folder = tmp_path_factory.mktemp("images")
    np.save(folder / "x.npy", gradients().numpy())
    np.save(folder / "y.npy", LABELS.numpy())
    for name in ("dark", "light"):
        (folder / "png" / name).mkdir(parents=True)
    for i, (image, label) in enumerate(zip(gradients(), LABELS, strict=True)):
        write_png(folder / "png" / ("dark", "light")[label] / f"{i:02}.png", image)
    out = succeeds("fit", "png", "-o", "m.safetensors", "--steps", 20, "-q", cwd=folder)
    assert "png: 60 images of 7x7 pixels, greyscale, 2 classes; trained 20 steps" in out
    assert "bits per dimension" in out
    assert WORSE not in out
    assert "reconstruction error of 6 of them: at most" in out
    return folder


def test_fit_leaves_a_model_and_nothing_else(place):
    model = sinuflow.load(place / "m.safetensors")
    assert isinstance(model, sinuflow.ImageModel)
    assert model.classes == ["dark", "light"]
    assert not (place / "m.safetensors.run").exists()


def test_the_conditioning_is_an_option(place):
    assert "conditioning=affine" in succeeds("info", "m.safetensors", cwd=place)
    succeeds("fit", "x.npy", "-o", "s.safetensors", "--conditioning", "shift", "--steps", 2, "-q", cwd=place)
    assert sinuflow.load(place / "s.safetensors").flow.config["conditioning"] == "shift"


def test_fit_warns_if_the_model_is_worse_than_the_baseline(place):
    """Images of two shades, after two steps."""
    np.save(place / "two.npy", 255 * (gradients().numpy() > 100).astype(np.uint8))
    assert WORSE in succeeds("fit", "two.npy", "-o", "two.safetensors", "--steps", 2, "-q", cwd=place)


def test_score_lists_the_bits_of_every_image(place):
    succeeds("score", "m.safetensors", "png", "-o", "s.csv", cwd=place)
    scored = pd.read_csv(place / "s.csv")
    assert list(scored.columns) == ["image", "label", "bits_per_dimension", "log_density", "anomaly_percentile"]
    assert scored["image"].iloc[0] == str(Path("dark/00.png"))
    assert scored["label"].tolist() == ["dark"] * 30 + ["light"] * 30
    model = sinuflow.load(place / "m.safetensors")
    in_order = torch.cat([gradients()[::2], gradients()[1::2]])
    want = model.bits_per_dimension(in_order, [0] * 30 + [1] * 30)
    np.testing.assert_allclose(scored["bits_per_dimension"], want, rtol=1e-9)
    np.testing.assert_allclose(scored["log_density"], -want * 49 * np.log(2), rtol=1e-9)
    assert scored["anomaly_percentile"].between(0, 100).all()


def test_sample_writes_a_picture_or_an_array(place):
    arguments = ("sample", "m.safetensors", "-n", 6, "--label", "light", "--seed", 3, "-o")
    succeeds(*arguments, "s.png", cwd=place)
    assert "certified end to end: residual at most" in succeeds(*arguments, "s.npy", "--certify", cwd=place)
    drawn = np.load(place / "s.npy")
    want = sinuflow.load(place / "m.safetensors").sample(6, label="light", seed=3)
    assert np.array_equal(drawn, want.numpy())
    with Image.open(place / "s.png") as picture:
        assert picture.mode == "L"
        assert picture.size == (3 * 35 + 2 * 2, 2 * 35 + 2)  # five times larger, with gaps
        assert np.asarray(picture)[0, 0] == drawn[0, 0, 0, 0]


def test_info_describes_the_images(place):
    out = succeeds("info", "m.safetensors", cwd=place)
    assert "a model of the images png, 7x7 pixels, greyscale, 2 classes" in out
    assert "54 for training, 6 for validation" in out
    assert "classes: dark, light" in out
    assert "bits per dimension" in out
    assert WORSE not in out
    assert "reconstruction error of 6 of them: at most" in out
    assert "channels=8" in out


@pytest.mark.parametrize(
    ("error", "text", "warned"),
    [
        (3.1e-7, "at most 4e-07 of a pixel", False),
        (0.0038, "at most 0.004 of a pixel", False),
        (0.0041, "at most 0.005 of a pixel (0 to 1), more than one of the 256 shades", True),
        (float("inf"), "at most inf of a pixel (0 to 1), more than one of the 256 shades", True),
        (float("nan"), "more than one of the 256 shades", True),
    ],
)
def test_reconstruction_errors_beyond_one_shade_are_warned_of(error, text, warned):
    line = reconstruction({"inverted": 6, "round_trip": error})
    assert text in line
    assert warned == ("--certify" in line)


def test_errors_are_one_line_that_names_what_is_expected(place, tmp_path):
    np.save(tmp_path / "float.npy", gradients().numpy() / 255)
    np.save(tmp_path / "last.npy", gradients(channels=3).movedim(1, 3).numpy())
    np.save(tmp_path / "five.npy", np.zeros((3, 1, 1, 4, 4), dtype=np.uint8))
    np.save(tmp_path / "colour.npy", gradients(channels=3).numpy())
    np.save(tmp_path / "few.npy", gradients(7).numpy())
    (tmp_path / "table.csv").write_text("a,b\n" + "1,2\n3,5\n" * 20)
    (tmp_path / "jpegs").mkdir()
    Image.new("L", (7, 7)).save(tmp_path / "jpegs" / "a.jpg")
    (tmp_path / "mixed").mkdir()
    Image.new("L", (7, 7)).save(tmp_path / "mixed" / "a.png")
    Image.new("L", (8, 7)).save(tmp_path / "mixed" / "b.png")
    model, images, output = place / "m.safetensors", place / "x.npy", ("-o", "out.safetensors")
    steep = sinuflow.load(model)
    with torch.no_grad():
        for name, parameter in steep.flow.named_parameters():
            parameter.mul_(2.5 if "conditioner" in name else 1.0)
    steep.save(tmp_path / "steep.safetensors")
    cases = [
        (
            ["sample", "steep.safetensors", "-n", 3, "--seed", 0, "-o", "s.npy", "--certify"],
            "over the whole flow, beyond the",
        ),
        (["fit", "float.npy", *output], "must hold bytes, dtype uint8 with values from 0 to 255; got float64 from"),
        (["fit", "last.npy", *output], "channels before the pixels; got (60, 7, 7, 3)"),
        (["fit", "five.npy", *output], "must have shape (N, C, H, W), or (N, H, W) if they are greyscale"),
        (["fit", "few.npy", *output], "few.npy holds 7 images, and at least 20 are needed"),
        (["fit", "jpegs", *output], "jpegs is a folder with neither .parquet files nor PNG pictures"),
        (["fit", "mixed", *output], "all pictures must have the same size and kind"),
        (["fit", images, "--labels", "nowhere.npy", *output], "there is no nowhere.npy"),
        (["fit", images, "--labels", "few.npy", *output], "few.npy must have one integer for each of the 60 images"),
        (["fit", place / "png", "--labels", place / "y.npy", *output], "classes as subfolders already"),
        (["fit", images, "--context", "a", *output], "--context is for tables, and"),
        (["fit", images, "--conditioning", "full", *output], "--conditioning full is for tables, and"),
        (["fit", "table.csv", "--conditioning", "affine", *output], "--conditioning affine is for images, and"),
        (
            ["fit", images, "--conditioning", "affine", "--stability", 5, *output],
            "stability is for shifts alone: leave it out, or choose the conditioning shift",
        ),
        (["fit", "table.csv", "--labels", place / "y.npy", *output], "--labels is for images, and table.csv holds"),
        (["fit", "table.csv", "--stability", 5, *output], "--stability is for images, and table.csv holds"),
        (["fit", images, "--stability", -5, *output], "stability must be above 0, or None; got -5.0"),
        (["score", model, "colour.npy", "-o", "s.csv"], "must have shape (N, 1, 7, 7); got (60, 3, 7, 7)"),
        (["score", model, images, "-o", "s.csv"], "give a label for each image, of dark, light"),
        (["score", model, "table.csv", "-o", "s.csv"], "neither a .npy file nor a folder of PNG files"),
        (["sample", model, "-n", 3, "-o", "s.csv"], "the name must end in .png or .npy"),
        (["sample", model, "-n", 3, "--label", "grey", "-o", "s.png"], "no class 'grey'; the model has dark, light"),
        (["sample", model, "-n", 3, "--given", "a=1", "-o", "s.png"], "--given is for tables"),
        (["report", model, images, "-o", "r.html"], "holds a model of images; this command needs a model of a table"),
    ]
    before = sorted(tmp_path.rglob("*"))
    for arguments, message in cases:
        result = sinuflow_command(*arguments, cwd=tmp_path)
        assert result.returncode == 1, arguments
        assert len(result.stderr.splitlines()) == 1, result.stderr
        assert message in result.stderr
    assert sorted(tmp_path.rglob("*")) == before, "something was left behind"


def test_labels_of_an_array_and_an_older_output(place, tmp_path):
    (tmp_path / "s.png").write_text("precious")
    fit = ["fit", place / "x.npy", "--labels", place / "y.npy", "-o", "n.safetensors", "--steps", 2, "--stability", 5]
    score = ["score", "n.safetensors", place / "x.npy", "--labels", place / "y.npy", "-o", "s.parquet"]
    sample = ["sample", "n.safetensors", "-n", 3, "-o", "s.png"]
    commands = [fit, score, sample, [*sample, "--force"], ["sample", place / "m.safetensors", *sample[2:]]]
    done = [sinuflow_command(*command, cwd=tmp_path) for command in commands]
    assert [result.returncode for result in done] == [0, 0, 1, 0, 1]
    assert "bits/dim" in done[0].stderr  # the progress is in bits
    assert "replace it with --force" in done[2].stderr
    scored = pd.read_parquet(tmp_path / "s.parquet")
    assert scored["image"].tolist() == list(range(60))
    assert scored["label"].tolist() == LABELS.tolist()
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
