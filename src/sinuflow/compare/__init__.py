"""Other libraries' flows, as the training loop wants them."""

from .zuko_flows import ZukoFlow

__all__ = ["ZukoFlow"]
