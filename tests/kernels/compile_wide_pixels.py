"""Compiles Triton's kernels for wide networks of images for a GPU of 2022, which needs none; prints their names.

A script of its own, because kernels that were defined for the interpreter cannot be compiled.
"""

from __future__ import annotations

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.runtime.jit import JITFunction

from sinuflow.kernels.triton import wide_gradients, wide_inverse, wide_layers

TARGET = GPUTarget("cuda", 90, 32)
CONSTANTS = {
    "CHANNELS": 3, "HEIGHT": 8, "WIDTH": 8, "PIXELS": 64, "COLUMNS": 128, "WIDE": 32, "NARROW": 16, "HEAD": 16,
    "ADDED": 64, "LAST": True, "FIRST": True, "BLOCKS": 2, "SKEW": 4, "CHUNK": 16, "PRECISION": "tf32x3", "ROWS": 64,
    "PART": 64, "WEIGHTS": 1000, "MATRIX": 500, "BIAS": 1100, "BLOCK": 200, "BIASES": 1050,
}  # fmt: skip
LEARN, SCORE = {"LEARN": True, "CHECK": False}, {"LEARN": False, "CHECK": True}
#: The kernels, and what else is constant for them.
KERNELS: list[tuple[JITFunction, dict[str, object]]] = [
    *((kernel, how) for kernel in (wide_layers.begin, wide_layers.bottleneck) for how in (LEARN, SCORE)),
    (wide_layers.bottleneck, {**LEARN, "LAST": False}),
    (wide_layers.begin_back, {}),
    (wide_layers.bottleneck_back, {}),
    (wide_layers.bottleneck_back, {"FIRST": False}),
    (wide_layers.end_back, {}),
    (wide_gradients.of_first, {}),
    (wide_gradients.of_head, {}),
    (wide_gradients.of_shrink_and_grow, {"FIRST": 400}),
    (wide_gradients.of_look, {"FIRST": 400}),
    (wide_inverse.solve_front, {}),
]
#: What is single while a network learns; the rest is half.
SINGLE = {
    "x_at", "first_bias_at", "shrink_bias_at", "look_bias_at", "grow_bias_at", "next_bias_at", "added_at", "largest_at",
    "grad_at", "scale_at", "grad_x_at", "sums_at",
}  # fmt: skip

for kernel, more in KERNELS:
    constants = {name: value for name, value in {**CONSTANTS, **more}.items() if name in kernel.arg_names}
    exact = kernel is wide_inverse.solve_front or constants.get("CHECK", False)
    image_out = kernel is wide_layers.bottleneck and constants["LAST"]
    kinds = {name: "*fp16" if name.endswith("_at") else "i32" for name in kernel.arg_names}
    for name in kinds:
        if name.endswith("_at") and (exact or name in SINGLE or (image_out and name == "out_at")):
            kinds[name] = "*fp32"
    kinds |= dict.fromkeys(constants, "constexpr")
    compile(ASTSource(kernel, kinds, constants), target=TARGET)
    print(kernel.fn.__name__, "exact" if exact else "learn")  # noqa: T201
