"""Parts of a flow: the best weights of each, freezing, and checkpoints."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

import sinuflow.training.trainer as trainer_module
from sinuflow import ArgumentError, Flow, SinusoidalFlow, StorageError, TrainingError, fit
from sinuflow.bijections import Chain, ElementwiseAffine, LDUBlock
from sinuflow.flows import StudentT
from sinuflow.flows.categorical import CategoricalMADE
from sinuflow.flows.mixed import MixedFlow
from sinuflow.flows.storage import read_model, write_model
from sinuflow.training.device_engine import DeviceEngine
from sinuflow.training.engine import EagerEngine
from sinuflow.training.parts import Parts
from tests.training.small import banana, small_flow, weights_of
from tests.training.small import quick as quick_single


class TwoParts(nn.Module):
    """Modules with parameters and buffers, and a tensor that is in no part."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.more = nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(1, 1)
        self.register_buffer("shared", torch.zeros(1))
        self.parts = (self.left,), (self.right, self.more)


def filled(flow, value):
    """A state in which every tensor has this value."""
    return {name: torch.full_like(t, value) for name, t in flow.state_dict().items()}


# ---------------------------------------------------------------- the best weights of each part


def test_every_part_has_its_own_best_weights():
    flow = TwoParts()
    parts = Parts(flow)
    assert parts.best is None
    assert parts.update([3.0, 5.0], 0, filled(flow, 0))
    assert parts.update([2.0, 6.0], 10, filled(flow, 1))
    assert parts.update([2.5, 4.0], 20, filled(flow, 2))
    assert not parts.update([2.0, 4.5], 30, filled(flow, 3))  # equal is not better
    assert (parts.scores, parts.steps, parts.waited) == ([2.0, 4.0], [10, 20], [2, 1])
    best = {name: float(t.flatten()[0]) for name, t in parts.best.items()}
    assert best.pop("shared") == 1  # with the first part
    assert best == {name: 1 if name.startswith("left") else 2 for name in best}
    assert {"right.running_mean", "right.num_batches_tracked", "more.weight"} < best.keys()


def test_the_best_weights_are_copies():
    flow = TwoParts()
    parts, weights = Parts(flow), filled(flow, 0)
    parts.update([3.0, 5.0], 0, weights)
    weights["left.weight"].fill_(7.0)
    assert float(parts.best["left.weight"].abs().max()) == 0
    second = filled(flow, 2)
    parts.update([1.0, 9.0], 1, second)
    second["left.weight"].fill_(7.0)
    assert parts.best["left.weight"].unique().tolist() == [2.0]


def test_the_state_is_json_and_comes_back():
    flow = TwoParts()
    parts, again = Parts(flow), Parts(flow)
    again.restore(json.loads(json.dumps(parts.state())), None)
    assert (again.scores, again.steps, again.waited, again.best) == ([math.inf] * 2, [0, 0], [0, 0], None)
    parts.update([3.0, 5.0], 4, filled(flow, 0))
    parts.update([2.0, 6.0], 8, filled(flow, 1))
    again.restore(json.loads(json.dumps(parts.state())), parts.best)
    for both in (parts, again):
        both.update([9.0, 4.0], 12, filled(flow, 2))
        assert (both.scores, both.steps, both.waited) == ([2.0, 4.0], [8, 12], [1, 0])
    assert {k: t.tolist() for k, t in again.best.items()} == {k: t.tolist() for k, t in parts.best.items()}


def test_a_flow_without_parts_is_one():
    flow = small_flow()
    parts, x = Parts(flow), torch.randn(5, 2)
    assert parts.count == 1
    torch.testing.assert_close(parts.log_probs(x, None), flow().log_prob(x).unsqueeze(1))
    mixed = overfitting_flow()
    x = rows(5)
    torch.testing.assert_close(Parts(mixed).log_probs(x, None), mixed().log_probs(x))


