// A network's parameters, from where PyTorch has them to where the kernels want them, and their gradients back.

struct PixelPackArguments {
    const float* parameters;  // all of them, one after the other
    const int* source;        // for every packed number, which parameter it is; -1: none, it is zero
    float* packed;
    int count, rough;  // so many of the first are rounded, for tensor cores
};

extern "C" __global__ void __launch_bounds__(256) pixel_pack(const PixelPackArguments p) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= p.count) return;
    const int at = __ldg(p.source + i);
    const float value = at < 0 ? 0.0f : __ldg(p.parameters + at);
    p.packed[i] = i < p.rough ? rounded(value) : value;
}

struct PixelSumArguments {
    const float* parts;  // [rows][columns]
    const int* to;       // for every column, which parameter's gradient it is; -1: none
    float* gradient;     // of all parameters; those that no column belongs to are zero already
    int rows, columns;
};

// A block adds up 32 columns: eight warps take every eighth row each, always in the same order.
extern "C" __global__ void __launch_bounds__(256) pixel_sum(const PixelSumArguments p) {
    DYNAMIC_SHARED(memory);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    float sum = 0.0f;
    if (column < p.columns)
#pragma unroll 8
        for (int row = warp; row < p.rows; row += 8) sum += __ldg(p.parts + static_cast<long>(row) * p.columns + column);
    memory[threadIdx.x] = sum;
    __syncthreads();
    if (warp || column >= p.columns) return;
#pragma unroll
    for (int other = 1; other < 8; other++) sum += memory[32 * other + lane];
    const int at = __ldg(p.to + column);
    if (at >= 0) p.gradient[at] = sum;
}
