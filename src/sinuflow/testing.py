"""Checks of user-made flows, bijections and bases against their mathematical properties."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from .bijections import Autoregressive, Bijection, Chain
from .conditioners import Conditioner
from .errors import SinuflowError
from .flows.bases import Base
from .flows.flow import Flow
from .flows.loading import build_flow
from .flows.storage import read_model
from .solvers import SolverOptions
from .transformers import Transformer

Module = TypeVar("Module", bound=nn.Module)

#: Rows whose full Jacobian is computed; features and conditioner outputs up to which that is done.
_JACOBIANS, _MOST_FEATURES, _MOST_OUTPUTS = 3, 256, 2000
#: Draws from a base, and the standard errors that its score may be off.
_DRAWS, _STANDARD_ERRORS = 10_000, 6.0


def check_flow(
    flow: Flow,
    context: Tensor | None = None,
    *,
    x: Tensor | None = None,
    rows: int = 8,
    perturb: float = 0.1,
    tolerance: float = 1e-6,
    seed: int = 0,
    save: bool = True,
) -> None:
    """Check that a flow is a density that can be scored, sampled, trained, saved and loaded.

    The bijection is checked by :func:`check_bijection`, layer by layer if it is a chain, and the base by
    :func:`check_base`; then the distribution, and a round trip through a file. An :class:`AssertionError` names the
    component that is wrong, and by how much. The flow itself is not changed: a copy in float64 is checked.

    Args:
        flow: the flow.
        context: of shape (rows, context); standard normal if None.
        x: values of shape (rows, features) to check at; standard normal if None.
        rows: rows to draw where ``x`` is None.
        perturb: standard deviation of the noise that is added to the copy's parameters, because fresh layers are often
            the identity, which hides mistakes; 0 checks the parameters that the flow has.
        tolerance: the largest error in float64, relative to 1 plus the size of the correct values.
        seed: seed of all noise.
        save: whether to check saving, which needs registered classes.

    Example:
        >>> import sinuflow
        >>> from sinuflow.bijections import ElementwiseAffine, LDUBlock
        >>> from sinuflow.testing import check_flow
        >>> check_flow(sinuflow.Flow(sinuflow.Chain([LDUBlock(3, hidden=(8,)), ElementwiseAffine(3)])))
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        flow = _perturbed(flow, perturb)
        x = torch.randn(rows, flow.features).double() if x is None else x.detach().double().cpu()
        context = _context(flow, x, context)
        _check_bijection(flow.bijection, x, context, tolerance, "bijection")
        check_base(flow.base, seed=seed)
        _check_distribution(flow, x, context, tolerance)
        if save:
            _check_file(flow, x, context)


