"""Toy densities: the usual two-dimensional ones of Grathwohl et al. (2019), and a row of Gaussians.

All but the pinwheel have a log-density, in closed form or by numerical integration along a curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .datasets import find

Draw = Callable[[int, torch.Generator | None], Tensor]
Function = Callable[[Tensor], Tensor]

#: Integration nodes along a curve, much closer than the width of the noise, and rows compared with them at a time.
_NODES, _CHUNK = 2048, 256
#: The means of the Gaussians of the paper's one-dimensional example.
MEANS = torch.linspace(-40.0, 40.0, 7, dtype=torch.float64)
#: Angles of eighths of a circle.
_EIGHTHS = torch.arange(8, dtype=torch.float64) * math.pi / 4


@dataclass(frozen=True)
class Toy:
    """A toy density.

    Example:
        >>> toy = TOYS["checkerboard"]
        >>> x = toy.sample(4, torch.Generator().manual_seed(0))
        >>> x.shape, float(toy.log_prob(x)[0].exp())
        (torch.Size([4, 2]), 0.03125)
    """

    name: str
    features: int
    limit: float  # nearly all samples lie between -limit and limit
    draw: Draw  # samples rows with a generator, or None for the global one
    log_prob: Function | None  # of rows, or None if it is unknown

    def sample(self, rows: int, generator: torch.Generator | None = None) -> Tensor:
        """Independent rows, (rows, features), float32."""
        return self.draw(rows, generator).to(torch.float32)


def toy(name: str) -> Toy:
    """The toy density of a name."""
    return find(TOYS, name, "toy density")


def _uniform(rows: int, generator: torch.Generator | None) -> Tensor:
    return torch.rand(rows, generator=generator, dtype=torch.float64)


def _normal(rows: int, features: int, generator: torch.Generator | None) -> Tensor:
    return torch.randn(rows, features, generator=generator, dtype=torch.float64)


def _on_circle(angle: Tensor) -> Tensor:
    return torch.stack([angle.cos(), angle.sin()], -1)


def _gaussians(name: str, centres: Tensor, width: float, limit: float) -> Toy:
    """A uniform mixture of isotropic Gaussians."""
    features = centres.shape[-1]

    def draw(rows: int, generator: torch.Generator | None) -> Tensor:
        which = torch.randint(len(centres), (rows,), generator=generator)
        return centres[which] + width * _normal(rows, features, generator)

    def log_prob(x: Tensor) -> Tensor:
        square = (x.double().unsqueeze(-2) - centres).square().sum(-1) / width**2
        constant = math.log(len(centres)) + 0.5 * features * math.log(2 * math.pi * width**2)
        return torch.logsumexp(-0.5 * square, -1) - constant

    return Toy(name, features, limit, draw, log_prob)


def _circles(name: str, radii: list[float], width: float) -> Toy:
    """A uniform mixture of circles with Gaussian noise; for each, p(x) = exp(-(r-R)²/2σ²) I₀ᵉ(rR/σ²) / 2πσ²."""
    sizes = torch.tensor(radii, dtype=torch.float64)

    def draw(rows: int, generator: torch.Generator | None) -> Tensor:
        angle = 2 * math.pi * _uniform(rows, generator)
        radius = sizes[torch.randint(len(sizes), (rows,), generator=generator)].unsqueeze(-1)
        return radius * _on_circle(angle) + width * _normal(rows, 2, generator)

    def log_prob(x: Tensor) -> Tensor:
        r = x.double().norm(dim=-1, keepdim=True)
        bessel = torch.special.i0e(r * sizes / width**2).log()
        each = bessel - (r - sizes).square() / (2 * width**2) - math.log(2 * math.pi * width**2)
        return torch.logsumexp(each, -1) - math.log(len(sizes))

    return Toy(name, 2, max(radii) + 5 * width, draw, log_prob)


def _curves(name: str, points_at: Function, width: float, square: float = 0.0) -> Toy:
    """Curves c(u) with u uniform in (0, 1), plus isotropic noise; ``points_at`` maps u to (curves, n, 2).

    ``square`` is the side of a square of additional uniform noise, up and right of the curve.
    """

    def draw(rows: int, generator: torch.Generator | None) -> Tensor:
        points = points_at(_uniform(rows, generator))
        which = torch.randint(len(points), (rows,), generator=generator)
        noise = width * _normal(rows, 2, generator)
        if square:
            # The second curve is the first, with its noise, rotated by half a turn.
            shift = torch.stack([_uniform(rows, generator), _uniform(rows, generator)], -1) * square
            noise = noise + shift * (1 - 2 * which).unsqueeze(-1)
        return points[which, torch.arange(rows)] + noise

    def log_prob(x: Tensor) -> Tensor:
        points = points_at((torch.arange(_NODES, dtype=torch.float64) + 0.5) / _NODES)
        turns = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat_interleave(_NODES)
        nodes = points.flatten(0, 1)
        parts = []
        for part in x.double().split(_CHUNK):
            if square:
                each = sum(log_noise(turns * (part[:, i : i + 1] - nodes[:, i])) for i in range(2))
            else:
                distance = torch.cdist(part, nodes, compute_mode="donot_use_mm_for_euclid_dist")
                each = -0.5 * (distance / width).square() - math.log(2 * math.pi * width**2)
            parts.append(torch.logsumexp(torch.as_tensor(each), -1) - math.log(len(nodes)))
        return torch.cat(parts)

    def log_noise(gap: Tensor) -> Tensor:
        """The log-density of a uniform plus a Gaussian variable, from the smaller tail, which avoids cancellation."""
        inside = square - gap
        near, far = torch.minimum(gap, inside) / width, torch.maximum(gap, inside) / width
        difference = torch.special.ndtr(near) - torch.special.ndtr(-far)
        return torch.where(difference > 0, difference.clamp(min=1e-300).log(), -1e4) - math.log(square)

    return Toy(name, 2, 4.0, draw, log_prob)


def _moons(u: Tensor) -> Tensor:
    t = math.pi * u
    inner = torch.stack([1 - t.cos(), 0.5 - t.sin()], -1)
    return 2 * torch.stack([_on_circle(t), inner]) + torch.tensor([-1.0, -0.2], dtype=torch.float64)


def _swissroll(u: Tensor) -> Tensor:
    t = 1.5 * math.pi * (1 + 2 * u)
    return ((t / 5).unsqueeze(-1) * _on_circle(t)).unsqueeze(0)


def _two_spirals(u: Tensor) -> Tensor:
    t = 3 * math.pi * u.sqrt()
    arm = (t / 3).unsqueeze(-1) * torch.stack([-t.cos(), t.sin()], -1)
    return torch.stack([arm, -arm])


def _draw_checkerboard(rows: int, generator: torch.Generator | None) -> Tensor:
    across = 4 * _uniform(rows, generator) - 2
    up = _uniform(rows, generator) - 2 * torch.randint(2, (rows,), generator=generator) + across.floor() % 2
    return 2 * torch.stack([across, up], -1)


def _log_prob_checkerboard(x: Tensor) -> Tensor:
    square = (x.double() / 2).floor()
    inside = ((x >= -4) & (x < 4)).all(-1) & ((square.sum(-1) % 2) == 0)
    return torch.where(inside, -math.log(32.0), -math.inf)


def _draw_pinwheel(rows: int, generator: torch.Generator | None) -> Tensor:
    blade = torch.randint(5, (rows,), generator=generator) * (2 * math.pi / 5)
    along = 1 + 0.3 * _normal(rows, 1, generator).squeeze(-1)
    across = 0.1 * _normal(rows, 1, generator).squeeze(-1)
    angle = blade + 0.25 * along.exp()
    cosine, sine = angle.cos(), angle.sin()
    return 2 * torch.stack([along * cosine + across * sine, across * cosine - along * sine], -1)


#: The toy densities by name; "gaussians" has one feature, the others two.
TOYS: dict[str, Toy] = {
    toy.name: toy
    for toy in (
        _gaussians("8gaussians", 4 * _on_circle(_EIGHTHS) / 1.414, 0.5 / 1.414, 4.5),
        _curves("2spirals", _two_spirals, 0.1, 0.5 / 3),
        Toy("checkerboard", 2, 4.0, _draw_checkerboard, _log_prob_checkerboard),
        _circles("circles", [3.0, 1.5], 0.24),
        _curves("moons", _moons, 0.2),
        Toy("pinwheel", 2, 4.5, _draw_pinwheel, None),
        _circles("rings", [3.0, 2.25, 1.5, 0.75], 0.08),
        _curves("swissroll", _swissroll, 0.2),
        _gaussians("gaussians", MEANS.unsqueeze(-1), 1.0, 45.0),
    )
}
