r"""The map of a PixelCNN, its gradients and its inverse by fused kernels.

*Outputs* are :math:`y = x + c(x)` of feature-major images (D, B) and, with two outputs per channel, the free
log-scales of :mod:`sinuflow.ops.pixel_affine` below; :func:`reference_outputs` defines them. The CUDA kernels hold an
image in the shared memory of one thread block; Triton's kernels take wider networks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from .autograd import fused, needs_gradients
from .backends.cuda.driver import CudaLauncher
from .backends.cuda.pixels.program import PixelProgram, Purpose
from .backends.cuda.pixels.shape import PixelShape
from .pixel_affine import reference as reference_affine
from .pixel_affine import unscaled
from .pixelcnn import PixelWeights, pixel_network
from .select import passes_selftest, tf32_allowed, use_cuda, use_triton

if TYPE_CHECKING:
    from .backends.triton.pixelcnn import TritonProgram

#: Images of the self-test, and its tolerances, relative to norms: of outputs, gradients, and gradients in TF32, where
#: rounding decides whether a unit next to zero is active.
_IMAGES, _TOLERANCE, _GRADIENT_TOLERANCE, _TF32_GRADIENT_TOLERANCE = 3, 1e-4, 1e-3, 3e-2
#: The same for float64 images: hidden units are float32, and equal in both directions.
_FLOAT64_TOLERANCE, _FLOAT64_INVERSE_TOLERANCE = 1e-6, 1e-8


class Network(NamedTuple):
    """A PixelCNN as plain data: the lists of :class:`~sinuflow.ops.pixelcnn.PixelWeights`, with weights not masked."""

    size: tuple[int, int, int]  # channels, height and width of an image
    channels: int  # feature maps inside a residual block
    outputs: int  # per channel of a pixel
    training: bool
    weights: list[Tensor]
    biases: list[Tensor]
    context_weights: list[Tensor]
    masks: list[Tensor]

    @property
    def parameters(self) -> list[Tensor]:
        """All tensors but the masks."""
        return [*self.weights, *self.biases, *self.context_weights]

    @property
    def context(self) -> int:
        """The dimension of the context."""
        return self.context_weights[0].shape[1] if self.context_weights else 0

    def with_parameters(self, parameters: Sequence[Tensor]) -> Network:
        """The network with other :attr:`parameters`."""
        depth = len(self.masks)
        weights, biases, context_weights = parameters[:depth], parameters[depth : 2 * depth], parameters[2 * depth :]
        return self._replace(weights=list(weights), biases=list(biases), context_weights=list(context_weights))

    def masked(self) -> PixelWeights:
        """The parameters as :func:`~sinuflow.ops.pixelcnn.pixel_network` takes them."""
        weights = [mask * w for mask, w in zip(self.masks, self.weights, strict=True)]
        return PixelWeights(weights, self.biases, self.context_weights)

    def shape(self) -> PixelShape:
        """What kernels are compiled for; they may use TF32 in training only, if PyTorch's convolutions may."""
        tf32 = (self.training or not torch.is_grad_enabled()) and tf32_allowed()
        blocks = (len(self.weights) - 2) // 3
        return PixelShape(*self.size, maps=self.channels, blocks=blocks, tf32=tf32, outputs=self.outputs)


#: The kernels of a backend, for networks of one shape.
Kernels: TypeAlias = "PixelProgram | TritonProgram"


def pixelcnn_outputs(network: Network, x: Tensor, context: Tensor | None, reverse: bool = False) -> Tensor:
    """The outputs for a feature-major batch (D, B); with ``reverse``, the last pixel comes first."""
    kernels = forward_kernels(network, x)
    if kernels is None:
        return reference_outputs(x, context, network.masked(), network.size, reverse)
    return fused_outputs(kernels, network, x, context, reverse)


def reference_outputs(
    x: Tensor,
    context: Tensor | None,
    weights: PixelWeights,
    size: Sequence[int],
    reverse: bool = False,
    keep: list[Tensor] | None = None,
) -> Tensor:
    """The outputs by PyTorch operations; hidden units are appended to ``keep``, as by :func:`pixel_network`."""
    images = to_images(x.flip(0) if reverse else x, size)
    outputs = from_images(pixel_network(images, None if context is None else context.mT, weights, keep)).split(len(x))
    shift, *free = (each.flip(0) if reverse else each for each in outputs)
    return torch.cat([x + shift, *free]) if free else x + shift


