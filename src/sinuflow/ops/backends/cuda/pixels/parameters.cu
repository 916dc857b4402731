// Packing of a network's parameters, and reduction of their gradients.

struct PixelPackArguments {
    const float* parameters;  // concatenated
    const int* source;        // index of the parameter for every packed element; -1: zero
    float* packed;
    int count, tf32;          // the first `tf32` elements are rounded
};

extern "C" __global__ void __launch_bounds__(256) pixel_pack(const PixelPackArguments p) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= p.count) return;
    const int at = __ldg(p.source + i);
    const float value = at < 0 ? 0.0f : __ldg(p.parameters + at);
    p.packed[i] = i < p.tf32 ? to_tf32(value) : value;
}

struct PixelSumArguments {
    const float* parts;  // [rows][columns]
    const int* to;       // index of the parameter for every column; -1: none
    float* gradient;     // of all parameters, initially zero
    int rows, columns;
};

// A thread block sums 32 columns: each of eight warps takes every eighth row, in a fixed order.
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
    UNROLL for (int other = 1; other < 8; other++) sum += memory[32 * other + lane];
    const int at = __ldg(p.to + column);
    if (at >= 0) p.gradient[at] = sum;
}
