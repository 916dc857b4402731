"""Checks of user-made flows, bijections and bases against their mathematical properties."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from .bijections import Autoregressive, Bijection, Chain, ColumnMap
from .bijections.columns import DataBijection, column_map_mistake
from .checks import instance
from .conditioners import Conditioner
from .errors import ArgumentError, SinuflowError
from .flows.bases import Base
from .flows.flow import Flow
from .flows.loading import build_flow
from .flows.storage import read_model
from .solvers import SolverOptions, Step
from .transformers import Transformer

Module = TypeVar("Module", bound=nn.Module)

#: Rows whose full Jacobian is computed; features and conditioner outputs up to which that is done.
_JACOBIANS, _MOST_FEATURES, _MOST_OUTPUTS = 3, 256, 2000
#: A value of z far from the data, which every transformer must reach; x up to which it is tested to increase.
_FAR, _NEAR = 300.0, 6
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
    instance("flow", flow, Flow)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed every GPU
        flow = _perturbed(flow, perturb)
        x = torch.randn(rows, flow.features).double() if x is None else x.detach().double().cpu()
        if context is None and flow.context:
            context = torch.randn(len(x), flow.context)
        context = None if context is None else context.detach().double().cpu().expand(len(x), -1)
        _check_bijection(flow.bijection, x, context, tolerance, "bijection")
        check_base(flow.base, seed=seed)
        check = _Check.of("flow", flow, tolerance)
        _check_distribution(check, flow, x, context)
        if save:
            _check_file(check, flow, x, context)


def check_bijection(bijection: Bijection, context: Tensor | None = None, **options: Any) -> None:
    """Check a bijection, and first its layers if it is a chain; options are those of :func:`check_flow`.

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
    if isinstance(bijection, DataBijection):
        raise ArgumentError("a column map, in float64 and on its domain alone, is checked by check_column_map")
    check_flow(Flow(bijection), context, save=False, **options)


def check_column_map(column_map: ColumnMap | type[ColumnMap], values: Tensor) -> None:
    """Check that a registered column map increases, and its derivative and inverse, at values of a column.

    :func:`sinuflow.fit_table` makes the same check at the training values.

    Example:
        >>> from sinuflow.bijections import Log
        >>> from sinuflow.testing import check_column_map
        >>> check_column_map(Log(), torch.tensor([0.1, 3.0, 250.0]))
    """
    values = torch.as_tensor(values, dtype=torch.float64)
    if isinstance(column_map, type):
        column_map = column_map.fit(values, float(values.min()), float(values.max()), 0.0)
    instance("column_map", column_map, ColumnMap)
    spec = column_map.spec()
    mistake = column_map_mistake(spec.name, spec.arguments, values)
    _Check.of("column map", column_map).demand(mistake is None, str(mistake))


def check_transformer(
    transformer: Transformer, *, features: int = 3, rows: int = 8, perturb: float = 0.1, tolerance: float = 1e-6
) -> None:
    """Check that a transformer is increasing, and its log-determinant, inverse and gradients, at random parameters.

    Example:
        >>> from sinuflow.testing import check_transformer
        >>> from sinuflow.transformers import Affine
        >>> check_transformer(Affine())
    """
    instance("transformer", transformer, Transformer)
    message = "it must set num_parameters, how many it has per feature"
    _Check.of("transformer", transformer).demand(hasattr(transformer, "num_parameters"), message)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
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
    instance("conditioner", conditioner, Conditioner)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
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
    instance("base", base, Base)
    check = _Check.of("base", base)
    like = torch.zeros((), dtype=torch.float64)
    base = copy.deepcopy(base).double()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for shape in ((), (2, 3), (0,)):
            try:
                z = base.draw(shape, None, like)
                check.demand(z.shape == (*shape, base.features), f"sample({shape}) has shape {tuple(z.shape)}")
                got = tuple(base.log_prob(z).shape)
                check.demand(got == shape, f"log_prob of {tuple(z.shape)} has shape {got} instead of {shape}")
            except AssertionError:
                raise
            except Exception as raised:  # some of PyTorch's distributions have no empty draws
                check.demand(shape == (0,), f"sample({shape}) or log_prob of its draws raises: {raised}")
        z = base.draw((_DRAWS,), None, like).detach().requires_grad_()
        (score,) = torch.autograd.grad(base.log_prob(z).sum(), z)
    product = (z * score).detach()
    error = (product.mean(0) + 1).abs() / (product.std(0) / _DRAWS**0.5 + 1e-6)
    message = "its draws do not fit its log_prob: E[z ∂ log p(z)/∂z] is {:.3g} instead of -1"
    worst = int(error.argmax())
    check.demand(bool(error[worst] < _STANDARD_ERRORS), message.format(float(product.mean(0)[worst])))