def to_images(x: Tensor, size: Sequence[int]) -> Tensor:
    """Feature-major (D, B) as (B, C, H, W)."""
    return x.mT.reshape(-1, *size)


def from_images(images: Tensor) -> Tensor:
    """(B, C, H, W) as feature-major (D, B)."""
    return images.flatten(1).mT


# ---------------------------------------------------------------- selection


def forward_kernels(network: Network, x: Tensor) -> Kernels | None:
    """The kernels for the outputs, with gradients if they are enabled; CUDA's, or Triton's for wider networks."""
    kernels = _cuda_kernels(network, x)
    if kernels is not None or (torch.is_grad_enabled() and not network.shape().tf32):
        return kernels  # Triton's gradients have the precision of TF32
    return _triton_kernels(network, x)


def inverse_kernels(network: Network, z: Tensor) -> Kernels | None:
    """The kernels for the inverse, for which CUDA's need more shared memory."""
    kernels = _cuda_kernels(network, z)
    return kernels if kernels is not None and kernels.inverts() else _triton_kernels(network, z)


def has_float64_kernels(network: Network, x: Tensor) -> bool:
    """Whether there are kernels for the batch in float64."""
    return forward_kernels(network, x.new_empty((0,), dtype=torch.float64)) is not None


def _cuda_kernels(network: Network, x: Tensor) -> Kernels | None:
    if not use_cuda(x, *network.parameters):
        return None
    kernels = _verified(_cuda, network, network.shape(), x.device)
    if x.dtype == torch.float32 or not isinstance(kernels, PixelProgram):
        return kernels
    if kernels.passes_float64 is None:
        kernels.passes_float64 = passes_float64(kernels, network)
    return kernels if kernels.passes_float64 else None


def _triton_kernels(network: Network, x: Tensor) -> Kernels | None:
    if not use_triton(x, tensor_cores=True):
        return None
    if any(t.dtype != torch.float32 or t.device != x.device for t in (x, *network.parameters)):
        return None
    return _verified(_wide, network, replace(network.shape(), tf32=True), x.device)


#: By builder, shape, device and dimension of the context: kernels that passed their self-test, or None.
_VERIFIED: dict[tuple[Any, PixelShape, torch.device, int], Kernels | None] = {}


def _verified(build: Any, network: Network, shape: PixelShape, device: torch.device) -> Kernels | None:
    key = build, shape, device, network.context
    if key not in _VERIFIED:
        with reproducible(device):
            _VERIFIED[key] = build(network, shape, device)
    return _VERIFIED[key]


def _cuda(network: Network, shape: PixelShape, device: torch.device) -> Kernels | None:
    kernels = PixelProgram(shape, network.masks, device, CudaLauncher(shape, device))
    return kernels if passes(kernels, network) else None


def _wide(network: Network, shape: PixelShape, device: torch.device) -> Kernels | None:
    from triton.runtime.errors import TritonError

    from .backends.triton.pixelcnn import TritonProgram, TritonShape

    kernels = TritonProgram(TritonShape(shape), network.masks, device)
    return kernels if passes(kernels, network, TritonError, RuntimeError) else None


# ---------------------------------------------------------------- fused implementation


