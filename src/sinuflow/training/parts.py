"""Parts of a flow that are trained side by side: factors of its density with parameters of their own."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from .engine import Weights, copied


def parts_of(flow: nn.Module) -> tuple[tuple[nn.Module, ...], ...]:
    """The modules of each part of a flow; a flow without ``parts`` is a single one."""
    parts: tuple[tuple[nn.Module, ...], ...] = getattr(flow, "parts", ((flow,),))
    return parts


class Parts:
    """The validation scores of a flow's parts, and the best weights of each.

    Parts are factors of the density with separate parameters, so that each has its own best step. A part that no longer
    improves is frozen, which saves the time of its gradients.
    """

    def __init__(self, flow: nn.Module) -> None:
        self._flow = flow
        modules = parts_of(flow)
        #: Parameters that are trained, unless their part is frozen.
        self._trained = [[p for module in part for p in module.parameters() if p.requires_grad] for part in modules]
        owners = {id(t): i for i, part in enumerate(modules) for m in part for t in (*m.parameters(), *m.buffers())}
        self._part_of = {name: owners.get(id(t), 0) for name, t in flow.state_dict(keep_vars=True).items()}
        self.count = len(modules)
        #: The lowest score of each part, the step that reached it, and the validations since.
        self.scores, self.steps, self.waited = [math.inf] * self.count, [0] * self.count, [0] * self.count
        self.best: Weights | None = None

    def log_probs(self, x: Tensor, context: Tensor | None) -> Tensor:
        """The log-density of rows by part, (n, parts)."""
        distribution = self._flow(context, validate_args=False)
        terms: Tensor = distribution.log_prob(x).unsqueeze(-1) if self.count == 1 else distribution.log_probs(x)
        return terms

    def update(self, scores: list[float], step: int, weights: Weights) -> bool:
        """Take the weights of the parts whose score is lower than before; returns whether there are any."""
        better = [new < old for new, old in zip(scores, self.scores, strict=True)]
        for i, (score, improved) in enumerate(zip(scores, better, strict=True)):
            self.waited[i] = 0 if improved else self.waited[i] + 1
            self.scores[i] = score if improved else self.scores[i]
        self.take(better, step, weights)
        return any(better)

    def take(self, which: list[bool], step: int, weights: Weights) -> None:
        """Take the weights of these parts as their best ones, whatever their scores; at first, those of all parts."""
        if not any(which):
            return
        best = weights if self.best is None else self.best
        self.best = copied({name: weights[name] if which[i] else best[name] for name, i in self._part_of.items()})
        self.steps = [step if taken else before for taken, before in zip(which, self.steps, strict=True)]

    def freeze(self, which: list[bool]) -> None:
        """Train these parts no further; the others are trained."""
        for parameters, frozen in zip(self._trained, which, strict=True):
            for parameter in parameters:
                parameter.requires_grad_(not frozen)

    def state(self) -> dict[str, Any]:
        """Everything but the weights, as JSON."""
        scores = [None if math.isinf(score) else score for score in self.scores]
        return {"scores": scores, "steps": self.steps, "waited": self.waited}

    def restore(self, state: dict[str, Any], best: Weights | None) -> None:
        """Return to what :meth:`state` returned."""
        self.scores = [math.inf if score is None else score for score in state["scores"]]
        self.steps, self.waited, self.best = list(state["steps"]), list(state["waited"]), best
