"""The flat optimizer against PyTorch's, and the Triton kernels against the reference."""

from __future__ import annotations

import math

import pytest
import torch

from sinuflow.ops.adam import Flat, Rules, Slot, reference_step
from sinuflow.training.guard import Guard

DOUBLE = torch.float64
SIZE = 5000


def rules(**changes):
    return Rules(**{
        "weight_decay": 0.0, "decoupled": False, "clip": None, "warmup": 20, "decay": 0.98, "max_deviations": 30.0,
        "slack": 1.0, **changes,
    })  # fmt: skip


def triton_step(*arguments):
    pytest.importorskip("triton")
    from sinuflow.ops.backends.triton import adam as flat_adam

    flat_adam.step(*arguments)


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS = {"plain": reference_step, "triton": triton_step}


class Run:
    """A few steps on given gradients and losses."""

    def __init__(self, step, kind, average=True, size=SIZE):
        generator = torch.Generator().manual_seed(1)
        self.step, self.rules = step, kind
        self.parameters = torch.randn(size, generator=generator, dtype=DOUBLE).to(DEVICE)
        self.first, self.second = torch.zeros_like(self.parameters), torch.zeros_like(self.parameters)
        self.average = self.parameters.clone() if average else None
        self.control = torch.zeros(len(Slot), dtype=DOUBLE, device=DEVICE)
        self.rates = torch.tensor([[0.01 / (1 + i), 0.1] for i in range(60)], dtype=DOUBLE, device=DEVICE)

    def go(self, gradient, losses, sign=1):
        self.step(
            self.rules, self.control, self.rates, losses.to(DEVICE), sign,
            Flat(self.parameters, gradient.to(DEVICE), self.first, self.second, self.average),
        )  # fmt: skip

    def __getitem__(self, slot):
        return float(self.control[slot])


def gradients(count, size=SIZE):
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(size, generator=generator, dtype=DOUBLE) for _ in range(count)]


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [
        (rules(), torch.optim.Adam),
        (rules(weight_decay=0.1), torch.optim.Adam),
        (rules(weight_decay=0.1, decoupled=True, clip=3.0), torch.optim.AdamW),
    ],
)
def test_steps_equal_pytorchs_optimizer(step, kind, optimizer):
    run = Run(step, kind)
    parameter = torch.nn.Parameter(run.parameters.clone())
    average = parameter.detach().clone()
    theirs = optimizer([parameter], lr=1.0, weight_decay=kind.weight_decay)
    for i, gradient in enumerate(gradients(12)):
        run.go(gradient, torch.tensor([1.0, 2.0], dtype=DOUBLE), -1)
        theirs.param_groups[0]["lr"] = 0.01 / (1 + i)
        parameter.grad = gradient.to(DEVICE).clone()
        torch.nn.utils.clip_grad_norm_([parameter], kind.clip or math.inf)
        theirs.step()
        average.lerp_(parameter.detach(), 0.1)
    torch.testing.assert_close(run.parameters, parameter.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(run.average, average, rtol=1e-12, atol=1e-12)
    assert run[Slot.APPLIED] == run[Slot.LOSS_COUNT] == run[Slot.ROW] == 12
    assert run[Slot.LOSS_SUM] == pytest.approx(-12 * 1.5)


@pytest.mark.filterwarnings("ignore:invalid value")  # NumPy's, in the interpreter
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_the_guard_skips_the_same_steps(step):
    losses = [
        5.0,
        4.0,
        *[3.0 + 0.1 * (i % 3) for i in range(25)],
        1e5,
        3.0,
        math.nan,
        math.inf,
        3.1,
        -math.inf,
        4.5,
        2.9,
    ]
    norms = [1.0] * len(losses)
    norms[10], norms[30] = math.nan, math.inf
    guard, run = Guard(slack=1.0), Run(step, rules(), size=7)
    for loss, norm in zip(losses, norms, strict=True):
        before = run.parameters.clone()
        gradient = torch.zeros(7, dtype=DOUBLE)
        gradient[0] = norm
        run.go(gradient, torch.tensor([loss], dtype=DOUBLE))
        good = guard.accept(loss, norm)
        assert bool(run[Slot.ACCEPTED]) == good
        assert before.equal(run.parameters) == (not good)
        for slot, value in (
            (Slot.SEEN, guard.seen), (Slot.MEAN, guard.mean), (Slot.DEVIATION, guard.deviation),
            (Slot.BAD_IN_A_ROW, guard.bad_in_a_row), (Slot.SKIPPED, guard.skipped),
        ):  # fmt: skip
            assert run[slot] == pytest.approx(value, rel=1e-12)
    for tensor in (run.parameters, run.first, run.second, run.average):
        assert bool(tensor.isfinite().all())
