"""Compiles every Triton kernel for a GPU of 2022, which needs none; prints the names of those that compile.

A script of its own, because kernels that were defined for the interpreter cannot be compiled.
"""

from __future__ import annotations

import inspect
from itertools import product

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.runtime.jit import JITFunction

from sinuflow.ops.backends.triton import adam as flat_adam
from sinuflow.ops.backends.triton import conditional_waves, constrain, pixel_affine, scale_stack

TARGET = GPUTarget("cuda", 90, 32)
CONSTANTS = {
    "SCALES": 2, "WAVES": 3, "PADDED": 4, "FEATURES": 4, "ROWS": 16, "KEEP": True, "BLOCK": 128, "PART": 4096,
    "SIGN": -1, "CLIP": 5.0, "MAX_DEVIATIONS": 30.0,
    "SLACK": 1.0, "WARMUP": 20, "GUARD_DECAY": 0.98, "LOG_BETA1": -0.1, "LOG_BETA2": -0.001, "BETA1": 0.9,
    "BETA2": 0.999, "DECAY": 0.01, "DECOUPLED": True, "AVERAGED": True, "EPSILON": 1e-7,
    "MIXED": False, "SHARED": True,
}  # fmt: skip
DEVICE_FUNCTIONS = {"_apply", "_part", "_places", "_store_gradient", "_sum", "_transformer"}
#: Float64 arguments of kernels for float64 rows and float32 waves.
MIXED = {"x_at", "z_at", "value_at", "inputs_at", "residual_at"}
KINDS = {"iterations_at": "*i32", "converged_at": "*i1", "control_at": "*fp64", "rates_at": "*fp64"}


def signature(kernel: JITFunction, number: str) -> dict[str, str]:
    """The types of a kernel's arguments: addresses end in ``_at``, constants are capitals, the rest are counts."""
    kinds = {}
    for name in kernel.arg_names:
        pointer = number if number != "mixed" else "fp64" if name in MIXED else "fp32"
        other = KINDS.get(name, f"*{pointer}") if name.endswith("_at") else "i32"
        kinds[name] = "constexpr" if name in CONSTANTS else other
    return kinds


for module in (conditional_waves, constrain, flat_adam, pixel_affine, scale_stack):
    for name, kernel in inspect.getmembers(module, lambda value: isinstance(value, JITFunction)):
        addresses = [a for a in kernel.arg_names if a.endswith("_at")]
        if not addresses or not name.startswith("_") or kernel.fn.__module__ != module.__name__:
            continue  # a device function, which is compiled with those that call it
        if name in DEVICE_FUNCTIONS:
            continue
        numbers = ("fp32", "fp64", *(["mixed"] if "MIXED" in kernel.arg_names else []))
        for number, shared in product(numbers, (True, False) if "SHARED" in kernel.arg_names else (True,)):
            kinds = signature(kernel, number)
            changes = {"MIXED": number == "mixed", "SHARED": shared}
            constants = {a: (CONSTANTS | changes)[a] for a, kind in kinds.items() if kind == "constexpr"}
            one_warp = {"num_warps": 1} if "PADDED" in constants else {}  # as it is launched
            made = compile(ASTSource(kernel, kinds, constants), target=TARGET, options=one_warp)
            # A literal must not be rounded to float32 on its way: here, -1/6 but for the last bits.
            assert number != "mixed" or "0dBFC5555555555549" in made.asm["ptx"].upper().replace("0D", "0d"), name
            print(module.__name__.rpartition(".")[2], name, number, shared)  # noqa: T201
