"""The arithmetic of the flow: plain references and their fused versions.

Everything here is feature-major: a batch of ``B`` rows with ``D`` features is a
tensor of shape ``(D, B)``, because then a feature's values are contiguous, a
parameter of a feature broadcasts along the fast axis, and the units of a masked
network that depend on the same features are consecutive rows.
"""
