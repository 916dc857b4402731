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

from .autograd import reference_backward
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
    """A PixelCNN as plain data.

    The lists have an entry for the first convolution, for three convolutions of every residual block, and for the
    head; ``context_weights`` for the first convolution and every block, or none. Weights are not masked.
    """

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
    kernels = _verified("cuda", network, network.shape(), x.device)
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
    return _verified("triton", network, replace(network.shape(), tf32=True), x.device)


#: By backend, shape, device and dimension of the context: kernels that passed their self-test, or None.
_VERIFIED: dict[tuple[str, PixelShape, torch.device, int], Kernels | None] = {}


def _verified(backend: str, network: Network, shape: PixelShape, device: torch.device) -> Kernels | None:
    key = backend, shape, device, network.context
    if key not in _VERIFIED:
        with reproducible(device):
            _VERIFIED[key] = _wide(network, shape, device) if backend == "triton" else _cuda(network, shape, device)
    return _VERIFIED[key]


def _cuda(network: Network, shape: PixelShape, device: torch.device) -> PixelProgram | None:
    kernels = PixelProgram(shape, network.masks, device, CudaLauncher(shape, device))
    return kernels if passes(kernels, network) else None


def _wide(network: Network, shape: PixelShape, device: torch.device) -> TritonProgram | None:
    from triton.runtime.errors import TritonError

    from .backends.triton.pixelcnn import TritonProgram, TritonShape

    wide = TritonShape(shape.channels, shape.height, shape.width, shape.maps, shape.blocks, shape.outputs)
    kernels = TritonProgram(wide, network.masks, device)
    return kernels if passes(kernels, network, TritonError, RuntimeError) else None


# ---------------------------------------------------------------- fused implementation


def fused_outputs(
    kernels: Kernels, network: Network, x: Tensor, context: Tensor | None, reverse: bool = False
) -> Tensor:
    """:func:`pixelcnn_outputs` by these kernels."""
    outputs: Tensor = _FusedOutputs.apply(
        torch.is_grad_enabled(), kernels, network.masks, reverse, x, context, *network.parameters
    )
    return outputs


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
    widths = [shape.wide] + [shape.narrow] * shape.blocks
    with torch.autocast(context.device.type, enabled=False):  # kernels take float32
        parts = [F.linear(context.mT, w) for w in context_weights]
    parts = [F.pad(part, (0, width - part.shape[1])) for part, width in zip(parts, widths, strict=True)]
    return torch.cat(parts, 1).contiguous()


class _FusedOutputs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        grad_enabled: bool,
        kernels: Kernels,
        masks: list[Tensor],
        reverse: bool,
        x: Tensor,
        context: Tensor | None,
        *parameters: Tensor,
    ) -> Tensor:
        learning = grad_enabled and any(ctx.needs_input_grad)
        assert not (learning and x.dtype == torch.float64), "the float64 kernels have no gradients"
        depth = len(masks)
        purpose: Purpose = "score float64" if x.dtype == torch.float64 else "learn" if learning else "score"
        packed = kernels.pack(parameters[: 2 * depth], purpose)
        added = None if context is None else added_maps(kernels.shape, context, parameters[2 * depth :])
        if not learning:
            return kernels.forward(packed, x.contiguous(), added, reverse)
        outputs, activations = kernels.learn(packed, x.contiguous(), added, reverse)
        ctx.kernels, ctx.masks, ctx.reverse, ctx.conditional = kernels, masks, reverse, context is not None
        ctx.save_for_backward(packed.backward, activations, x, *([] if context is None else [context]), *parameters)
        return outputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        kernels, depth = ctx.kernels, len(ctx.masks)
        weights, activations, x, *saved = ctx.saved_tensors
        context, parameters = (saved[0], saved[1:]) if ctx.conditional else (None, saved)
        if torch.is_grad_enabled():
            return None, None, None, None, *_second_order(ctx, x, context, parameters, grad)
        grads = kernels.backward(weights, x.contiguous(), activations, ctx.reverse, grad.contiguous(), ctx.conditional)
        pieces = grads.parameters.split([p.numel() for p in parameters[: 2 * depth]])
        grad_parameters = [piece.view_as(p) for piece, p in zip(pieces, parameters, strict=False)]
        grad_context = None
        if context is not None and grads.added is not None:
            widths = [kernels.shape.wide] + [kernels.shape.narrow] * kernels.shape.blocks
            pairs = zip(grads.added.split(widths, 1), parameters[2 * depth :], strict=True)
            parts = [(part[:, : len(w)], w) for part, w in pairs]
            grad_parameters += [(context @ part).mT for part, _ in parts]
            grad_context = sum((part @ w for part, w in parts), torch.zeros_like(context.mT)).mT
        return None, None, None, None, grads.x, grad_context, *grad_parameters


