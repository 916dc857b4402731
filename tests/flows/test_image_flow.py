from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import sinuflow
from sinuflow import ArgumentError, ImageFlow, InversionError, SinusoidalFlow, StorageError
from sinuflow.bijections import ElementwiseAffine
from sinuflow.bijections.image import ImageLDUBlock
from sinuflow.bijections.pixels import PixelMap, dequantize
from sinuflow.flows import storage
from tests.bijections.image_layers import look_trained
from tests.builders import batch
from tests.untraced import untraced

DOUBLE = torch.float64
every_conditioning = pytest.mark.parametrize("conditioning", ["shift", "affine"])


def trained_image_flow(shape=(2, 5, 4), context=0, dtype=DOUBLE, **options) -> SinusoidalFlow:
    options = {"blocks": 2, "scales": 2, "waves": 2, "channels": 5, "residual_blocks": 1} | options
    flow = SinusoidalFlow.image(shape, context, **options)
    look_trained(flow.bijection, dtype=dtype)
    return flow.eval()


def test_defaults_of_the_paper():
    flow = SinusoidalFlow.image()
    assert flow.features == 784
    assert flow.config == {
        "image": [1, 28, 28],
        "context": 0,
        "blocks": 12,
        "scales": 4,
        "waves": 4,
        "channels": 16,
        "residual_blocks": 2,
        "conditioning": "shift",
    }
    *blocks, last = flow.bijection
    assert len(blocks) == 12
    assert all(isinstance(b, ImageLDUBlock) for b in blocks)
    assert isinstance(last, ElementwiseAffine)
    upper, scale, _ = blocks[0]
    assert scale.frequency.shape == (4, 784, 4)
    assert len(upper.conditioner.blocks) == 2
    assert len(upper.conditioner.blocks[0].look.bias) == 16


def test_image_flows_are_sinusoidal_flows():
    flow = SinusoidalFlow.image((1, 4, 4), blocks=1)
    assert isinstance(flow, ImageFlow)
    assert isinstance(flow, SinusoidalFlow)
    assert isinstance(SinusoidalFlow.from_config(flow.config), ImageFlow)


def test_a_context_costs_few_parameters():
    unconditional, conditional = (SinusoidalFlow.image(context=context, blocks=1) for context in (0, 10))
    sizes = [sum(p.numel() for p in flow.parameters()) for flow in (unconditional, conditional)]
    assert sizes[1] - sizes[0] == 2 * 10 * (32 + 2 * 16)  # two networks: the first maps, and two bottlenecks


def test_a_fresh_flow_is_the_standard_normal():
    flow = SinusoidalFlow.image((1, 4, 4), blocks=2).double()
    x, _ = batch(16)
    want = torch.distributions.Normal(torch.zeros(16, dtype=DOUBLE), 1.0).log_prob(x).sum(-1)
    torch.testing.assert_close(flow().log_prob(x), want)


