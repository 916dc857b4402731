"""Compiles Triton's kernels for PixelCNNs for GPUs of 2020 and 2022, which needs none.

Prints their names, and the shared memory that they take.

A script of its own, because kernels that were defined for the interpreter cannot be compiled.
"""

from __future__ import annotations

import re
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.runtime.jit import JITFunction

from sinuflow.ops.backends.triton import pixelcnn, pixelcnn_gradients, pixelcnn_inverse, pixelcnn_layers

#: Bytes of shared memory for a thread block.
ROOM = {86: 101_376, 90: 232_448}
SMALL = {"COLUMNS": 64, "WIDE": 32, "NARROW": 16, "CHUNK": 16, "ADDED": 64}
LARGE = {"COLUMNS": 128, "WIDE": 128, "NARROW": 64, "CHUNK": 32, "ADDED": 0}
CONSTANTS = {
    "CHANNELS": 1, "HEIGHT": 8, "WIDTH": 8, "PIXELS": 64, "HEAD": 16, "LAST": True, "FIRST": True, "BLOCKS": 2,
    "PART": pixelcnn._PART, "OUTPUTS": 1, "SCALED": False,
}  # fmt: skip
LEARN = {"LEARN": True, "CHECK": False, **pixelcnn._TILE}
SCORE = {"LEARN": False, "CHECK": True, **pixelcnn._TILE}
#: The kernels, and their other constants.
KERNELS: list[tuple[JITFunction, dict[str, Any]]] = [
    *((kernel, how) for kernel in (pixelcnn_layers.first_layers, pixelcnn_layers.bottleneck) for how in (LEARN, SCORE)),
    (pixelcnn_layers.bottleneck, {**LEARN, "LAST": False}),
    (pixelcnn_layers.bottleneck, {**SCORE, "LAST": False}),
    (pixelcnn_layers.head_backward, pixelcnn._TILE),
    (pixelcnn_layers.bottleneck_backward, pixelcnn._TILE),
    (pixelcnn_layers.bottleneck_backward, {**pixelcnn._TILE, "FIRST": False}),
    (pixelcnn_layers.input_gradient, {"ROWS": 128}),
    (pixelcnn_gradients.first_gradients, pixelcnn._FIRST_SUMS_TILE),
    (pixelcnn_gradients.head_gradients, pixelcnn._SUMS_TILE),
    (pixelcnn_gradients.pointwise_gradients, pixelcnn._SUMS_TILE),
    (pixelcnn_gradients.conv_gradients, pixelcnn._SUMS_TILE),
    (pixelcnn_inverse.solve_front, pixelcnn._INVERSE_TILE),
]
#: Kernels that take a second output.
TWO_OUTPUTS: list[tuple[JITFunction, dict[str, Any]]] = [
    (pixelcnn_layers.bottleneck, LEARN),
    (pixelcnn_layers.bottleneck, SCORE),
    (pixelcnn_layers.head_backward, pixelcnn._TILE),
    (pixelcnn_gradients.head_gradients, pixelcnn._SUMS_TILE),
    (pixelcnn_inverse.solve_front, pixelcnn._INVERSE_TILE),
]
#: Kernels with the most shared memory, or with pipelined loads.
DEMANDING = (
    pixelcnn_layers.first_layers,
    pixelcnn_gradients.first_gradients,
    pixelcnn_gradients.pointwise_gradients,
    pixelcnn_gradients.conv_gradients,
)
#: float32 arguments in training; the others are float16.
SINGLE = {
    "x_at", "first_bias_at", "reduce_bias_at", "conv_bias_at", "expand_bias_at", "next_bias_at", "added_at",
    "largest_at", "grad_at", "scale_at", "grad_x_at", "matrix_at", "bias_at",
}  # fmt: skip


def compiled(kernel: JITFunction, size: dict[str, int], more: dict[str, Any], generation: int) -> None:
    given = {**CONSTANTS, **size, **more}
    constants = {name: value for name, value in given.items() if name in kernel.arg_names}
    exact = kernel is pixelcnn_inverse.solve_front or constants.get("CHECK", False)
    image_out = kernel is pixelcnn_layers.bottleneck and constants["LAST"]
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
    """Where products overlap with the loads of the next tiles, all tiles that they read have three buffers."""
    running = max(map(int, re.findall(r"warp_group_dot_wait[^{]*\{pendings = (\d+)", code)), default=0)
    places = set(map(int, re.findall(r"local_alloc : \(\) -> !ttg.memdesc<(\d+)x\d+x\d+x", code)))
    assert not running or places == {3}, (name, running, places)


if __name__ == "__main__":
    for kernel, more in KERNELS:
        compiled(kernel, SMALL, more, 90)
        if kernel in DEMANDING:
            for generation in ROOM:
                compiled(kernel, LARGE, more, generation)
    for kernel, more in TWO_OUTPUTS:
        compiled(kernel, LARGE, {**more, "OUTPUTS": 2, "SCALED": True}, 90)
