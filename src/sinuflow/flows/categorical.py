"""CategoricalMADE: a density of discrete variables by a masked autoregressive network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..checks import choice, is_number, whole, whole_numbers
from ..conditioners.made import MaskedLinear
from ..errors import ArgumentError
from ..ops.activations import ACTIVATIONS
from ..ops.degrees import grouped_plan
from ..ops.masked_mlp import MaskedNetwork, masked_network
from ..ops.masked_mlp_inverse import incremental_groups
from ..registry import Component, register

#: Steps of iterative scaling until the frequencies of drawn values are as they should be.
_SCALINGS = 10


@register
class CategoricalMADE(Component, nn.Module):
    r"""A density of discrete variables: a softmax for each, given those before it.

    .. math:: p(k \mid \text{context}) = \prod_i \operatorname{softmax}\big(c_i(k_{<i}, \text{context})\big)_{k_i}

    c is the masked autoregressive network of Germain et al. (2015) on one-hot inputs. The last layer is initialized to
    zero, so that all values of a variable are equally likely.

    Args:
        sizes: the number of values of each variable; each is a code 0, 1, ...
        hidden: the widths of the network's hidden layers.
        context: the size of the context.
        activation: of the hidden layers.
        dropout: the probability of dropping a hidden unit in training.

    Example:
        >>> model = CategoricalMADE([2, 3], hidden=(16,))
        >>> model.log_prob(torch.tensor([[0, 2], [1, 1]])).exp()  # 1 / 2 x 1 / 3
        tensor([0.1667, 0.1667], grad_fn=<ExpBackward0>)
    """

    groups: Tensor
    offsets: Tensor

    def __init__(
        self,
        sizes: Sequence[int],
        hidden: Sequence[int] = (256, 256),
        context: int = 0,
        activation: str = "relu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.sizes, self.context = whole_numbers("sizes", sizes, 1), whole("context", context, 0)
        if not self.sizes:
            raise ArgumentError("sizes must be a list with one or more entries; got []")
        if not is_number(dropout) or not 0 <= dropout < 1:
            raise ArgumentError(f"dropout must be at least 0 and below 1; got {dropout!r}")
        self.activation, self.dropout = choice("activation", activation, ACTIVATIONS), float(dropout)
        self.plan = grouped_plan(self.sizes, self.context, self.sizes, whole_numbers("hidden", hidden, 1))
        self.layers = nn.ModuleList(MaskedLinear(layer) for layer in self.plan.hidden)
        self.head = MaskedLinear(self.plan.head, zero=True)
        sizes_ = torch.tensor(self.sizes)
        self.register_buffer("offsets", sizes_.cumsum(0) - sizes_, persistent=False)
        self.register_buffer("groups", torch.repeat_interleave(torch.arange(len(sizes_)), sizes_), persistent=False)

    @property
    def width(self) -> int:
        """The number of one-hot inputs."""
        return sum(self.sizes)

    def one_hot(self, codes: Tensor) -> Tensor:
        """The one-hot inputs (width, B) of codes (B, variables)."""
        hot = torch.zeros((self.width, len(codes)), dtype=self.head.weight.dtype, device=codes.device)
        return hot.scatter_(0, (codes + self.offsets).mT, 1.0)

    def log_probs(self, codes: Tensor, context: Tensor | None = None) -> Tensor:
        """The terms log p(kᵢ | k₁, …, kᵢ₋₁, context), (B, variables), of codes (B, variables)."""
        network, hot = self._network(), self.one_hot(codes)
        logits = masked_network(
            network, network.first_input(hot, None if context is None else context.mT), self._masks()
        )
        groups = self.groups.unsqueeze(-1).expand_as(logits)
        largest = logits.new_full((len(self.sizes), len(codes)), -torch.inf)
        largest = largest.scatter_reduce(0, groups, logits.detach(), "amax")
        total = torch.zeros_like(largest).index_add(0, self.groups, (logits - largest[self.groups]).exp())
        selected = logits.gather(0, (codes + self.offsets).mT)
        return (selected - largest - total.log()).mT

    def log_prob(self, codes: Tensor, context: Tensor | None = None) -> Tensor:
        """The log-probability (B,) of codes (B, variables), given a context (B, context) if there is one."""
        return self.log_probs(codes, context).sum(-1)

    @torch.no_grad()
    def sample(
        self,
        count: int,
        context: Tensor | None,
        generator: torch.Generator | None = None,
        excluded: Sequence[int] | None = None,
    ) -> Tensor:
        """Draw codes (count, variables), given a context (count, context) if there is one.

        ``excluded`` has a code of each variable, or -1: a variable is then drawn given the preceding ones and that it
        does not have this code.
        """
        like = self.head.weight.new_empty((0, count))
        codes = []
        context = None if context is None else context.mT
        for i, (logits, inputs) in enumerate(incremental_groups(self._network(), like, context)):
            logits = logits.double()
            if excluded is not None and excluded[i] >= 0:
                logits[excluded[i]] = -torch.inf
            u = torch.rand(count, generator=generator, dtype=torch.float64, device=like.device)
            codes.append(_quantile(logits, u))
            inputs.zero_().scatter_(0, codes[-1].unsqueeze(0), 1.0)
        return torch.stack(codes, dim=1)

    @torch.no_grad()
    def fill_unknown(self, codes: Tensor, unknown: Tensor, u: Tensor, context: Tensor | None = None) -> Tensor:
        """Codes (B, variables) with unknown ones replaced by quantiles of their distributions given preceding codes.

        ``u`` (variables,) has the probabilities of the quantiles.
        """
        like, context = self.head.weight.new_empty((0, len(codes))), None if context is None else context.mT
        complete = codes.mT.clone()
        for i, (logits, inputs) in enumerate(incremental_groups(self._network(), like, context)):
            complete[i] = torch.where(unknown[:, i], _quantile(logits.double(), u[i]), complete[i])
            inputs.zero_().scatter_(0, complete[i : i + 1], 1.0)
        return complete.mT

    def set_frequencies(self, codes: Tensor) -> None:
        """Initialize to independent variables with the frequencies of these codes, plus half a row for each value."""
        with torch.no_grad():
            self.head.bias.copy_(self.frequencies(codes).log())

    @torch.no_grad()
    def match_frequencies(
        self, frequencies: Tensor, count: int, context: Tensor | None, generator: torch.Generator | None = None
    ) -> None:
        r"""Shift the biases b of the head so that drawn values have these frequencies f, (width,).

        Variable by variable, by iterative scaling over drawn rows n, given their contexts (count, context) if there are
        some,

        .. math:: b \gets b + \log f - \log \frac1N \sum_n \operatorname{softmax}(\text{logits}_n + b)
        """
        like = self.head.weight.new_empty((0, count))
        context = None if context is None else context.mT
        targets = frequencies.double().split(list(self.sizes))
        for i, (logits, inputs) in enumerate(incremental_groups(self._network(), like, context)):
            logits = logits.double()
            shift = torch.zeros_like(targets[i])
            for _ in range(_SCALINGS):
                means = (logits + shift.unsqueeze(1)).softmax(0).mean(1)
                shift += (targets[i] / means).log()
            self.head.bias[self.offsets[i] : self.offsets[i] + self.sizes[i]] += shift.to(self.head.bias)
            u = torch.rand(count, generator=generator, dtype=torch.float64, device=like.device)
            inputs.zero_().scatter_(0, _quantile(logits + shift.unsqueeze(1), u).unsqueeze(0), 1.0)

    def frequencies(self, codes: Tensor) -> Tensor:
        """The frequency of each value (width,) in codes (B, variables); half a row is added to each value's."""
        counts = torch.bincount((codes + self.offsets).flatten(), minlength=self.width) + 0.5
        return counts / (len(codes) + 0.5 * counts.new_tensor(self.sizes))[self.groups]

    def _masks(self) -> list[Tensor]:
        return [layer.mask for layer in (*self.layers, self.head)]

    def _network(self) -> MaskedNetwork:
        layers = [*self.layers, self.head]
        skips = (False,) * len(self.layers)
        dropout = self.dropout if self.training else 0.0
        weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
        return MaskedNetwork(self.plan, weights, biases, skips, self.activation, None, dropout)


def _quantile(logits: Tensor, u: Tensor) -> Tensor:
    """The values (B,) at which the distribution functions of float64 logits (values, B) exceed u."""
    below = logits.softmax(0).cumsum(0)
    return (u * below[-1] >= below[:-1]).sum(0)