class _Check(NamedTuple):
    """Assertions about one component, whose messages begin with its place in the flow."""

    place: str
    tolerance: float = 0.0

    @classmethod
    def of(cls, name: str, component: object, tolerance: float = 0.0) -> _Check:
        return cls(f"{name} ({type(component).__name__})", tolerance)

    def demand(self, condition: bool, message: str) -> None:
        if not condition:
            raise AssertionError(f"{self.place}: {message}")

    def close(self, ours: Tensor, expected: Tensor, message: str, factor: float = 1.0) -> None:
        ours, expected = ours.detach(), expected.detach()
        error, size = (float(t.abs().max()) if t.numel() else 0.0 for t in (ours - expected, expected))
        self.demand(error <= factor * self.tolerance * (1 + size), f"{message} by {error:.3g}")  # False for NaN


def _perturbed(module: Module, perturb: float) -> Module:
    module = copy.deepcopy(module).cpu().double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(perturb * torch.randn(parameter.shape, dtype=torch.float64))
    return module


def _check_bijection(bijection: Bijection, x: Tensor, context: Tensor | None, tolerance: float, name: str) -> None:
    check = _Check.of(name, bijection, tolerance)
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
    try:
        z, ladj = (t.detach() for t in bijection(x, context))
    except ArgumentError as error:
        raise AssertionError(f"{check.place}: {error}") from error
    check.demand(z.shape == x.shape, f"z has shape {tuple(z.shape)} for x of shape {tuple(x.shape)}")
    check.demand(ladj.shape == x.shape[:-1], f"the log-determinants have shape {tuple(ladj.shape)}")
    check.demand(bool(z.isfinite().all() & ladj.isfinite().all()), "its result is NaN or infinite")
    _check_rows(check, bijection, x, context, z, ladj)
    few, few_context = x[:_JACOBIANS], None if context is None else context[:_JACOBIANS]
    if bijection.features <= _MOST_FEATURES:
        jacobian = _check_jacobian(check, bijection, few, few_context, ladj[:_JACOBIANS])
    _check_inverse(check, bijection, x, context, z, ladj)
    if bijection.features <= _MOST_FEATURES:
        _check_inverse_gradients(check, bijection, few, few_context, jacobian)
    single = copy.deepcopy(bijection).float()
    z32, ladj32 = single(x.float(), None if context is None else context.float())
    check.demand(z32.dtype == ladj32.dtype == torch.float32, f"float32 gives {z32.dtype} and {ladj32.dtype}")
    check._replace(tolerance=1e-3).close(z32.double(), z, "in float32, z differs from that in float64")


def _check_transformer(transformer: Transformer, x: Tensor, h: Tensor, tolerance: float, name: str) -> None:
    check = _Check.of(name, transformer, tolerance)
    x, h = x.clone().requires_grad_(), h.clone().requires_grad_()
    z, ladj = transformer(x, h)
    shapes = z.shape == x.shape and ladj.shape == x.shape[1:]
    wanted = f"{(*x.shape,)} for z and {(*x.shape[1:],)} for the log-determinant, a sum over features"
    check.demand(shapes, f"its shapes are {(*z.shape,)} and {(*ladj.shape,)} instead of {wanted}")
    check.demand(bool(z.isfinite().all()), "it must map R onto R, but z is NaN or infinite for some x")
    one = (1, x.numel())
    with torch.no_grad():
        single = transformer(x.reshape(one), h.transpose(0, 1).reshape(1, h.shape[1], -1))[0]
    elementwise = "it must be elementwise, so what depends on the feature belongs in h, but for x of shape"
    check.demand(single.shape == one, f"{elementwise} {one} it returns z of shape {(*single.shape,)}")
    check.close(single, z.reshape(one), "it must be elementwise, but z of an element changes with the others")
    (slope,) = torch.autograd.grad(z.sum(), x, retain_graph=True)
    check.demand(bool((slope > 0).all()), f"its derivative is {float(slope.min()):.3g} somewhere, and not positive")
    check.close(ladj, slope.log().sum(0), "its log-determinant differs from the sum of the log-derivatives")
    grid = torch.linspace(-_NEAR, _NEAR, 8 * _NEAR + 1, dtype=x.dtype).expand(len(x), -1)
    with torch.no_grad():
        values = transformer(grid, h[..., :1].expand(*h.shape[:-1], grid.shape[1]))[0]
    check.demand(bool((values.diff() >= 0).all()), "it must increase, but z falls or is NaN for some x")
    with torch.no_grad():
        root = transformer.inverse(z, h, SolverOptions())
        check.demand(bool(root.converged.all()), f"its inverse fails for {int((~root.converged).sum())} values")
        check.close(transformer(root.x, h)[0], z, "x = inverse(z) does not map back to z; it is off")
        check.close(root.slope, slope, "the slope that its inverse returns is off", 1e3)
        for far in (-_FAR, _FAR):
            target = torch.full_like(z, far)
            root = transformer.inverse(target, h, SolverOptions())
            check.demand(bool(root.converged.all()), f"it must map R onto R, but its inverse fails at z = {far:g}")
            check.close(transformer(root.x, h)[0], target, f"its inverse at z = {far:g} does not map back; it is off")
    weights = torch.randn_like(z), torch.randn_like(ladj)
    value = (weights[0] * z).sum() + (weights[1] * ladj).sum()
    expected_gradients = torch.autograd.grad(value, (x, h), allow_unused=True, materialize_grads=True)
    for got, expected in zip(transformer.gradients(x.detach(), h.detach(), *weights), expected_gradients, strict=True):
        check.close(got, expected, "its gradients differ from those of forward")