@every_conditioning
@pytest.mark.parametrize("context", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_what_is_loaded_is_what_was_saved(context, dtype, conditioning, tmp_path):
    flow = trained_image_flow(context=context, dtype=dtype, conditioning=conditioning)
    flow.save(tmp_path / "m.safetensors")
    loaded = sinuflow.load(tmp_path / "m.safetensors")
    assert loaded.config == flow.config
    assert not loaded.training
    x, c = batch(40, context, dtype=dtype)
    assert torch.equal(loaded(c).log_prob(x), flow(c).log_prob(x))
    z, _ = flow.bijection(x, c)
    assert torch.equal(loaded.bijection.inverse(z, c)[0], flow.bijection.inverse(z, c)[0])


def test_a_file_that_does_not_fit_its_configuration_is_refused(tmp_path):
    flow = trained_image_flow()
    path = tmp_path / "m.safetensors"
    for name, value, message in [
        ("channels", 6, "does not fit its configuration in"),
        ("channels", 10**7, "far too few parameters"),
        ("image", [3, 10**6, 10**6], "far too few parameters"),
        ("context", 10**9, "far too few parameters"),
        ("image", [5, 4], "an invalid configuration for a flow"),
        ("image", 4, "an invalid configuration for a flow"),
        ("channels", 1, "an invalid configuration for a flow"),
        ("hidden", [4], "an invalid configuration for a flow"),
        ("conditioning", "affine", "does not fit its configuration in"),
        ("conditioning", "full", "an invalid configuration for a flow"),
        ("conditioning", [1], "an invalid configuration for a flow"),
    ]:
        storage.write_model(path, storage.Model("flow", {**flow.config, name: value}, flow.state_dict()))
        with pytest.raises(StorageError, match=message):
            sinuflow.load(path)


def test_a_file_without_a_conditioning_holds_the_papers_flow(tmp_path):
    flow = trained_image_flow()
    config = {name: value for name, value in flow.config.items() if name != "conditioning"}
    storage.write_model(tmp_path / "m.safetensors", storage.Model("flow", config, flow.state_dict()))
    loaded = sinuflow.load(tmp_path / "m.safetensors")
    assert loaded.config == flow.config
    x, _ = batch(40)
    assert torch.equal(loaded().log_prob(x), flow().log_prob(x))


def test_flows_of_vectors_are_stored_without_hyperparameters_of_images(tmp_path):
    SinusoidalFlow(2, blocks=1, hidden=(4,)).save(tmp_path / "m.safetensors")
    with safe_open(tmp_path / "m.safetensors", framework="pt") as file:
        config = json.loads(file.metadata()["config"])
    assert not {"image", "channels", "residual_blocks"} & config.keys()


@every_conditioning
@pytest.mark.parametrize("context", [0, 3])
def test_samples_are_certified_and_come_from_their_noise(context, conditioning):
    flow = trained_image_flow((3, 6, 5), context, conditioning=conditioning)
    _, c = batch(90, context, rows=4)
    x, log_p = flow(c).rsample_and_log_prob((7,) if c is not None else (7, 4))
    assert x.shape == (7, 4, 90)
    torch.testing.assert_close(flow(c).log_prob(x), log_p, rtol=1e-7, atol=1e-6)
    noise = torch.randn(7, 4, 90, dtype=DOUBLE)
    inverse = flow.invert(noise, c)
    assert inverse.converged.all()
    torch.testing.assert_close(flow.bijection(inverse.x, c)[0], noise, rtol=1e-9, atol=1e-9)
    noise[2, 1, 5] = torch.inf
    with pytest.raises(InversionError, match="1 of 28 samples"):
        flow.invert(noise, c)


@every_conditioning
def test_gradients_of_samples_are_those_of_finite_differences(conditioning):
    flow = trained_image_flow((1, 4, 4), 2, conditioning=conditioning)
    _, c = batch(16, 2, rows=3)
    parameters = list(flow.parameters())

    def loss() -> Tensor:
        x, log_density = flow(c).rsample_and_log_prob((), torch.Generator().manual_seed(3))
        return x.sin().sum() + log_density.sin().sum()

    grads = torch.autograd.grad(loss(), parameters)
    directions = [torch.randn_like(p) for p in parameters]
    step = 1e-6
    with torch.no_grad():
        values = []
        for sign in (1, -2):
            for p, d in zip(parameters, directions, strict=True):
                p.add_(d, alpha=sign * step)
            values.append(loss())
    want = (values[0] - values[1]) / (2 * step)
    got = sum((g * d).sum() for g, d in zip(grads, directions, strict=True))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@every_conditioning
@pytest.mark.parametrize("solver", ["certified", "fixed_point"])
def test_scoring_and_inverting_compile_without_a_break(solver, conditioning):
    torch._dynamo.reset()
    flow = trained_image_flow((2, 4, 3), 2, blocks=1, conditioning=conditioning)
    x, c = batch(24, 2)

    def both(x):
        inverse = flow.invert(x, c, solver=solver, on_failure="return")
        return flow(c).log_prob(x), inverse.x, inverse.ladj, inverse.residual, inverse.converged

    got = untraced()(torch.compile(both, fullgraph=True, backend="aot_eager"))(x.requires_grad_())
    want = both(x)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-6, atol=1e-12)
    inputs = [x, *flow.parameters()]
    losses = [result[0].sum() + result[1].sin().sum() + result[2].sin().sum() for result in (got, want)]
    grads = [torch.autograd.grad(loss, inputs) for loss in losses]
    for g, w in zip(*grads, strict=True):
        torch.testing.assert_close(g, w)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_on_a_gpu_it_is_the_same_flow(dtype):
    flow = trained_image_flow((3, 6, 5), 2, dtype)
    x, c = batch(90, 2, dtype=dtype)
    want = flow(c).log_prob(x)
    on_gpu = flow.to("cuda")
    torch.testing.assert_close(on_gpu(c.cuda()).log_prob(x.cuda()).cpu(), want, rtol=1e-4, atol=1e-3)
    z, _ = on_gpu.bijection(x.cuda(), c.cuda())
    back = on_gpu.invert(z, c.cuda())
    assert back.converged.all()
    back.x.sum().backward()


