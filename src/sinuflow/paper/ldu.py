"""Figure "ldu": one LDU block and the flow that is made of such, drawn from the object."""

from __future__ import annotations

from .. import SinusoidalFlow
from .items import Options
from .record import Figure


def power_flow() -> SinusoidalFlow:
    """The architecture for POWER, as Table "toy_tabular" gives it.

    Example:
        >>> power_flow().config["hidden"]
        [256, 256]
    """
    return SinusoidalFlow(features=6, conditioning="shift", blocks=12, scales=4, waves=4, hidden=(256, 256))


def run(options: Options) -> list[Figure]:
    """The drawing, and how many parameters it adds up to."""
    flow = power_flow()
    flow.draw().save(options.out / "ldu.svg")
    count = sum(parameter.numel() for parameter in flow.parameters())
    masked = sum(int((mask == 0).sum()) for name, mask in flow.named_buffers() if name.endswith("mask"))
    # What a mask hides is stored and counted, but has no effect.
    extra = {"masked": masked}
    return [Figure("POWER architecture", "parameters", "SinusoidalFlow", {None: float(count)}, extra=extra)]
