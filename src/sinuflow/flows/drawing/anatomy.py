# mypy: ignore-errors
"""What there is to draw: the parts of a flow, read from the object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from ...bijections import Bijection, Chain, ElementwiseAffine, LDUBlock, SinusoidalLayer
from ...bijections.autoregressive import Autoregressive
from ...conditioners import MADE
from ...errors import ArgumentError
from ...transformers import ConditionalWaves

Kind = Literal["upper", "scale", "lower", "waves", "affine"]
Pattern = tuple[tuple[bool, ...], ...]


@dataclass(frozen=True)
class Part:
    """A map that a flow is made of.

    Attributes:
        kind: what it does.
        pattern: whether output i (a row) depends on input j, for the first features.
        parameters: how many numbers are learned.
        context: whether it sees the context.
        scales: sinusoidal transformers in a chain; 0 for none.
        waves: of each.
        network: the widths of its network from inputs to outputs, or none.
        traits: of the network, in words.
        reverse: whether it takes the features from the last to the first.
    """

    kind: Kind
    pattern: Pattern
    parameters: int
    context: bool
    scales: int = 0
    waves: int = 0
    network: tuple[int, ...] = ()
    traits: tuple[str, ...] = ()
    reverse: bool = False


@dataclass(frozen=True)
class Anatomy:
    """A flow, from data to noise.

    Attributes:
        features: of the data.
        context: features of it; 0 for none.
        blocks: each a tuple of parts in the order in which they are applied.
        tail: what comes after all blocks, or None.
    """

    features: int
    context: int
    blocks: tuple[tuple[Part, ...], ...]
    tail: Part | None

    @property
    def parameters(self) -> int:
        """Of all parts together."""
        parts = [part for block in self.blocks for part in block]
        return sum(part.parameters for part in parts) + (self.tail.parameters if self.tail else 0)


#: Features whose dependencies are drawn.
MOST = 8


def anatomy(chain: Chain) -> Anatomy:
    """The parts of a flow's bijection.

    Example:
        >>> from sinuflow import SinusoidalFlow
        >>> flow = SinusoidalFlow(features=3, blocks=2, hidden=(16,))
        >>> found = anatomy(flow.bijection)
        >>> [part.kind for part in found.blocks[0]], found.tail.kind
        (['upper', 'scale', 'lower'], 'affine')
        >>> found.parameters == sum(p.numel() for p in flow.parameters())
        True
    """
    *layers, last = chain
    tail = _part(last) if isinstance(last, ElementwiseAffine) else None
    if tail is None:
        layers.append(last)
    blocks = tuple(tuple(map(_part, layer)) if isinstance(layer, LDUBlock) else (_part(layer),) for layer in layers)
    return Anatomy(chain.features, chain.context, blocks, tail)


def _part(layer: Bijection) -> Part:
    parameters = sum(parameter.numel() for parameter in layer.parameters())
    pattern, context = dependencies(layer), layer.context > 0
    if isinstance(layer, ElementwiseAffine):
        return Part("affine", pattern, parameters, context)
    if isinstance(layer, SinusoidalLayer):
        widths = _widths(layer.network) if context else ()
        return Part("scale", pattern, parameters, context, layer.scales, layer.waves, widths)
    if not isinstance(layer, Autoregressive):
        raise ArgumentError(f"there is no drawing of a {type(layer).__name__}")
    made, inner = layer.conditioner, layer.transformer
    widths = (made.plan.layers[0].columns[-1], *(len(each.reach) for each in made.plan.layers))
    kind: Kind = "upper" if layer.reverse else "lower"
    scales = waves = 0
    if isinstance(inner, ConditionalWaves):
        kind, scales, waves = "waves", inner.scales, inner.waves
    return Part(kind, pattern, parameters, context, scales, waves, widths, _traits(made), layer.reverse)


def dependencies(layer: Bijection) -> Pattern:
    """Whether output i depends on input j, by the masks of the network; of the first few features.

    Example:
        >>> from sinuflow.bijections import UpperShift
        >>> for row in dependencies(UpperShift(features=3, hidden=(16,))):
        ...     print(*map(int, row))
        1 1 1
        0 1 1
        0 0 1
    """
    pattern = torch.eye(layer.features, dtype=torch.bool)
    if isinstance(layer, Autoregressive):
        made = layer.conditioner
        paths = made.head.mask.cpu()
        for masked in reversed(made.layers):
            paths = (paths @ masked.mask.cpu()).clamp(max=1)  # type: ignore[operator]
        seen = paths[:, layer.context :].view(layer.features, -1, layer.features).any(1)
        pattern |= seen.flip(0, 1) if layer.reverse else seen
    return tuple(tuple(row) for row in pattern[:MOST, :MOST].tolist())


def _widths(network: nn.Sequential) -> tuple[int, ...]:
    linear = [layer for layer in network if isinstance(layer, nn.Linear)]
    return (linear[0].in_features, *(layer.out_features for layer in linear))


def _traits(made: MADE) -> tuple[str, ...]:
    traits = [made.activation]
    if any(made.skips):
        traits.append("residual")
    if made.dropout:
        traits.append(f"dropout {made.dropout:g}")
    if made.squash:
        traits.append(f"squash {made.squash:g}")
    return tuple(traits)
