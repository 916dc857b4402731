"""Compiles Triton's kernels for wide networks of images for GPUs of 2020 and 2022, which needs none.

Prints their names, and the shared memory that they take.

A script of its own, because kernels that were defined for the interpreter cannot be compiled.
"""

from __future__ import annotations

import re
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.runtime.jit import JITFunction

from sinuflow.ops.backends.triton import wide_gradients, wide_inverse, wide_layers, wide_pixels

#: Each has so much shared memory for a block.
ROOM = {86: 101_376, 90: 232_448}
SMALL = {"COLUMNS": 64, "WIDE": 32, "NARROW": 16, "CHUNK": 16, "ADDED": 64}
LARGE = {"COLUMNS": 128, "WIDE": 128, "NARROW": 64, "CHUNK": 32, "ADDED": 0}
CONSTANTS = {
    "CHANNELS": 1, "HEIGHT": 8, "WIDTH": 8, "PIXELS": 64, "HEAD": 16, "LAST": True, "FIRST": True, "BLOCKS": 2,
    "SKEW": 4, "PRECISION": "tf32x3", "WEIGHTS": 1000, "MATRIX": 500, "BIAS": 1100, "BLOCK": 200, "BIASES": 1050,
    "PART": wide_pixels._PART, "OUTPUTS": 1, "SCALED": False,
    "MOST": 2.0,
}  # fmt: skip
LEARN = {"LEARN": True, "CHECK": False, **wide_pixels._TILE}
SCORE = {"LEARN": False, "CHECK": True, **wide_pixels._EXACT_TILE}
SUMS = wide_pixels._SUMS_TILES
#: The kernels, and what else is constant for them.
KERNELS: list[tuple[JITFunction, dict[str, Any]]] = [
    *((kernel, how) for kernel in (wide_layers.begin, wide_layers.bottleneck) for how in (LEARN, SCORE)),
    (wide_layers.bottleneck, {**LEARN, "LAST": False}),
    (wide_layers.bottleneck, {**SCORE, "LAST": False}),
    (wide_layers.begin_back, wide_pixels._TILE),
    (wide_layers.bottleneck_back, wide_pixels._TILE),
    (wide_layers.bottleneck_back, {**wide_pixels._TILE, "FIRST": False}),
    (wide_layers.end_back, {"ROWS": 128}),
    (wide_gradients.of_first, SUMS["first"]),
    (wide_gradients.of_head, SUMS["head"]),
    (wide_gradients.of_shrink_and_grow, {**SUMS["one"], "FIRST": 400}),
    (wide_gradients.of_look, {**SUMS["look"], "FIRST": 400}),
    (wide_inverse.solve_front, wide_pixels._INVERSE_TILE),
]
#: Those that know of a second output.
OF_SCALES: list[tuple[JITFunction, dict[str, Any]]] = [
    (wide_layers.bottleneck, LEARN),
    (wide_layers.bottleneck, SCORE),
    (wide_layers.begin_back, wide_pixels._TILE),
    (wide_gradients.of_head, SUMS["head"]),
    (wide_inverse.solve_front, wide_pixels._INVERSE_TILE),
]
#: Those that take most room, or fetch tiles while they multiply others.
DEMANDING = (wide_layers.begin, wide_gradients.of_first, wide_gradients.of_shrink_and_grow, wide_gradients.of_look)
#: What is single while a network learns; the rest is half.
SINGLE = {
    "x_at", "first_bias_at", "shrink_bias_at", "look_bias_at", "grow_bias_at", "next_bias_at", "added_at", "largest_at",
    "grad_at", "scale_at", "grad_x_at", "sums_at",
}  # fmt: skip


def compiled(kernel: JITFunction, size: dict[str, int], more: dict[str, Any], generation: int) -> None:
    given = {**CONSTANTS, **size, **more}
    constants = {name: value for name, value in given.items() if name in kernel.arg_names}
    exact = kernel is wide_inverse.solve_front or constants.get("CHECK", False)
    image_out = kernel is wide_layers.bottleneck and constants["LAST"]
    kinds = {name: "*fp16" if name.endswith("_at") else "i32" for name in kernel.arg_names}
    for name in kinds:
        if name.endswith("_at") and (exact or name in SINGLE or (image_out and name == "out_at")):
            kinds[name] = "*fp32"
    kinds |= dict.fromkeys(constants, "constexpr")
    options = {name: given[name] for name in ("num_warps", "num_stages") if name in given}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if name.endswith("_at")}
    source = ASTSource(kernel, kinds, constants, aligned)
    made = compile(source, target=GPUTarget("cuda", generation, 32), options=options)
    assert made.metadata.shared <= ROOM[generation], (kernel.fn.__name__, made.metadata.shared)
    check_buffers(kernel.fn.__name__, made.asm["ttgir"])
    print(kernel.fn.__name__, "exact" if exact else "learn", generation, made.metadata.shared)  # noqa: T201


def check_buffers(name: str, code: str) -> None:
    """Where products may still run while the next tiles are fetched, all tiles that they read have three places."""
    running = max(map(int, re.findall(r"warp_group_dot_wait[^{]*\{pendings = (\d+)", code)), default=0)
    places = set(map(int, re.findall(r"local_alloc : \(\) -> !ttg.memdesc<(\d+)x\d+x\d+x", code)))
    assert not running or places == {3}, (name, running, places)


if __name__ == "__main__":
    for kernel, more in KERNELS:
        compiled(kernel, SMALL, more, 90)
        if kernel in DEMANDING:
            for generation in ROOM:
                compiled(kernel, LARGE, more, generation)
    for kernel, more in OF_SCALES:
        compiled(kernel, LARGE, {**more, "OUTPUTS": 2, "SCALED": True}, 90)