def check_bijection(
    bijection: Bijection,
    context: Tensor | None = None,
    *,
    x: Tensor | None = None,
    rows: int = 8,
    perturb: float = 0.1,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> None:
    """Check a bijection, and first its layers if it is a chain; arguments are those of :func:`check_flow`.

    Checked are: the Jacobian by automatic differentiation against finite differences, and its log-determinant; the
    inverse, its log-determinant, its certificate, also for noise that is not finite, and its gradients against the
    implicit function theorem; that rows are independent, for any batch shape and empty batches; float32; and of an
    autoregressive layer the conditioner and the transformer (:func:`check_conditioner`, :func:`check_transformer`).

    Example:
        >>> from sinuflow.bijections import Bijection
        >>> from sinuflow.testing import check_bijection
        >>> class Doubling(Bijection):
        ...     def transform(self, x, context):
        ...         return 2 * x, x.new_zeros(x.shape[-1])
        >>> check_bijection(Doubling(3))
        Traceback (most recent call last):
        AssertionError: bijection (Doubling): its log-determinant differs from that of its Jacobian by 2.08
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        bijection = _perturbed(bijection, perturb)
        x = torch.randn(rows, bijection.features).double() if x is None else x.detach().double().cpu()
        _check_bijection(bijection, x, _context(bijection, x, context), tolerance, "bijection")


def check_transformer(
    transformer: Transformer, *, features: int = 3, rows: int = 8, perturb: float = 0.1, tolerance: float = 1e-6
) -> None:
    """Check that a transformer is increasing, and its log-determinant, inverse and gradients, at random parameters.

    Example:
        >>> from sinuflow.testing import check_transformer
        >>> from sinuflow.transformers import Affine
        >>> check_transformer(Affine())
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformer = _perturbed(transformer, perturb)
        x = torch.randn(features, rows, dtype=torch.float64)
        h = torch.randn(features, transformer.num_parameters, rows, dtype=torch.float64)
        _check_transformer(transformer, x, h, tolerance, "transformer")


def check_conditioner(
    conditioner: Conditioner, *, rows: int = 8, perturb: float = 0.1, tolerance: float = 1e-6
) -> None:
    """Check that a conditioner's parameters of a feature depend on those before it alone, and its incremental steps.

    Example:
        >>> from sinuflow.conditioners import MADE
        >>> from sinuflow.testing import check_conditioner
        >>> check_conditioner(MADE(features=3, outputs=2, hidden=(8,)))
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        conditioner = _perturbed(conditioner, perturb)
        x = torch.randn(conditioner.features, rows, dtype=torch.float64)
        context = torch.randn(conditioner.context, rows, dtype=torch.float64) if conditioner.context else None
        _check_conditioner(conditioner, x, context, tolerance, "conditioner")


def check_base(base: Base, *, seed: int = 0) -> None:
    r"""Check the shapes of a base's methods, and that its draws fit its density.

    For draws z of a density p that decays, :math:`\operatorname{E} z_i \, \partial \log p(z) / \partial z_i = -1`.

    Example:
        >>> from sinuflow.flows.bases import StudentT
        >>> from sinuflow.testing import check_base
        >>> check_base(StudentT(3, df=2.0))
    """
    place = f"base ({type(base).__name__})"
    like = torch.zeros((), dtype=torch.float64)
    base = copy.deepcopy(base).double()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for shape in ((), (0,), (2, 3)):
            z = base.draw(shape, None, like)
            _demand(z.shape == (*shape, base.features), place, f"sample({shape}) has shape {tuple(z.shape)}")
            _demand(base.log_prob(z).shape == shape, place, f"log_prob has not the batch shape {shape}")
        z = base.draw((_DRAWS,), None, like).detach().requires_grad_()
        (score,) = torch.autograd.grad(base.log_prob(z).sum(), z)
        product = (z * score).detach()
    error = (product.mean(0) + 1).abs() / (product.std(0) / _DRAWS**0.5 + 1e-6)
    message = "its draws do not fit its log_prob: E[z ∂ log p(z)/∂z] is {:.3g} instead of -1"
    worst = int(error.argmax())
    _demand(bool(error[worst] < _STANDARD_ERRORS), place, message.format(float(product.mean(0)[worst])))


def _perturbed(module: Module, perturb: float) -> Module:
    module = copy.deepcopy(module).cpu().double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(perturb * torch.randn(parameter.shape, dtype=torch.float64))
    return module


def _context(component: Flow | Bijection, x: Tensor, context: Tensor | None) -> Tensor | None:
    if context is None and component.context:
        return torch.randn(len(x), component.context).double()
    return None if context is None else context.detach().double().cpu().expand(len(x), -1)


def _check_bijection(bijection: Bijection, x: Tensor, context: Tensor | None, tolerance: float, name: str) -> None:
    place = f"{name} ({type(bijection).__name__})"
    context = context if bijection.context else None
    if isinstance(bijection, Chain):
        value = x
        for i, layer in enumerate(bijection):
            _check_bijection(layer, value, context, tolerance, f"{name}.bijections.{i}")
            with torch.no_grad():
                value = layer(value, context if layer.context else None)[0]
    if isinstance(bijection, Autoregressive):
        rows, row_context, _ = bijection.feature_major(x, context, "x")
        h = _check_conditioner(bijection.conditioner, rows, row_context, tolerance, f"{name}.conditioner")
        _check_transformer(bijection.transformer, rows, h, tolerance, f"{name}.transformer")
    z, ladj = (t.detach() for t in bijection(x, context))
    _demand(z.shape == x.shape, place, f"z has shape {tuple(z.shape)} for x of shape {tuple(x.shape)}")
    _demand(ladj.shape == x.shape[:-1], place, f"the log-determinants have shape {tuple(ladj.shape)}")
    _demand(bool(z.isfinite().all() & ladj.isfinite().all()), place, "its result is NaN or infinite")
    _check_rows(bijection, x, context, z, ladj, tolerance, place)
    if bijection.features <= _MOST_FEATURES:
        jacobian = _check_jacobian(bijection, x, context, ladj, tolerance, place)
        _check_inverse(bijection, x, context, tolerance, place)
        _check_inverse_gradients(bijection, x, context, jacobian, tolerance, place)
    else:
        _check_inverse(bijection, x, context, tolerance, place)
    single = copy.deepcopy(bijection).float()
    z32, ladj32 = single(x.float(), None if context is None else context.float())
    _demand(z32.dtype == ladj32.dtype == torch.float32, place, f"float32 gives {z32.dtype} and {ladj32.dtype}")
    _close(z32.double(), z, 1e-3, place, "in float32, z differs from that in float64")


def _check_transformer(transformer: Transformer, x: Tensor, h: Tensor, tolerance: float, name: str) -> None:
    place = f"{name} ({type(transformer).__name__})"
    x, h = x.clone().requires_grad_(), h.clone().requires_grad_()
    z, ladj = transformer(x, h)
    _demand(
        z.shape == x.shape and ladj.shape == x.shape[1:], place, f"its shapes are {(*z.shape,)} and {(*ladj.shape,)}"
    )
    (slope,) = torch.autograd.grad(z.sum(), x, retain_graph=True)
    _demand(bool((slope > 0).all()), place, f"its derivative is {float(slope.min()):.3g} somewhere, and not positive")
    _close(
        ladj, slope.log().sum(0), tolerance, place, "its log-determinant differs from the sum of the log-derivatives"
    )
    with torch.no_grad():
        root = transformer.inverse(z, h, SolverOptions())
        _demand(bool(root.converged.all()), place, f"its inverse fails for {int((~root.converged).sum())} values")
        _close(transformer(root.x, h)[0], z, tolerance, place, "x = inverse(z) does not map back to z; it is off")
        _close(root.slope, slope, 1e3 * tolerance, place, "the slope that its inverse returns is off")
    weights = torch.randn_like(z), torch.randn_like(ladj)
    value = (weights[0] * z).sum() + (weights[1] * ladj).sum()
    wanted = torch.autograd.grad(value, (x, h), allow_unused=True, materialize_grads=True)
    for got, expected in zip(transformer.gradients(x.detach(), h.detach(), *weights), wanted, strict=True):
        _close(got, expected, tolerance, place, "its gradients differ from those of forward")


def _check_conditioner(
    conditioner: Conditioner, x: Tensor, context: Tensor | None, tolerance: float, name: str
) -> Tensor:
    """The transformer's parameters at x, without gradients."""
    place = f"{name} ({type(conditioner).__name__})"
    known, like = torch.full((len(x),), -1), x[:, :1]
    with torch.no_grad():
        h: Tensor = conditioner(x, context)
        shape = (len(x), conditioner.outputs, x.shape[1])
        _demand(h.shape == shape, place, f"its output has shape {tuple(h.shape)} instead of {shape}")
        for i, step in enumerate(conditioner.incremental(x, context)):
            _demand(bool((known[step.features] < 0).all()), place, f"step {i} has features of earlier steps")
            _close(
                step.parameters, h[step.features], tolerance, place, f"the parameters of step {i} differ from forward"
            )
            known[step.features] = i
            step.push(x[step.features])
    _demand(bool((known >= 0).all()), place, f"its steps leave out {int((known < 0).sum())} features")
    if len(x) * conditioner.outputs <= _MOST_OUTPUTS:
        row_context = None if context is None else context[:, :1]
        jacobian = torch.autograd.functional.jacobian(lambda t: conditioner(t, row_context), like)
        depends = (jacobian != 0).any(1).view(len(x), len(x))
        wrong = (depends & (known >= known.unsqueeze(-1))).nonzero().tolist()
        message = "its parameters of feature {} depend on feature {}, which is not among the earlier ones"
        _demand(not wrong, place, message.format(*(wrong[0] if wrong else (0, 0))))
    return h


def _check_rows(
    bijection: Bijection, x: Tensor, context: Tensor | None, z: Tensor, ladj: Tensor, tolerance: float, place: str
) -> None:
    count = len(x)
    for index, batch in ((slice(None), (1, count)), (slice(1), (1, 1)), (0, ()), (slice(0), (0,))):
        rows = x[index].reshape(*batch, x.shape[-1])
        row_context = None if context is None else context[index].reshape(*batch, context.shape[-1])
        with torch.no_grad():
            part, part_ladj = bijection(rows, row_context)
        shapes = part.shape == rows.shape and part_ladj.shape == batch
        _demand(shapes, place, f"x of shape {tuple(rows.shape)} gives {tuple(part.shape)} and {tuple(part_ladj.shape)}")
        _close(part, z[index].view_as(part), tolerance, place, "z of a row depends on the other rows")
        _close(part_ladj, ladj[index].view_as(part_ladj), tolerance, place, "a log-determinant depends on other rows")


def _check_jacobian(
    bijection: Bijection, x: Tensor, context: Tensor | None, ladj: Tensor, tolerance: float, place: str
) -> Tensor:
    """The Jacobians of the first rows, (rows, D, D)."""
    rows = []
    for i in range(min(_JACOBIANS, len(x))):
        row_context = None if context is None else context[i]
        rows.append(torch.autograd.functional.jacobian(lambda t, g=row_context: bijection(t, g)[0], x[i]))
    jacobian = torch.stack(rows)
    count, step = len(rows), 1e-6
    direction, row_context = torch.randn_like(x[:count]), None if context is None else context[:count]
    with torch.no_grad():
        ahead, behind = (bijection(x[:count] + s * direction, row_context)[0] for s in (step, -step))
    slope = (ahead - behind) / (2 * step)
    product = (jacobian @ direction.unsqueeze(-1)).squeeze(-1)
    _close(product, slope, 1e-4, place, "its Jacobian by automatic differentiation differs from finite differences")
    expected = torch.linalg.slogdet(jacobian)[1]
    _close(ladj[:count], expected, tolerance, place, "its log-determinant differs from that of its Jacobian")
    return jacobian


def _check_inverse(bijection: Bijection, x: Tensor, context: Tensor | None, tolerance: float, place: str) -> None:
    with torch.no_grad():
        z, ladj = bijection(x, context)
        rows, row_context, _ = bijection.feature_major(z, context, "z")
        result = bijection.certified(rows, row_context, SolverOptions())
        failed = int((~result.converged.all(0)).sum())
        _demand(not failed, place, f"its inverse has not converged for {failed} of {len(x)} rows")
        again, _ = bijection(result.x.T, context)
        _close(again, z, tolerance, place, "x = inverse(z) does not map back to z; it is off")
        _close(result.x.T, x, 1e3 * tolerance, place, "the inverse of forward differs from x")
        _close(result.ladj, -ladj, 1e3 * tolerance, place, "the log-determinants do not cancel; their sum is off")
        broken = rows.clone()
        broken[:, 0] = torch.inf
        converged = bijection.certified(broken, row_context, SolverOptions()).converged.all(0)
    _demand(not bool(converged[0]), place, "the certificate of infinite noise claims convergence")
    _demand(bool(converged[1:].all()), place, "an infinite row makes the inverse of other rows fail")


def _check_inverse_gradients(
    bijection: Bijection, x: Tensor, context: Tensor | None, jacobian: Tensor, tolerance: float, place: str
) -> None:
    """The gradients of a function of x(z) and its log-determinant against the implicit function theorem."""
    count = len(jacobian)
    x, context = x[:count].clone().requires_grad_(), None if context is None else context[:count]
    parameters = [p for p in bijection.parameters() if p.requires_grad]
    weight, ladj_weight = torch.randn_like(x), torch.randn(count, dtype=x.dtype)
    z, ladj = bijection(x, context)
    noise = z.detach().requires_grad_()
    back, back_ladj = bijection.inverse(noise, context)
    value = (weight * back).sum() + (ladj_weight * back_ladj).sum()
    _demand(value.requires_grad, place, "its inverse has no gradients")
    got = torch.autograd.grad(value, [noise, *parameters], allow_unused=True, materialize_grads=True)
    outer = -(ladj_weight * ladj).sum()
    direct = torch.autograd.grad((weight * x).sum() + outer, x, retain_graph=True)[0]
    adjoint = torch.linalg.solve(jacobian.mT, direct.unsqueeze(-1)).squeeze(-1)
    implicit = outer - (adjoint * z).sum()
    wanted = torch.autograd.grad(implicit, [x, *parameters], allow_unused=True, materialize_grads=True)[1:]
    names = ["z", *(name for name, p in bijection.named_parameters() if p.requires_grad)]
    for name, ours, expected in zip(names, got, [adjoint, *wanted], strict=True):
        _close(ours, expected, 1e3 * tolerance, place, f"the gradient of its inverse with respect to {name} is off")


def _check_distribution(flow: Flow, x: Tensor, context: Tensor | None, tolerance: float) -> None:
    place = f"flow ({type(flow).__name__})"
    with torch.no_grad():
        d = flow(context)
        z, ladj = flow.bijection(x, context)
        log_density = d.log_prob(x)
        _close(
            log_density, flow.base.log_prob(z) + ladj, tolerance, place, "log_prob is not log p(z) + ladj: it is off"
        )
        drawn, log_density = d.rsample_and_log_prob((2,), certify="end-to-end")
        _demand(drawn.shape == (2, *d.batch_shape, flow.features), place, f"draws have shape {tuple(drawn.shape)}")
        _close(d.log_prob(drawn), log_density, 1e3 * tolerance, place, "the log-density of draws is off")


def _check_file(flow: Flow, x: Tensor, context: Tensor | None) -> None:
    place = f"flow ({type(flow).__name__})"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "flow.safetensors"
        try:
            flow.save(path)
            model = read_model(path)
            loaded = build_flow(path, model.config, model.tensors)
        except SinuflowError as error:
            raise AssertionError(f"{place}: it cannot be saved and loaded: {error}") from error
    with torch.no_grad():
        _close(loaded(context).log_prob(x), flow(context).log_prob(x), 0, place, "log_prob of the saved flow is off")


def _demand(condition: bool, place: str, message: str) -> None:
    if not condition:
        raise AssertionError(f"{place}: {message}")


def _close(ours: Tensor, expected: Tensor, tolerance: float, place: str, message: str) -> None:
    ours, expected = ours.detach(), expected.detach()
    error = float((ours - expected).abs().max()) if ours.numel() else 0.0
    size = float(expected.abs().max()) if ours.numel() else 0.0
    _demand(error <= tolerance * (1 + size), place, f"{message} by {error:.3g}")  # False for NaN