def _check_conditioner(
    conditioner: Conditioner, x: Tensor, context: Tensor | None, tolerance: float, name: str
) -> Tensor:
    """The transformer's parameters at x, without gradients."""
    check = _Check.of(name, conditioner, tolerance)
    known, parts = torch.full((len(x),), -1), []
    with torch.no_grad():
        h: Tensor = conditioner(x, context)
        shape = (len(x), conditioner.outputs, x.shape[1])
        check.demand(h.shape == shape, f"its output has shape {tuple(h.shape)} instead of {shape}")
        for i, step in enumerate(conditioner.incremental(x, context)):
            check.demand(isinstance(step, Step), f"incremental must yield Steps; got a {type(step).__name__}")
            shape, got = (*h[step.features].shape,), (*step.parameters.shape,)
            check.demand(got == shape, f"the parameters of step {i} have shape {got} instead of {shape}")
            check.demand(bool((known[step.features] < 0).all()), f"step {i} has features of earlier steps")
            parts.append((step.features, step.parameters.clone()))
            known[step.features] = i
            step.push(x[step.features])
    check.demand(bool((known >= 0).all()), f"its steps leave out {int((known < 0).sum())} features")
    if len(x) * conditioner.outputs <= _MOST_OUTPUTS:
        row_context = None if context is None else context[:, :1]
        jacobian = torch.autograd.functional.jacobian(lambda t: conditioner(t, row_context), x[:, :1])
        depends = (jacobian != 0).any(1).view(len(x), len(x))
        wrong = (depends & (known >= known.unsqueeze(-1))).nonzero().tolist()
        message = "its parameters of feature {} depend on feature {}; they may depend on preceding features only"
        check.demand(not wrong, message.format(*(wrong[0] if wrong else (0, 0))))
    for i, (features, parameters) in enumerate(parts):
        check.close(parameters, h[features], f"the parameters of step {i} differ from forward")
    return h


def _check_rows(
    check: _Check, bijection: Bijection, x: Tensor, context: Tensor | None, z: Tensor, ladj: Tensor
) -> None:
    count = len(x)
    for index, batch in ((slice(None), (1, count)), (slice(1), (1, 1)), (0, ()), (slice(0), (0,))):
        rows = x[index].reshape(*batch, x.shape[-1])
        row_context = None if context is None else context[index].reshape(*batch, context.shape[-1])
        with torch.no_grad():
            part, part_ladj = bijection(rows, row_context)
        shapes = part.shape == rows.shape and part_ladj.shape == batch
        check.demand(shapes, f"x of shape {tuple(rows.shape)} gives {tuple(part.shape)} and {tuple(part_ladj.shape)}")
        check.close(part, z[index].view_as(part), "z of a row depends on the other rows")
        check.close(part_ladj, ladj[index].view_as(part_ladj), "a log-determinant depends on other rows")