def test_wrong_arguments_say_what_would_be_right():
    cases = [
        ({"shape": (28, 28)}, r"shape must be \(channels, height, width\)"),
        ({"shape": (3, 4, 4), "channels": 2}, "channels must be at least 3"),
        ({"blocks": 0}, "blocks must be a whole number of at least 1; got 0"),
        ({"residual_blocks": -1}, "residual_blocks must be a whole number of at least 0"),
        ({"context": 1.5}, "context must be a whole number"),
        ({"waves": 0}, "waves must be"),
    ]
    for arguments, message in cases:
        with pytest.raises(ArgumentError, match=message):
            SinusoidalFlow.image(**arguments)
    flow = SinusoidalFlow.image((1, 4, 4), blocks=1)
    with pytest.raises(ArgumentError, match=r"x must have shape \(\.\.\., 16\); got \(2, 1, 4, 4\)"):
        flow.bijection(torch.zeros(2, 1, 4, 4))


def stripes(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images of stripes, across for class 0 and down for class 1, at a random place and brightness."""
    classes = torch.randint(2, (count,), generator=generator)
    place = torch.randint(4, (count, 1, 1), generator=generator)
    bright = torch.randint(-30, 31, (count, 1, 1), generator=generator)
    lines = torch.arange(8).view(8, 1).expand(8, 8)
    lines = torch.where(classes.view(-1, 1, 1) == 0, lines, lines.T)
    values = torch.where((lines + place) % 4 < 2, 80, 170) + bright
    values = values + torch.randint(-4, 5, values.shape, generator=generator)
    return values.unsqueeze(1).to(torch.uint8), classes


def histogram_bits(train: Tensor, test: Tensor) -> float:
    """Bits per dimension if every pixel has a histogram of its own, with every value counted once more."""
    counts = torch.nn.functional.one_hot(train.flatten(1).long(), 256).sum(0) + 1.0
    log_share = (counts / counts.sum(1, keepdim=True)).log()
    return float(-log_share.gather(1, test.flatten(1).long().T).mean() / math.log(2))


def test_class_conditional_images_are_learned_and_sampled():
    generator = torch.Generator().manual_seed(0)
    train, labels = stripes(2000, generator)
    test, test_labels = stripes(500, generator)
    baseline = sum(
        histogram_bits(train[labels == k], test[test_labels == k]) * float((test_labels == k).double().mean())
        for k in (0, 1)
    )
    pixels = PixelMap(alpha=0.05)
    flow = SinusoidalFlow.image((1, 8, 8), context=2, blocks=2, scales=2, waves=2, channels=8, residual_blocks=1)

    def rows(images: Tensor) -> Tensor:
        return pixels.to_logits(dequantize(images, generator)).value.flatten(1)

    def one_hot(classes: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(classes, 2).float()

    def bits(images: Tensor, classes: Tensor) -> Tensor:
        x = rows(images)
        return pixels.bits_per_dimension(flow(one_hot(classes)).log_prob(x), x).mean()

    flow.initialize(rows(train), one_hot(labels))
    optimizer = torch.optim.Adam(flow.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
    for _ in range(300):
        chosen = torch.randint(len(train), (64,), generator=generator)
        loss = bits(train[chosen], labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        reached = float(bits(test, test_labels))
        wrong_class = float(bits(test, 1 - test_labels))
    assert reached < baseline - 1
    assert wrong_class > reached + 0.1

    classes = torch.tensor([0, 1]).repeat_interleave(50)
    x = flow(one_hot(classes)).sample(generator=generator)  # raises unless every sample is certified
    drawn = pixels.to_bytes(x).view(100, 8, 8).float()
    across, down = drawn.diff(dim=2).abs().mean((1, 2)), drawn.diff(dim=1).abs().mean((1, 2))
    assert ((down > across) == (classes == 0)).double().mean() > 0.9