def fused_outputs(
    kernels: Kernels, network: Network, x: Tensor, context: Tensor | None, reverse: bool = False
) -> Tensor:
    """:func:`pixelcnn_outputs` by these kernels."""
    inputs = [x, *([] if context is None else [context]), *network.parameters]
    conditional, learn = context is not None, needs_gradients(*inputs)
    assert not (learn and x.dtype == torch.float64), "the float64 kernels have no gradients"

    def unpacked(others: Sequence[Tensor]) -> tuple[Tensor | None, Network]:
        context, parameters = (others[0], others[1:]) if conditional else (None, others)
        return context, network.with_parameters(parameters)

    def reference(x: Tensor, *others: Tensor) -> Tensor:
        context, network = unpacked(others)
        return reference_outputs(x, context, network.masked(), network.size, reverse)

    def forward(x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        context, network = unpacked(others)
        purpose: Purpose = "learn" if learn else "score float64" if x.dtype == torch.float64 else "score"
        packed = kernels.pack([*network.weights, *network.biases], purpose)
        added = None if context is None else added_maps(kernels.shape, context, network.context_weights)
        if not learn:
            return (kernels.forward(packed, x.contiguous(), added, reverse),)
        outputs, activations = kernels.learn(packed, x.contiguous(), added, reverse)
        assert packed.backward is not None
        return outputs, packed.backward, activations

    def backward(x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        *others, grad, weights, activations = tensors
        context, network = unpacked(others)
        grads = kernels.backward(weights, x.contiguous(), activations, reverse, grad.contiguous(), conditional)
        own = [*network.weights, *network.biases]
        pieces = grads.parameters.split([p.numel() for p in own])
        grad_parameters = [piece.view_as(p) for piece, p in zip(pieces, own, strict=True)]
        if context is None or grads.added is None:
            return grads.x, *grad_parameters
        parts = grads.added.split(_widths(kernels.shape), 1)
        pairs = [(part[:, : len(w)], w) for part, w in zip(parts, network.context_weights, strict=True)]
        grad_context = sum((part @ w for part, w in pairs), torch.zeros_like(context.mT)).mT
        return grads.x, grad_context, *grad_parameters, *((context @ part).mT for part, _ in pairs)

    return fused(reference, forward, backward, *inputs, outputs=1)[0]


def fused_inverse(
    kernels: Kernels, z: Tensor, context: Tensor | None, weights: PixelWeights
) -> tuple[Tensor, Tensor, Tensor]:
    """x, given z; the outputs for it; and the largest hidden unit of every image. Without gradients."""
    purpose: Purpose = "invert float64" if z.dtype == torch.float64 else "invert"
    packed = kernels.pack([*weights.weights, *weights.biases], purpose)
    added = None if context is None else added_maps(kernels.shape, context, weights.context_weights)
    x = kernels.inverse(packed, z.contiguous(), added)
    return x, *kernels.check(packed, x, added)


def added_maps(shape: Any, context: Tensor, context_weights: Sequence[Tensor]) -> Tensor:
    """What the context (K, B) adds to the feature maps of every image, with zeros for maps that fill a tile."""
    with torch.autocast(context.device.type, enabled=False):  # kernels take float32
        parts = [F.linear(context.mT, w) for w in context_weights]
    parts = [F.pad(part, (0, width - part.shape[1])) for part, width in zip(parts, _widths(shape), strict=True)]
    return torch.cat(parts, 1).contiguous()


def _widths(shape: Any) -> list[int]:
    """The feature maps to which a context adds, by layer."""
    return [shape.wide] + [shape.narrow] * shape.blocks


# ---------------------------------------------------------------- self-test


@contextmanager
def reproducible(device: torch.device) -> Iterator[None]:
    """The same random numbers whatever modes are active, and the caller's generator left alone."""
    with (
        torch.inference_mode(False),
        torch.autocast(device.type, enabled=False),
        torch.device("cpu"),
        torch.random.fork_rng(devices=[]),
    ):
        torch.default_generator.manual_seed(0)  # torch.manual_seed would seed every GPU
        yield


def passes(kernels: Kernels, network: Network, *failures: type[Exception]) -> bool:
    """Whether kernels fit, and pass the self-test on a random network of the same shape."""
    return kernels.fits() and passes_selftest(
        lambda: agrees(kernels, *random_batch(network, kernels.device)), "the PixelCNN kernels", *failures
    )


def passes_float64(kernels: PixelProgram, network: Network) -> bool:
    """Whether the kernels for float64 images fit, and pass the self-test."""
    with reproducible(kernels.device):
        return kernels.fits_float64() and passes_selftest(
            lambda: agrees_float64(kernels, *random_batch(network, kernels.device)), "the PixelCNN kernels for float64"
        )


def random_batch(network: Network, device: torch.device) -> tuple[Network, Tensor, Tensor | None]:
    """A random network of the same shape, images and contexts."""

    def random(like: Tensor, fan_in: int) -> Tensor:
        uniform, normal = torch.rand(like.shape, dtype=torch.float32), torch.randn(like.shape, dtype=torch.float32)
        return ((2 * uniform - 1) / math.sqrt(fan_in) + 0.05 * normal).to(device).requires_grad_()

    fan_ins = [mask[0].numel() - len(mask[0]) * (mask.shape[3] // 2) for mask in network.masks]
    fan_ins += fan_ins + len(network.context_weights) * [network.context]
    parameters = [random(p, fan_in) for p, fan_in in zip(network.parameters, fan_ins, strict=True)]
    x = torch.randn((math.prod(network.size), _IMAGES), dtype=torch.float32).to(device)
    context = torch.randn((network.context, _IMAGES), dtype=torch.float32).to(device) if network.context else None
    masks = [mask.to(device) for mask in network.masks]
    return network.with_parameters(parameters)._replace(masks=masks), x, context


def agrees(kernels: Kernels, network: Network, x: Tensor, context: Tensor | None) -> bool:
    """Whether outputs, gradients and inverse are those of the reference."""
    return all(_close(*comparison) for comparison in _comparisons(kernels, network, x, context))


def _comparisons(
    kernels: Kernels, network: Network, x: Tensor, context: Tensor | None
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Results of the kernels and of the reference, with a tolerance."""
    tolerance = _TF32_GRADIENT_TOLERANCE if kernels.shape.tf32 else _GRADIENT_TOLERANCE
    x = x.clone().requires_grad_()
    context = None if context is None else context.clone().requires_grad_()
    leaves = [x, *([] if context is None else [context]), *network.parameters]
    for reverse in (False, True):
        with torch.enable_grad():
            ours = fused_outputs(kernels, network, x, context, reverse)
            expected = reference_outputs(x, context, network.masked(), network.size, reverse)
            # The 1 keeps a bias' gradient from being next to zero, and all of it rounding error.
            grads = [torch.autograd.grad((z + 1).square().sum(), leaves) for z in (ours, expected)]
        with torch.no_grad():
            exact = fused_outputs(kernels, network, x, context, reverse)
        (grad_x, *rest), (expected_x, *others) = grads
        flat, expected_flat = (torch.cat([g.flatten() for g in each]) for each in (rest, others))
        yield ours, expected, tolerance / 10
        yield exact, expected, _TOLERANCE
        yield grad_x, expected_x, tolerance
        yield flat, expected_flat, tolerance
    if kernels.inverts():
        units: list[Tensor] = []
        with torch.no_grad():
            weights = network.masked()
            outputs = reference_outputs(x, context, weights, network.size, False, units)
            back, again, largest = fused_inverse(kernels, reference_affine(outputs, len(x)).z, context, weights)
        yield back, x, _TOLERANCE
        yield again, outputs, _TOLERANCE
        yield largest, torch.stack([unit.amax((1, 2, 3)) for unit in units]).amax(0), _TOLERANCE


@torch.no_grad()
def agrees_float64(kernels: PixelProgram, network: Network, x: Tensor, context: Tensor | None) -> bool:
    """Whether outputs for float64 images are those of the reference in float64, and the inverse undoes them."""
    x = x.double() / 3  # with digits that float32 does not have
    exact = PixelWeights(*([t.double() for t in tensors] for tensors in network.masked()))
    exact_context = None if context is None else context.double()
    expected = [reference_outputs(x, exact_context, exact, network.size, reverse) for reverse in (False, True)]
    ours = [fused_outputs(kernels, network, x, context, reverse) for reverse in (False, True)]
    z = reference_affine(expected[0], len(x)).z
    back, again, _ = fused_inverse(kernels, z, context, network.masked())
    pairs = zip([*ours, back], [*expected, x], strict=True)
    good = all(_close(*pair, _FLOAT64_TOLERANCE) for pair in pairs)
    return good and _close(again[: len(x)], unscaled(z, again).z, _FLOAT64_INVERSE_TOLERANCE)


def _close(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    return bool((ours - theirs).norm() <= tolerance * (1e-6 + theirs.norm()))
