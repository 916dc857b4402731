"""Image models: bits per dimension, samples and files."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import sinuflow
from sinuflow import ArgumentError, DataError, InversionError, StorageError
from sinuflow.bijections.pixels import PixelMap
from sinuflow.flows import storage
from tests.models.small_images import gradients, quick_model


@pytest.fixture(scope="module")
def plain():
    return quick_model(gradients(), steps=20)


@pytest.fixture(scope="module")
def classy():
    return quick_model(gradients(), labels=torch.arange(60) % 3, steps=20)


def test_the_density_is_in_units_of_pixel_levels(plain):
    """For uniform pixels every level has the density 1/256."""
    images = torch.randint(256, (5, 1, 7, 7), dtype=torch.uint8)
    model = sinuflow.ImageModel(plain.flow, PixelMap(0.0), None, None, plain.quantiles, [], {})

    def logistic(x):
        return (-x - 2 * torch.nn.functional.softplus(-x)).sum(-1)

    class Uniform:
        log_prob = staticmethod(logistic)

    class Flow:
        features, config = 49, plain.flow.config
        parameters = plain.flow.parameters

        def __call__(self, context, validate_args):
            return Uniform()

    model.flow = Flow()
    want = torch.full((5,), -49 * math.log(256), dtype=torch.float64)
    torch.testing.assert_close(model.log_prob(images), want, rtol=1e-5, atol=0)
    torch.testing.assert_close(model.bits_per_dimension(images), torch.full_like(want, 8.0), rtol=1e-5, atol=0)


@pytest.mark.parametrize("labelled", [False, True])
def test_the_reconstruction_error_is_that_of_the_worst_pixel(labelled, plain, classy, monkeypatch):
    model, labels = (classy, torch.arange(150) % 3) if labelled else (plain, None)
    images = gradients(150, seed=2)
    assert float(model.round_trip(images, labels).max()) < 1e-4  # in float32
    seen = []

    def off(z, context, on_failure):
        """Logits that are wrong by 0.5 in one place, and no number in another image."""
        assert (context is not None) == labelled
        x = model.flow.bijection.inverse(z, context)[0]
        seen.append(x.clone())
        x[0, 3] += 0.5
        x[1, 3] = torch.nan
        return sinuflow.Inversion(x, *[torch.empty(0)] * 4)

    monkeypatch.setattr(model.flow, "invert", off)
    errors = model.round_trip(images, labels)
    assert errors.shape == (150,)
    assert len(seen) == 2  # parts
    logit = seen[0][0, 3].double()
    want = (torch.sigmoid(logit + 0.5) - torch.sigmoid(logit)) / (1 - 2 * model.pixels.alpha)
    assert float(errors[0]) == pytest.approx(float(want), abs=1e-5)
    assert errors[1] == math.inf
    assert float(errors[2:128].max()) < 1e-4


def test_scores_are_deterministic(plain):
    images = gradients(300, seed=2)
    bits = plain.bits_per_dimension(images)
    assert bits.dtype == torch.float64
    assert torch.equal(bits, plain.bits_per_dimension(images))
    assert torch.equal(bits, plain.bits_per_dimension(images.squeeze(1).numpy()))  # greyscale, as an array
    torch.testing.assert_close(-plain.log_prob(images) / (49 * math.log(2)), bits)


def test_samples_agree_with_the_flow(classy):
    drawn = classy.sample(130, label=1, seed=4)
    assert drawn.dtype == torch.uint8
    assert drawn.shape == (130, 1, 7, 7)
    assert torch.equal(drawn, classy.sample(130, label="1", seed=4))
    assert torch.equal(drawn, classy.sample(130, label=torch.ones(130, dtype=torch.int64), seed=4))
    assert not torch.equal(drawn, classy.sample(130, label=1, seed=5))
    noise = torch.randn((128, 49), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        x, _ = classy.flow.bijection.inverse(
            noise, torch.nn.functional.one_hot(torch.ones(128, dtype=torch.int64), 3).float()
        )
    assert torch.equal(drawn[:128].flatten(1), classy.pixels.to_bytes(x))


def test_sampling_falls_back_to_float64(classy, monkeypatch):
    want, real, asked = classy.sample(20), type(classy.flow.bijection).certified, []

    def certified(self, noise, context, options):
        """The layers of float32 are not certified, and after two calls those of float64 are not either."""
        asked.append(noise.dtype)
        inversion = real(self, noise, context, options)
        if noise.dtype == torch.float32 or len(asked) > 2:
            inversion = inversion._replace(converged=torch.zeros_like(inversion.converged))
        return inversion

    monkeypatch.setattr(type(classy.flow.bijection), "certified", certified)
    assert (classy.sample(20).int() - want.int()).abs().max() <= 1
    assert asked == [torch.float32, torch.float64]
    with pytest.raises(InversionError, match="20 of 20 samples"):
        classy.sample(20)


def test_by_default_classes_have_their_frequencies_in_the_data(classy):
    classy.counts, counts = [0, 60, 0], classy.counts
    try:
        generator = torch.Generator().manual_seed(0)
        assert set(classy._labels(50, None, generator).tolist()) == {1}
        assert classy.sample(2).shape == (2, 1, 7, 7)
    finally:
        classy.counts = counts
    assert counts == [20, 20, 20]


def test_at_temperature_zero_all_images_are_equal(plain):
    drawn = plain.sample(3, temperature=0.0)
    assert torch.equal(drawn[0], drawn[1])


@pytest.mark.parametrize("which", ["plain", "classy"])
def test_a_model_survives_saving_and_loading(which, request, tmp_path):
    model = request.getfixturevalue(which)
    model.save(tmp_path / "m.safetensors")
    loaded = sinuflow.load(tmp_path / "m.safetensors")
    assert isinstance(loaded, sinuflow.ImageModel)
    assert (loaded.pixels, loaded.classes, loaded.counts) == (model.pixels, model.classes, model.counts)
    assert (loaded.history[1:], loaded.facts) == (model.history[1:], model.facts)
    assert not loaded.flow.training
    labels = None if model.classes is None else [0, 1, 2] * 20
    assert torch.equal(loaded.log_prob(gradients(), labels), model.log_prob(gradients(), labels))
    assert torch.equal(loaded.sample(5), model.sample(5))
    bits = model.bits_per_dimension(gradients(), labels)
    assert torch.equal(loaded.anomaly_percentile(bits), model.anomaly_percentile(bits))


def test_an_inconsistent_file_is_refused(classy, tmp_path):
    path = tmp_path / "m.safetensors"
    classy.save(path)
    good = storage.read_model(path)
    for name, value, message in [
        ("classes", ["a"], "its flow does not fit its images or classes"),
        ("counts", None, "its flow does not fit its images or classes"),
        ("alpha", 0.7, "invalid configuration for a model of images: alpha must be"),
        ("alpha", None, "invalid configuration for a model of images"),
        ("flow", {}, "invalid configuration for a flow"),
        ("flow", sinuflow.SinusoidalFlow(49, 3).config, "does not fit its configuration"),
    ]:
        storage.write_model(path, storage.Model("images", {**good.config, name: value}, good.tensors))
        with pytest.raises(StorageError, match=message):
            sinuflow.load(path)
    vectors = sinuflow.SinusoidalFlow(49, 3, blocks=1, hidden=(4,))
    tensors = {
        "quantiles": good.tensors["quantiles"],
        **{f"flow/{name}": t for name, t in vectors.state_dict().items()},
    }
    storage.write_model(path, storage.Model("images", {**good.config, "flow": vectors.config}, tensors))
    with pytest.raises(StorageError, match="its flow does not fit its images"):
        sinuflow.load(path)
    composed = sinuflow.Flow(vectors.bijection)
    storage.write_model(path, storage.Model("images", {**good.config, "flow": composed.config}, tensors))
    with pytest.raises(StorageError, match="its flow must be a SinusoidalFlow"):
        sinuflow.load(path)
    lacking = {name: t for name, t in good.tensors.items() if name != "quantiles"}
    storage.write_model(path, storage.Model("images", good.config, lacking))
    with pytest.raises(StorageError, match="quantiles"):
        sinuflow.load(path)


def test_messages_for_invalid_arguments(plain, classy):
    cases = [
        (lambda: plain.log_prob(gradients(channels=3)), r"shape \(N, 1, 7, 7\); got \(60, 3, 7, 7\)"),
        (lambda: plain.log_prob(gradients(), [0] * 60), "this model has no classes"),
        (lambda: plain.sample(3, label=0), "this model has no classes"),
        (lambda: classy.log_prob(gradients()), "give a label for each image, of 0, 1, 2"),
        (lambda: classy.sample(3, label=3), "labels must be below 3"),
        (lambda: classy.sample(3, label="cat"), "no class 'cat'; the model has 0, 1, 2"),
        (lambda: classy.sample(3, label=[0, 1]), "one integer for each of the 3 images"),
        (lambda: plain.log_prob(np.zeros((2, 1, 7, 7))), "multiply by 255, round"),
    ]
    for ask, message in cases:
        with pytest.raises(DataError, match=message):
            ask()
    for options, message in [
        ({"count": 0}, "count must be"),
        ({"count": 1, "temperature": math.inf}, "temperature must"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            plain.sample(**options)


def test_describe(plain, classy):
    assert plain.describe() == "7x7 pixels, greyscale"
    assert classy.describe() == "7x7 pixels, greyscale, 3 classes"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_bits_and_images_on_a_gpu():
    model = quick_model(gradients(), labels=torch.arange(60) % 3, steps=50, device="cuda")
    labels = [0, 1, 2] * 20
    bits, drawn = model.bits_per_dimension(gradients(), labels), model.sample(20)
    model.to("cuda")
    torch.testing.assert_close(model.bits_per_dimension(gradients(), labels), bits, rtol=1e-4, atol=1e-4)
    assert (model.sample(20).int() - drawn.int()).abs().max() <= 1