def rows(count, seed=0):
    """Eight independent codes, of which nothing can be learned, and two numbers that depend on each other."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(4, (count, 8), generator=generator).float()
    x = torch.randn(count, 2, generator=generator)
    x[:, 1] = 0.2 * x[:, 1] + x[:, 0] ** 2 - 1
    return torch.cat([codes, x], dim=1)


def overfitting_flow(seed=0, base=None):
    """Its network for the codes is far too large for a hundred rows."""
    torch.manual_seed(seed)
    categories = CategoricalMADE([4] * 8, hidden=(64, 64))
    flow = SinusoidalFlow(2, 32, "full", blocks=2, scales=1, waves=2, hidden=(16,))
    return MixedFlow(categories, flow if base is None else Flow(flow.bijection, base))


#: Without clipping, by which parts would affect each other.
SETTINGS = {"steps": 120, "batch_size": 50, "validate_every": 10, "learning_rate": 3e-3, "clip": None}


def quick(flow, validation=True, **options):
    val = rows(200, seed=1) if validation else None
    return fit(flow, rows(100), val, device="cpu", progress=False, **{**SETTINGS, **options})


def test_a_part_that_overfits_has_weights_of_an_earlier_step():
    flow = overfitting_flow()
    result = quick(flow)
    discrete, continuous = result.part_steps
    assert discrete < 40 < 80 < continuous
    assert result.best_step == continuous
    # Better than the best step of the whole flow.
    assert result.best_nll < min(record["val_nll"] for record in result.history) - 0.1
    with torch.no_grad():
        assert -float(flow().log_prob(rows(200, seed=1)).mean()) == pytest.approx(result.best_nll, abs=1e-4)
    # The weights of both parts are those of the same run, at their own steps.
    for steps, part in ((discrete, "categories."), (continuous, "bijection.")):
        other = overfitting_flow()
        quick(other, validation=False, part_steps=[steps, steps])
        for name, t in flow.state_dict().items():
            if name.startswith(part):
                assert torch.equal(t, other.state_dict()[name]), name


# ---------------------------------------------------------------- freezing


def test_freezing_leaves_fixed_parameters_alone():
    flow = TwoParts()
    flow.right.bias.requires_grad_(False)
    parts = Parts(flow)
    for which in ([True, False], [False, True], [True, True], [False, False]):
        parts.freeze(which)
        left, right = (not frozen for frozen in which)
        expected = {"left.weight": left, "left.bias": left, "right.weight": right, "right.bias": False,
                    "more.weight": right, "more.bias": right}  # fmt: skip
        assert {name: p.requires_grad for name, p in flow.named_parameters()} == expected


@pytest.fixture
def watched(monkeypatch):
    """After every step: the number, which parts are trained, and a weight of each."""
    seen = []
    original = EagerEngine.advance

    def advancing(self, step, most):
        flow = self.flow
        inside = [next(part.parameters()).requires_grad for part in (flow.categories, flow.bijection)]
        result = original(self, step, most)
        heads = flow.categories.head.weight, flow.bijection.bijections[0].conditioner.head.weight
        seen.append((step + 1, *inside, *(t.detach().clone() for t in heads)))
        return result

    monkeypatch.setattr(EagerEngine, "advance", advancing)
    return seen


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_a_part_that_no_longer_improves_is_frozen(watched, optimizer):
    flow = overfitting_flow()
    result = quick(flow, patience=3, optimizer=optimizer, weight_decay=1e-3)
    end = result.part_steps[0] + 30
    assert [trained for _, trained, *_ in watched] == [step <= end for step, *_ in watched]
    assert all(continuous for _, _, continuous, *_ in watched)
    at_the_end = next(t for step, *_, t, _ in watched if step == end)
    for (step, *_, discrete, continuous), (*_, before) in zip(watched[1:], watched, strict=False):
        assert (step <= end) or torch.equal(discrete, at_the_end)  # not by weight decay or momentum either
        assert not torch.equal(continuous, before)
    assert end < result.steps
    assert all(p.requires_grad for p in flow.parameters())


def test_training_ends_when_no_part_improves():
    result = quick(overfitting_flow(), patience=2, steps=400, learning_rate=2e-2)
    assert result.stopped_early
    assert result.steps == max(result.part_steps) + 20


def test_freezing_ends_with_a_run_that_fails(monkeypatch):
    flow = overfitting_flow()
    original = EagerEngine.advance

    def advancing(self, step, most):
        if step == 100:
            assert not any(p.requires_grad for p in flow.categories.parameters())
            raise KeyboardInterrupt
        return original(self, step, most)

    monkeypatch.setattr(EagerEngine, "advance", advancing)
    with pytest.raises(KeyboardInterrupt):
        quick(flow, patience=2)
    assert all(p.requires_grad for p in flow.parameters())


@pytest.mark.parametrize("mixed", [False, True])
def test_training_does_not_thaw_what_a_user_fixed(mixed):
    base = StudentT(2, 4.0)
    if mixed:
        flow = overfitting_flow(base=base)
        flow.categories.head.bias.requires_grad_(False)
        quick(flow, patience=2)
    else:
        flow = Flow(Chain([LDUBlock(2, scales=1, hidden=(8,)), ElementwiseAffine(2)]), base)
        quick_single(flow)
    fixed = {name for name, p in flow.named_parameters() if not p.requires_grad}
    assert fixed == {"base.log_df", *(["categories.head.bias"] if mixed else [])}
    assert base.df.tolist() == pytest.approx([4.0, 4.0])


# ---------------------------------------------------------------- steps of parts


@pytest.mark.parametrize("ema", [None, 0.9])
def test_without_validation_a_part_has_the_weights_after_its_steps(ema, watched):
    flow, reference = overfitting_flow(), overfitting_flow()
    result = quick(flow, validation=False, part_steps=[33, 75], steps=75, ema=ema)
    assert result.part_steps == [33, 75]
    assert result.steps == result.best_step == 75
    assert [trained for _, trained, *_ in watched] == [step <= 33 for step, *_ in watched]
    assert all(p.requires_grad for p in flow.parameters())
    # The same run without an end of its parts has the same weights up to there.
    found = {}
    advance = EagerEngine.advance

    def advancing(self, step, most):
        taken = advance(self, step, most)
        weights = self.flow.state_dict() if self.average is None else self.average
        found[step + 1] = {name: t.clone() for name, t in weights.items()}
        return taken

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EagerEngine, "advance", advancing)
        quick(reference, validation=False, steps=75, ema=ema)
    for name, t in flow.state_dict().items():
        assert torch.equal(t, found[33 if name.startswith("categories.") else 75][name]), name


def test_a_part_without_steps_keeps_its_initial_weights():
    flow = overfitting_flow()
    quick(flow, validation=False, part_steps=[0, 20], steps=20)
    assert float(flow.categories.head.weight.detach().abs().max()) == 0
    codes = rows(100)[:, :8].long()
    fresh = overfitting_flow().categories
    fresh.set_frequencies(codes)
    torch.testing.assert_close(flow.categories.log_prob(codes), fresh.log_prob(codes))
    assert float(flow.bijection.bijections[0].conditioner.head.weight.detach().abs().max()) > 0


@pytest.mark.parametrize("validation", [False, True])
def test_training_ends_with_its_last_part(validation):
    result = quick(overfitting_flow(), validation, part_steps=[7, 25], steps=60)
    assert result.steps == 25
    assert result.history[-1]["step"] == 25
    assert validation or result.part_steps == [7, 25]


def test_parts_that_end_in_different_ways_end_the_training():
    """The codes have their steps before the numbers stop to improve, or the other way round."""
    result = quick(overfitting_flow(), patience=1, part_steps=[300, 15], steps=400, learning_rate=1e-2)
    assert result.steps < 400


def test_a_single_flow_ends_at_its_step():
    flow, reference = small_flow(), small_flow()
    options = {"batch_size": 64, "progress": False, "device": "cpu", "schedule": "constant", "warmup": 0}
    result = fit(flow, banana(200), steps=40, part_steps=[15], **options)
    fit(reference, banana(200), steps=15, **options)
    assert (result.steps, result.part_steps) == (15, [15])
    assert all(torch.equal(a, b) for a, b in zip(weights_of(flow), weights_of(reference), strict=True))


def test_without_validation_the_last_weights_are_those_of_all_parts():
    assert quick(overfitting_flow(), validation=False, steps=12).part_steps == [12, 12]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([5], "one entry for each of the flow's 2 parts; got 1"),
        ([5, 5, 5], "one entry for each of the flow's 2 parts; got 3"),
        ([5, -1], "every entry of part_steps must be a whole number of at least 0; got -1"),
        ([5, 2.5], "every entry of part_steps must be a whole number"),
        (5, "part_steps must be a list of whole numbers; got 5"),
    ],
)
def test_invalid_steps_of_parts_are_refused(steps, message):
    flow = overfitting_flow()
    before = weights_of(flow)
    with pytest.raises(ArgumentError, match=message):
        quick(flow, part_steps=steps)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(flow), before, strict=True))


def test_the_device_engine_returns_the_weights_of_the_same_steps(monkeypatch):
    """It trains all parameters to the end, and so has the weights of each part at its own step."""

    def make_engine(*arguments):
        return DeviceEngine(*arguments[:5], capture=False, elapsed=arguments[5])

    monkeypatch.setattr(trainer_module, "make_engine", make_engine)
    flow, reference = overfitting_flow(), overfitting_flow()
    result = quick(flow, validation=False, part_steps=[33, 75], steps=75)
    assert result.part_steps == [33, 75]
    monkeypatch.undo()
    quick(reference, validation=False, part_steps=[33, 75], steps=75)
    for ours, theirs in zip(weights_of(flow), weights_of(reference), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- checkpoints


class StopError(Exception):
    pass


def stopped(monkeypatch, step, run, *arguments, **options):
    """A run that fails at a step."""
    original = EagerEngine.advance

    def advancing(self, now, most):
        if now == step:
            raise StopError
        return original(self, now, most)

    with monkeypatch.context() as patch:
        patch.setattr(EagerEngine, "advance", advancing)
        with pytest.raises(StopError):
            run(*arguments, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"patience": 2},
        {"patience": 2, "ema": 0.9, "optimizer": "adamw", "schedule": "plateau"},
        {"validation": False, "part_steps": [23, 90], "steps": 90},
        {"validation": False, "part_steps": [23, 90], "steps": 90, "ema": 0.9},
        {"part_steps": [23, 90], "steps": 90},
    ],
    ids=["patience", "average", "steps", "steps and average", "steps and validation"],
)
def test_a_resumed_run_ends_with_identical_weights(options, tmp_path, monkeypatch):
    whole, resumed = overfitting_flow(), overfitting_flow(seed=9)
    reference = quick(whole, **options)
    stopped(monkeypatch, 57, quick, overfitting_flow(), checkpoint=tmp_path, checkpoint_steps=19, **options)
    result = quick(resumed, checkpoint=tmp_path, checkpoint_steps=19, resume=True, **options)
    assert (result.part_steps, result.best_step) == (reference.part_steps, reference.best_step)
    assert [r["val_nll"] for r in result.history] == [r["val_nll"] for r in reference.history]
    for (name, ours), theirs in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name


def test_a_run_resumes_with_the_same_steps_of_parts_alone(tmp_path, monkeypatch):
    options = {"validation": False, "steps": 90, "checkpoint": tmp_path, "checkpoint_steps": 19}
    stopped(monkeypatch, 57, quick, overfitting_flow(), part_steps=[23, 90], **options)
    with pytest.raises(TrainingError, match=r"part_steps was \[23, 90\], now \[40, 90\]"):
        quick(overfitting_flow(), resume=True, part_steps=[40, 90], **options)
    with pytest.raises(TrainingError, match=r"part_steps was \[23, 90\], now None"):
        quick(overfitting_flow(), resume=True, **options)


def changed(folder, **config):
    """Change the configuration of a checkpoint; None removes a field."""
    path = folder / "checkpoint.safetensors"
    model = read_model(path)
    new = {name: value for name, value in {**model.config, **config}.items() if value is not None}
    write_model(path, model._replace(config=new))


def test_a_checkpoint_of_the_first_version_resumes(tmp_path, monkeypatch):
    """It has the scores of no parts, and none that includes a penalty."""
    settings = {"steps": 400, "validate_every": 10, "patience": 3, "learning_rate": 2e-2}
    options = {**settings, "checkpoint": tmp_path, "checkpoint_steps": 5}
    whole, resumed = small_flow(), small_flow(seed=3)
    reference = quick_single(whole, **settings)
    assert reference.stopped_early
    stopped(monkeypatch, reference.steps - 5, quick_single, small_flow(), **options)
    changed(tmp_path, parts=None, best_score=None)
    result = quick_single(resumed, resume=True, **options)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(whole), weights_of(resumed), strict=True))
    assert (result.best_nll, result.part_steps, result.steps) == (
        reference.best_nll, reference.part_steps, reference.steps,
    )  # fmt: skip


@pytest.mark.parametrize(
    "parts",
    [
        None,
        {"scores": [1.0], "steps": [1], "waited": [0]},
        {"scores": [1.0] * 3, "steps": [1] * 3, "waited": [0] * 3},
        {"scores": [1.0] * 2, "steps": [1], "waited": [0] * 2},
        {"scores": [], "steps": [], "waited": []},
        {"scores": ["1", "2"], "steps": [1, 1], "waited": [0, 0]},
        {"scores": [math.nan, 1.0], "steps": [1, 1], "waited": [0, 0]},
        {"scores": [1.0, 1.0], "steps": [-1, 1], "waited": [0, 0]},
        {"scores": [1.0, 1.0], "steps": [1, 1]},
        {"scores": [1.0, 1.0], "steps": [1, 1], "waited": [0, 0], "more": [0, 0]},
        [1.0, 1.0],
    ],
    ids=str,
)
def test_checkpoints_with_scores_of_other_parts_are_refused(parts, tmp_path, monkeypatch):
    options = {"checkpoint": tmp_path, "checkpoint_steps": 19}
    stopped(monkeypatch, 20, quick, overfitting_flow(), **options)
    changed(tmp_path, parts=parts)
    with pytest.raises(StorageError, match="not a checkpoint of this run"):
        quick(overfitting_flow(), resume=True, **options)


def test_a_single_flow_has_the_score_of_one_part(tmp_path):
    quick_single(small_flow(), checkpoint=tmp_path)
    changed(tmp_path, parts={"scores": [1.0, 1.0], "steps": [1, 1], "waited": [0, 0]})
    with pytest.raises(StorageError, match="scores of 1 parts"):
        quick_single(small_flow(), checkpoint=tmp_path, resume=True)
