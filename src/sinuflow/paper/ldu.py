"""Figure "ldu": one LDU block and a flow of such blocks, drawn from the object."""

from __future__ import annotations

from .. import SinusoidalFlow
from .items import Options
from .recipes import recipes
from .record import Result


def run(options: Options) -> list[Result]:
    """Draw the flow for POWER (Table "toy_tabular"), and count its parameters."""
    flow = SinusoidalFlow(features=6, **recipes("power")["paper"].flow)
    flow.draw().save(options.out / "ldu.svg")
    count = sum(parameter.numel() for parameter in flow.parameters())
    # Masked weights are stored and counted, but have no effect.
    masked = sum(int((mask == 0).sum()) for name, mask in flow.named_buffers() if name.endswith("mask"))
    extra = {"masked": masked}
    return [Result("POWER architecture", "parameters", "SinusoidalFlow", {None: float(count)}, extra=extra)]