def _second_order(
    ctx: Any, x: Tensor, context: Tensor | None, parameters: Sequence[Tensor], grad: Tensor
) -> tuple[Tensor | None, ...]:
    depth, shape = len(ctx.masks), ctx.kernels.shape

    def run(x: Tensor, *others: Tensor) -> Tensor:
        context, rest = (others[0], others[1:]) if ctx.conditional else (None, others)
        masked = [mask * w for mask, w in zip(ctx.masks, rest, strict=False)]
        weights = PixelWeights(masked, list(rest[depth : 2 * depth]), list(rest[2 * depth :]))
        return reference_outputs(x, context, weights, (shape.channels, shape.height, shape.width), ctx.reverse)

    leaves = (x, *([] if context is None else [context]), *parameters)
    grad_x, *rest = reference_backward(run, leaves, (grad,))
    return (grad_x, *rest) if context is not None else (grad_x, None, *rest)


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
        torch.manual_seed(0)
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
    weights = [random(w, fan_in) for w, fan_in in zip(network.weights, fan_ins, strict=True)]
    biases = [random(b, fan_in) for b, fan_in in zip(network.biases, fan_ins, strict=True)]
    context_weights = [random(w, network.context) for w in network.context_weights]
    masks = [mask.to(device) for mask in network.masks]
    x = torch.randn((math.prod(network.size), _IMAGES), dtype=torch.float32).to(device)
    context = torch.randn((network.context, _IMAGES), dtype=torch.float32).to(device) if network.context else None
    sample = network._replace(weights=weights, biases=biases, context_weights=context_weights, masks=masks)
    return sample, x, context


def agrees(kernels: Kernels, network: Network, x: Tensor, context: Tensor | None) -> bool:
    """Whether outputs, gradients and inverse are those of the reference."""
    if not _gradients_agree(kernels, network, x, context):
        return False
    with torch.no_grad():
        for reverse in (False, True):
            ours = fused_outputs(kernels, network, x, context, reverse)
            if not _close(ours, reference_outputs(x, context, network.masked(), network.size, reverse), _TOLERANCE):
                return False
        if not kernels.inverts():
            return True
        units: list[Tensor] = []
        outputs = reference_outputs(x, context, network.masked(), network.size, False, units)
        back, again, largest = fused_inverse(kernels, reference_affine(outputs, len(x)).z, context, network.masked())
        expected = torch.stack([unit.amax((1, 2, 3)) for unit in units]).amax(0)
    pairs = ((back, x), (again, outputs), (largest, expected))
    return all(_close(ours, theirs, _TOLERANCE) for ours, theirs in pairs)


def _gradients_agree(kernels: Kernels, network: Network, x: Tensor, context: Tensor | None) -> bool:
    """Whether gradients are those of the reference, and outputs within a tenth of their tolerance."""
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
        (grad_x, *rest), (expected_x, *others) = grads
        flat, expected_flat = (torch.cat([g.flatten() for g in each]) for each in (rest, others))
        pairs = [(ours, expected, tolerance / 10), (grad_x, expected_x, tolerance), (flat, expected_flat, tolerance)]
        if not all(_close(*pair) for pair in pairs):
            return False
    return True


@torch.no_grad()
def agrees_float64(kernels: PixelProgram, network: Network, x: Tensor, context: Tensor | None) -> bool:
    """Whether outputs for float64 images are those of the reference in float64, and the inverse undoes them."""
    x = x.double() / 3  # with digits that float32 does not have
    weights, biases, context_weights = network.masked()
    exact = PixelWeights(*([t.double() for t in tensors] for tensors in (weights, biases, context_weights)))
    exact_context = None if context is None else context.double()
    for reverse in (False, True):
        outputs = fused_outputs(kernels, network, x, context, reverse)
        expected = reference_outputs(x, exact_context, exact, network.size, reverse)
        if not _close(outputs, expected, _FLOAT64_TOLERANCE):
            return False
    z = reference_affine(reference_outputs(x, exact_context, exact, network.size), len(x)).z
    back, again, _ = fused_inverse(kernels, z, context, network.masked())
    good = _close(back, x, _FLOAT64_TOLERANCE)
    return good and _close(again[: len(x)], unscaled(z, again).z, _FLOAT64_INVERSE_TOLERANCE)


def _close(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    return bool((ours - theirs).norm() <= tolerance * (1e-6 + theirs.norm()))