def _check_jacobian(check: _Check, bijection: Bijection, x: Tensor, context: Tensor | None, ladj: Tensor) -> Tensor:
    """The Jacobians of the rows, (rows, D, D)."""
    # Rows are independent, so that the derivatives of their sum are those of each.
    jacobian: Tensor = torch.autograd.functional.jacobian(lambda t: bijection(t, context)[0].sum(0), x).transpose(0, 1)
    direction, step = torch.randn_like(x), 1e-6
    with torch.no_grad():
        ahead, behind = (bijection(x + s * direction, context)[0] for s in (step, -step))
    product = (jacobian @ direction.unsqueeze(-1)).squeeze(-1)
    message = "its Jacobian by automatic differentiation differs from finite differences"
    check._replace(tolerance=1e-4).close(product, (ahead - behind) / (2 * step), message)
    check.close(ladj, torch.linalg.slogdet(jacobian)[1], "its log-determinant differs from that of its Jacobian")
    return jacobian


def _check_inverse(
    check: _Check, bijection: Bijection, x: Tensor, context: Tensor | None, z: Tensor, ladj: Tensor
) -> None:
    with torch.no_grad():
        rows, row_context, _ = bijection.feature_major(z, context, "z")
        result = bijection.certified(rows, row_context, SolverOptions())
        failed = int((~result.converged.all(0)).sum())
        check.demand(not failed, f"its inverse has not converged for {failed} of {len(x)} rows")
        again, _ = bijection(result.x.T, context)
        check.close(again, z, "x = inverse(z) does not map back to z; it is off")
        check.close(result.x.T, x, "the inverse of forward differs from x", 1e3)
        check.close(result.ladj, -ladj, "the log-determinants do not cancel; their sum is off", 1e3)
        broken = rows.clone()
        broken[:, 0] = torch.inf
        converged = bijection.certified(broken, row_context, SolverOptions()).converged.all(0)
    check.demand(not bool(converged[0]), "the certificate of infinite noise claims convergence")
    check.demand(bool(converged[1:].all()), "an infinite row makes the inverse of other rows fail")


def _check_inverse_gradients(
    check: _Check, bijection: Bijection, x: Tensor, context: Tensor | None, jacobian: Tensor
) -> None:
    """The gradients of a function of x(z) and its log-determinant against the implicit function theorem."""
    x = x.clone().requires_grad_()
    parameters = {name: p for name, p in bijection.named_parameters() if p.requires_grad}
    weight, ladj_weight = torch.randn_like(x), torch.randn(len(x), dtype=x.dtype)
    z, ladj = bijection(x, context)
    noise = z.detach().requires_grad_()
    back, back_ladj = bijection.inverse(noise, context)
    value = (weight * back).sum() + (ladj_weight * back_ladj).sum()
    check.demand(value.requires_grad, "its inverse has no gradients")
    got = torch.autograd.grad(value, [noise, *parameters.values()], allow_unused=True, materialize_grads=True)
    outer = -(ladj_weight * ladj).sum()
    direct = torch.autograd.grad((weight * x).sum() + outer, x, retain_graph=True)[0]
    adjoint = torch.linalg.solve(jacobian.mT, direct.unsqueeze(-1)).squeeze(-1)
    implicit = outer - (adjoint * z).sum()
    _, *wanted = torch.autograd.grad(implicit, [x, *parameters.values()], allow_unused=True, materialize_grads=True)
    for name, ours, expected in zip(["z", *parameters], got, [adjoint, *wanted], strict=True):
        check.close(ours, expected, f"the gradient of its inverse with respect to {name} is off", 1e3)


def _check_distribution(check: _Check, flow: Flow, x: Tensor, context: Tensor | None) -> None:
    with torch.no_grad():
        d = flow(context)
        z, ladj = flow.bijection(x, context)
        check.close(d.log_prob(x), flow.base.log_prob(z) + ladj, "log_prob is not log p(z) + ladj: it is off")
        drawn, log_density = d.rsample_and_log_prob((2,), certify="end-to-end")
        check.demand(drawn.shape == (2, *d.batch_shape, flow.features), f"draws have shape {tuple(drawn.shape)}")
        check.close(d.log_prob(drawn), log_density, "the log-density of draws is off", 1e3)


def _check_file(check: _Check, flow: Flow, x: Tensor, context: Tensor | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "flow.safetensors"
        try:
            flow.save(path)
            model = read_model(path)
            loaded = build_flow(path, model.config, model.tensors)
        except SinuflowError as error:
            raise AssertionError(f"{check.place}: it cannot be saved and loaded: {error}") from error
    with torch.no_grad():
        check.close(loaded(context).log_prob(x), flow(context).log_prob(x), "log_prob of the saved flow is off", 0)
