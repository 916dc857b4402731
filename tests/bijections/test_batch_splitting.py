"""Batches that do not fit in memory are split, with the same results."""

from __future__ import annotations

import weakref

import pytest
import torch

import sinuflow
from looks_trained import look_trained
from sinuflow.bijections import ElementwiseAffine
from sinuflow.models.image import ImageModel

ROWS = 20


@pytest.fixture
def memory(monkeypatch):
    """A fake memory limit in rows, which records the size of every attempt and what the last failed one held."""

    class Memory:
        rows, attempts = 10**9, []
        held: weakref.ref[torch.Tensor] | None = None

        def allow(self, rows: int) -> None:
            self.rows, self.attempts = rows, []

    memory = Memory()
    for name in ("transform", "invert"):
        original = getattr(ElementwiseAffine, name)

        def limited(layer, x, *rest, original=original):
            memory.attempts.append(x.shape[-1])
            assert memory.held is None or memory.held() is None, "what failed still takes memory"
            if x.shape[-1] > memory.rows:
                taken = torch.zeros(1)
                memory.held = weakref.ref(taken)
                raise torch.OutOfMemoryError("CUDA out of memory")
            return original(layer, x, *rest)

        monkeypatch.setattr(ElementwiseAffine, name, limited)
    return memory


@pytest.fixture
def flow():
    return look_trained(sinuflow.SinusoidalFlow(3, context=2, blocks=2, hidden=(16,))).double()


def batch():
    return torch.randn(ROWS, 3).double(), torch.randn(ROWS, 2).double()


@pytest.mark.parametrize("fits", [19, 7, 1])
def test_scores_and_samples_do_not_depend_on_memory(flow, memory, fits):
    x, context = batch()

    def results():
        draws = flow(context).sample((), generator=torch.Generator().manual_seed(1))
        found = flow.invert(x, context)
        return [flow(context).log_prob(x), *flow.bijection(x, context), draws, found.x, found.ladj, found.converged]

    with torch.no_grad():
        expected = results()
        memory.allow(fits)
        found = results()
    assert min(memory.attempts) <= fits < max(memory.attempts)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_the_batch_is_halved_until_it_fits(flow, memory):
    x, context = batch()
    memory.allow(6)
    with torch.no_grad():
        flow(context).log_prob(x)
    assert memory.attempts == [20, 10, 5, 5, 5, 5]


def test_a_row_that_does_not_fit_is_an_error(flow, memory):
    x, context = batch()
    memory.allow(0)
    with torch.no_grad(), pytest.raises(torch.OutOfMemoryError):
        flow(context).log_prob(x)


def test_with_gradients_the_error_is_raised(flow, memory):
    """The autograd graph of all parts would need as much memory as that of the whole batch."""
    x, context = batch()
    memory.allow(10)
    for fails in (
        lambda: flow(context).log_prob(x),
        lambda: flow(context).rsample(),
        lambda: flow.bijection(x, context),
    ):
        with pytest.raises(torch.OutOfMemoryError):
            fails()
    for parameter in flow.parameters():
        parameter.requires_grad_(False)
    assert flow(context).log_prob(x).shape == (ROWS,)


def test_models_of_tables_and_images(memory):
    table = sinuflow.fit_table(torch.randn(200, 2).numpy(), conditioning="shift", steps=3, progress=False)
    images = torch.randint(256, (20, 1, 4, 4), dtype=torch.uint8)
    model = sinuflow.fit_images(images, steps=3, progress=False)
    assert isinstance(model, ImageModel)

    def results():
        drawn = table.sample(ROWS, seed=0).to_pandas().to_numpy().copy()
        scores = table.log_prob(drawn), model.log_prob(images)
        return [torch.as_tensor(found).double() for found in (drawn, *scores, model.sample(ROWS))]

    expected = results()
    memory.allow(7)
    for ours, theirs in zip(results(), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert memory.attempts.count(ROWS) == 4
