"""Inverses of a whole flow, with the certificates of the layers and the end-to-end residual."""

from __future__ import annotations

import copy
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ..bijections import Bijection
from ..bijections.base import CERTIFIED
from ..checks import choice
from ..errors import InversionError, StorageError
from ..solvers import SolverOptions

#: Kinds of certificate of a draw: each layer's inverse by itself, or also the round trip through the whole flow.
Certify = Literal["layers", "end-to-end"]
CERTIFICATES = get_args(Certify)
_LAYERS_ONLY = "leave out certify, for draws that are certified layer by layer alone"


class RoundTrip(NamedTuple):
    """Distance of x, mapped back through the whole flow, to the noise z, and whether it meets its tolerance."""

    residual: Tensor
    accurate: Tensor

    def demand(self, bijection: Bijection, alternative: str | None) -> None:
        """Raise an :class:`InversionError`, whose message offers the alternative, unless all met the tolerance."""
        if bool(self.accurate.all()):
            return
        largest = float(self.residual.nan_to_num(nan=torch.inf).max())
        why, remedy = "rounding errors accumulate to", "Use float64 (flow.double())"
        if self.residual.dtype == torch.float64:
            remedy = "Look for parameters of extreme size, which even float64 cannot invert to this tolerance"
        try:
            users = [part.name for part in bijection.spec().walk() if not part.is_own]
        except StorageError:  # a class whose arguments are unknown
            users = ["a component"]
        if users and largest > torch.finfo(self.residual.dtype).eps ** (1 / 3):
            why, alternative = f"the inverse or conditioner of {users[0]} may be wrong: they leave", None
            remedy = f"Run sinuflow.testing.check_flow(flow), which names a wrong part. If none is: {remedy}"
        raise InversionError(
            f"every layer was inverted, but {why} a residual of {largest:.3g} over the whole "
            f"flow, beyond the tolerance for {int((~self.accurate).sum())} of {self.accurate.numel()} samples. "
            f"{remedy}{'' if alternative is None else f', or {alternative}'}."
        )


class CertifiedDraws(NamedTuple):
    """Draws of a fitted model, and their largest end-to-end residual, or None if only the layers were certified."""

    values: Any
    residual: float | None


def round_trip(
    bijection: Bijection, x: Tensor, z: Tensor, context: Tensor | None, options: SolverOptions = CERTIFIED
) -> RoundTrip:
    """Map ``x`` through the whole bijection and compare with ``z``: one forward pass.

    The tolerance is that of ``flow.invert``: ``atol + rtol * max|z|``, 1e-4 for both in float32 and 1e-12 in float64.
    Algorithm 1 has tolerances for its layers alone; there, any finite residual is accepted.
    """
    with torch.no_grad():
        again, _ = bijection(x, context)
        residual = (again - z).abs().amax(-1)
        accurate = residual.isfinite()
        if options.method == "certified":
            relative, absolute = options.tolerances(z.dtype)
            accurate = accurate & (residual <= absolute + relative * z.abs().amax(-1))
    return RoundTrip(residual, accurate)


def certified_inverse(
    bijection: Bijection,
    z: Tensor,
    context: Tensor | None,
    certify: Certify = "layers",
    options: SolverOptions = CERTIFIED,
    alternative: str | None = _LAYERS_ONLY,
) -> tuple[Tensor, Tensor, RoundTrip | None]:
    """x and the log-determinant, certified layer by layer or end to end: or an :class:`InversionError`.

    In a compiled graph, which cannot raise, samples that fail are NaN.
    """
    choice("certify", certify, CERTIFICATES)
    x, ladj = bijection.inverse(z, context)
    x = x.contiguous()  # so that the round trip rounds exactly as it would for the tensor that the caller gets
    if certify == "layers":
        return x, ladj, None
    trip = round_trip(bijection, x, z, context, options)
    if torch.compiler.is_compiling():
        x = torch.where(trip.accurate.unsqueeze(-1), x, torch.nan)
        return x, torch.where(trip.accurate, ladj, torch.nan), trip
    trip.demand(bijection, alternative)
    return x, ladj, trip


@torch.no_grad()
def inverse_with_fallback(bijection: Bijection, z: Tensor, context: Tensor | None, certify: Certify) -> CertifiedDraws:
    """x for noise z, in float64 if any sample cannot be certified in float32: or an :class:`InversionError`.

    The whole batch is then recomputed, so that x has the precision in which it maps back to z. In float64 the residual
    is always checked end to end, with the tolerance of the flow's own precision.
    """
    relative, absolute = CERTIFIED.tolerances(z.dtype)
    tolerance = SolverOptions(rtol=relative, atol=absolute)
    try:
        x, _, trip = certified_inverse(bijection, z, context, certify)
    except InversionError:
        if z.dtype == torch.float64:
            raise
        precise, context = copy.deepcopy(bijection).double(), None if context is None else context.double()
        alternative = _LAYERS_ONLY if certify == "end-to-end" else None
        x, _, trip = certified_inverse(precise, z.double(), context, "end-to-end", tolerance, alternative)
    return CertifiedDraws(x, float(trip.residual.max()) if trip is not None and certify == "end-to-end" else None)
