"""Base distributions: the densities of the noise z."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributions import StudentT as TorchStudentT

from ..bijections.base import log_normal
from ..checks import whole
from ..errors import ArgumentError
from ..registry import Component, register


class Base(Component, nn.Module):
    """The density of z, which a flow's bijection maps data to.

    A subclass has two methods: ``log_prob(z)`` maps (..., features) to (...), and ``sample(shape)`` returns draws of
    shape (\\*shape, features), with gradients if ``rsample`` shall have them with respect to the base's parameters.
    A base does not depend on the context, which is for bijections alone.

    Example:
        >>> from sinuflow import Flow
        >>> from sinuflow.bijections import ElementwiseAffine
        >>> class Laplace(Base):
        ...     def log_prob(self, z):
        ...         return -(z.abs() + math.log(2)).sum(-1)
        ...     def sample(self, shape):
        ...         return torch.distributions.Laplace(0.0, 1.0).sample((*shape, self.features))
        >>> flow = Flow(ElementwiseAffine(2), base=Laplace(2))
        >>> flow().sample((5,)).shape
        torch.Size([5, 2])
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = whole("features", features, 1)

    def log_prob(self, z: Tensor) -> Tensor:
        """The log-density of z of shape (..., features), in nats."""
        raise NotImplementedError(f"{type(self).__name__} must define log_prob")

    def sample(self, shape: Sequence[int]) -> Tensor:
        """Draws of shape (*shape, features)."""
        raise NotImplementedError(f"{type(self).__name__} must define sample")

    def draw(self, shape: Sequence[int], generator: torch.Generator | None, like: Tensor) -> Tensor:
        """Draws with the dtype and on the device of ``like``; a generator determines the seed of :meth:`sample`."""
        if generator is None:
            return self.sample(shape).to(like)
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        with torch.random.fork_rng(devices=[like.device] if like.is_cuda else []):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed every GPU
            if like.is_cuda:
                torch.cuda.default_generators[like.device.index].manual_seed(seed)
            return self.sample(shape).to(like)


@register
class StandardNormal(Base):
    """Independent normals with mean 0 and variance 1.

    Example:
        >>> StandardNormal(2).log_prob(torch.zeros(3, 2)).shape
        torch.Size([3])
    """

    def log_prob(self, z: Tensor) -> Tensor:
        return log_normal(z.movedim(-1, 0))

    def sample(self, shape: Sequence[int]) -> Tensor:
        return torch.randn(*shape, self.features)

    def draw(self, shape: Sequence[int], generator: torch.Generator | None, like: Tensor) -> Tensor:
        return torch.randn((*shape, self.features), generator=generator, dtype=like.dtype, device=like.device)


@register
class StudentT(Base):
    r"""Independent Student's t distributions, for data with heavy tails.

    A bijection that is bounded by affine maps at infinity cannot change how fast tails decay; this base has power-law
    tails, :math:`p(z_i) \propto (1 + z_i^2 / \nu_i)^{-(\nu_i + 1) / 2}`.

    Args:
        features: the dimension of z.
        df: the degrees of freedom ν; 1 is the Cauchy distribution, and ∞ the standard normal.
        learnable: whether ν is trained, separately for each feature.

    Example:
        >>> base = StudentT(2, df=3.0, learnable=True)
        >>> base.df.shape
        torch.Size([2])
        >>> base.sample((5,)).shape
        torch.Size([5, 2])
    """

    def __init__(self, features: int, df: float = 4.0, learnable: bool = False) -> None:
        super().__init__(features)
        if not isinstance(df, (int, float)) or not 0 < df < math.inf:
            raise ArgumentError(f"df must be a positive number; got {df!r}")
        self.log_df = nn.Parameter(torch.full((features,), math.log(df)), requires_grad=bool(learnable))

    @property
    def df(self) -> Tensor:
        """The degrees of freedom of every feature."""
        return self.log_df.exp()

    def log_prob(self, z: Tensor) -> Tensor:
        log_density: Tensor = TorchStudentT(self.df, validate_args=False).log_prob(z)
        return log_density.sum(-1)

    def sample(self, shape: Sequence[int]) -> Tensor:
        draws: Tensor = TorchStudentT(self.df, validate_args=False).rsample(torch.Size(shape))
        return draws
