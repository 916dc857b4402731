"""Fitting image models."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sinuflow
from sinuflow import ArgumentError, DataError, TrainingError
from sinuflow.models.defaults import image_recipe
from sinuflow.models.image_fitting import histogram_bits
from tests.flows import test_image_flow
from tests.flows.test_image_flow import stripes
from tests.models.small_images import SHORT, gradients, quick_model
from tests.training.test_checkpoints import StopError, stopping_at


@pytest.fixture(scope="module")
def striped():
    """A model of stripes, horizontal or vertical by class, and images for testing."""
    generator = torch.Generator().manual_seed(0)
    images, labels = stripes(1500, generator)
    model = sinuflow.fit_images(images, labels=labels, alpha=0.05, steps=250, **SHORT)
    return model, images, stripes(300, generator)


def test_a_few_hundred_steps_beat_independent_pixels(striped):
    model, images, (test, labels) = striped
    bits = float(model.bits_per_dimension(test, labels).mean())
    baseline = histogram_bits(images, test)
    assert bits < baseline - 1
    assert model.facts["bits_per_dimension"] == pytest.approx(bits, abs=0.2)
    assert model.facts["histogram_bits"] == pytest.approx(baseline, abs=0.2)
    assert model.facts["inverted"] == 64
    assert 0 < model.facts["round_trip"] < 1e-4


def test_minutes_limit_the_steps():
    model = quick_model(gradients(), steps=None, minutes=1e-4)
    assert 1 <= model.facts["steps"] < 100
    assert "more_steps" not in quick_model(gradients(), steps=1).facts


def test_the_true_class_has_fewer_bits(striped):
    model, _, (test, labels) = striped
    right, wrong = (model.bits_per_dimension(test, which) for which in (labels, 1 - labels))
    assert (wrong > right).double().mean() > 0.9


def test_samples_have_the_class_of_their_label(striped):
    model, _, _ = striped
    for label in (0, 1):
        drawn = model.sample(40, label=label, seed=1).float().squeeze(1)
        across, down = drawn.diff(dim=2).abs().mean((1, 2)), drawn.diff(dim=1).abs().mean((1, 2))
        assert ((down > across) == (label == 0)).double().mean() > 0.9


def test_anomalies_have_high_percentiles(striped):
    model, _, (test, labels) = striped
    percentile = model.anomaly_percentile(model.bits_per_dimension(test, labels))
    assert 35 < float(percentile.mean()) < 65
    odd = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    assert (model.anomaly_percentile(model.bits_per_dimension(odd, [0] * 5)) == 100).all()


def test_the_histogram_baseline():
    generator = torch.Generator().manual_seed(0)
    (train, _), (test, _) = stripes(1100, generator), stripes(50, generator)
    assert histogram_bits(train, test) == pytest.approx(test_image_flow.histogram_bits(train, test), abs=1e-5)


@pytest.mark.parametrize(("channels", "alpha", "flips"), [(1, 1e-6, False), (3, 0.05, True)])
def test_defaults_by_channels(channels, alpha, flips):
    model = quick_model(gradients(channels=channels))
    assert model.pixels.alpha == alpha
    assert model.facts["flips"] is flips
    assert model.sample(2).shape == (2, channels, 7, 7)


def test_the_validation_split_depends_on_the_seed():
    first, same, other = (quick_model(gradients(), seed=seed) for seed in (0, 0, 1))
    assert (first.facts["train_images"], first.facts["validation_images"]) == (54, 6)
    assert first.facts["bits_per_dimension"] == same.facts["bits_per_dimension"]
    assert first.facts["histogram_bits"] != other.facts["histogram_bits"]


def test_validation_images_as_an_argument():
    train, held_out = gradients(40), gradients(9, seed=1)
    model = quick_model(train, validation=held_out)
    assert (model.facts["train_images"], model.facts["validation_images"]) == (40, 9)
    labels = torch.arange(40) % 2
    model = quick_model(train, validation=(held_out, [0, 1, 1] * 3), labels=labels)
    assert model.counts == [20, 20]
    for validation, message in [
        (held_out, r"validation must be a pair \(images, labels\)"),
        ((held_out, [0, 2, 1] * 3), "labels must be below 2"),
        ((gradients(9, channels=3), [0] * 9), r"must have shape \(1, 7, 7\), as those for training; got \(3, 7, 7\)"),
    ]:
        with pytest.raises(DataError, match=message):
            quick_model(train, validation=validation, labels=labels)


def test_a_resumed_fit_ends_with_an_identical_model(tmp_path, monkeypatch):
    options = {"steps": 30, "labels": torch.arange(60) % 3, "flips": True}
    options["training"] = {"validate_every": 10, "checkpoint_steps": 10, "batch_size": 16}
    whole = quick_model(gradients(), **options)
    with monkeypatch.context() as patch:
        stopping_at(patch, 17)
        with pytest.raises(StopError):
            quick_model(gradients(), checkpoint=tmp_path, **options)
    resumed = quick_model(gradients(), checkpoint=tmp_path, resume=True, **options)
    for a, b in zip(resumed.flow.state_dict().values(), whole.flow.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert resumed.facts["bits_per_dimension"] == whole.facts["bits_per_dimension"]
    with pytest.raises(TrainingError, match="other data"):
        quick_model(gradients(seed=5), checkpoint=tmp_path, resume=True, **options)


def test_recipes_by_size_and_device():
    assert image_recipe((1, 28, 28), gpu=True).flow == {
        "blocks": 12, "scales": 4, "waves": 4, "channels": 16, "residual_blocks": 2, "conditioning": "shift",
    }  # fmt: skip
    assert image_recipe((1, 28, 28), "paper") == image_recipe((1, 28, 28), gpu=True)
    assert image_recipe((1, 28, 28)) == image_recipe((1, 28, 28), "small", gpu=True)
    assert image_recipe((1, 8, 8), gpu=True) == image_recipe((1, 8, 8))
    with pytest.raises(ArgumentError, match="size must be one of auto, small, paper; got 'large'"):
        image_recipe((1, 8, 8), "large")


@pytest.mark.parametrize(
    ("options", "conditioning"),
    [
        ({}, "affine"),
        ({"conditioning": "shift"}, "shift"),
        ({"size": "paper"}, "shift"),
        ({"size": "paper", "conditioning": "affine"}, "affine"),
        ({"training": {"stability": 5.0}}, "shift"),
    ],
)
def test_default_conditioning(options, conditioning):
    model = sinuflow.fit_images(
        gradients(), steps=2, progress=False, architecture={"blocks": 1}, device="cpu", **options
    )
    assert model.flow.config["conditioning"] == conditioning


def test_invalid_inputs_are_refused():
    cases = [
        ({"images": gradients(19)}, "images holds 19 images, and at least 20 are needed"),
        ({"images": gradients() / 255}, "dtype uint8 with values from 0 to 255"),
        ({"labels": [0] * 59}, "one integer for each of the 60 images"),
        ({"labels": torch.arange(60) % 3 * 2}, "no image has the label 1: number the classes from 0 without gaps"),
        ({"labels": np.linspace(0, 1, 60)}, "labels must be integers"),
        ({"labels": torch.arange(60) - 1}, "labels must count the classes from 0; got -1"),
        ({"alpha": 0.7}, "alpha must be at least 0 and below 0.5"),
        ({"seed": -1}, "seed must be an integer"),
        ({"conditioning": "full"}, "conditioning of images must be one of shift, affine; got 'full'"),
    ]
    for options, message in cases:
        with pytest.raises((DataError, ArgumentError), match=message):
            quick_model(**{"images": gradients(), **options})
