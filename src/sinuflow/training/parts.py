"""Parts of a flow: factors of its density with separate parameters, which are trained together."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from .engine import Weights, copy_weights


def parts_of(flow: nn.Module) -> tuple[tuple[nn.Module, ...], ...]:
    """The modules of each part of a flow; a flow without ``parts`` is a single one."""
    parts: tuple[tuple[nn.Module, ...], ...] = getattr(flow, "parts", ((flow,),))
    return parts


class Parts:
    """The validation scores of a flow's parts, and the best weights of each.

    Because their parameters are separate, each part has its own best step. A part that no longer improves is frozen,
    which saves the time of its gradients.
    """

    def __init__(self, flow: nn.Module) -> None:
        self._flow = flow
        modules = parts_of(flow)
        #: The parameters of each part that require gradients, unless the part is frozen.
        self._trainable = [[p for module in part for p in module.parameters() if p.requires_grad] for part in modules]
        part_index = {id(t): i for i, part in enumerate(modules) for m in part for t in (*m.parameters(), *m.buffers())}
        self._part_of = {name: part_index.get(id(t), 0) for name, t in flow.state_dict(keep_vars=True).items()}
        self.count = len(modules)
        #: The lowest score of each part, its step, and the number of validations since.
        self.scores, self.steps, self.waited = [math.inf] * self.count, [0] * self.count, [0] * self.count
        self.best: Weights | None = None

    def log_probs(self, x: Tensor, context: Tensor | None) -> Tensor:
        """The log-density of rows by part, (n, parts)."""
        distribution = self._flow(context, validate_args=False)
        terms: Tensor = distribution.log_prob(x).unsqueeze(-1) if self.count == 1 else distribution.log_probs(x)
        return terms

    def update(self, scores: list[float], step: int, weights: Weights) -> bool:
        """Store the weights of the parts whose scores are lower than before; returns whether there are any."""
        improved = [new < old for new, old in zip(scores, self.scores, strict=True)]
        for i, (score, is_best) in enumerate(zip(scores, improved, strict=True)):
            self.waited[i] = 0 if is_best else self.waited[i] + 1
            self.scores[i] = score if is_best else self.scores[i]
        self.store_best(improved, step, weights)
        return any(improved)

    def store_best(self, mask: list[bool], step: int, weights: Weights) -> None:
        """Store the weights of these parts as their best ones, whatever their scores; the first call stores all."""
        if not any(mask):
            return
        best = weights if self.best is None else self.best
        self.best = copy_weights({name: weights[name] if mask[i] else best[name] for name, i in self._part_of.items()})
        self.steps = [step if stored else old for stored, old in zip(mask, self.steps, strict=True)]

    def freeze(self, mask: list[bool]) -> None:
        """Freeze these parts, and unfreeze the others."""
        for parameters, frozen in zip(self._trainable, mask, strict=True):
            for parameter in parameters:
                parameter.requires_grad_(not frozen)

    def state(self) -> dict[str, Any]:
        """The state without the weights, as JSON."""
        scores = [None if math.isinf(score) else score for score in self.scores]
        return {"scores": scores, "steps": self.steps, "waited": self.waited}

    def restore(self, state: dict[str, Any], best: Weights | None) -> None:
        """Restore the result of :meth:`state`, and the best weights."""
        self.scores = [math.inf if score is None else score for score in state["scores"]]
        self.steps, self.waited, self.best = list(state["steps"]), list(state["waited"]), best
