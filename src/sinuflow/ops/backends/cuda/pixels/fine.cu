// The network with sums in double precision, by tensor cores, on GPUs where these multiply doubles fast.
//
// Units are rounded to single precision when a layer is done, and pixels are not rounded at all. Before that, sums are next
// to exact, in whatever order they are taken: the inverse, which takes another one, finds the same units, and so the same
// shift and scale. What it is off by comes from the rounding of z alone.

template <bool CHECKS>
struct FineWay {
    using Number = double;
    static constexpr int LOOK_ONCE = ALL;
    float most = 0.0f;  // of all units, for a check

    __device__ __forceinline__ double seen(double pixel) const { return pixel; }
    __device__ __forceinline__ float unit(double sum, bool exists) {
        const float found = static_cast<float>(sum);
        if (CHECKS && exists) most = fmaxf(most, found);
        return found;
    }
    __device__ __forceinline__ float active(double sum) { return rectified(unit(sum, true)); }
    template <int TALL, int STEPS, int COUNT, class Load>
    __device__ __forceinline__ void multiply(double (&sum)[COUNT][TALL][4], const float* weights, Load load) const {
        const float4* mine = reinterpret_cast<const float4*>(weights) + threadIdx.x % 32;
        float4 next[TALL];  // weights are asked for a step early
#pragma unroll
        for (int m = 0; m < TALL; m++) next[m] = __ldg(mine + m * 32);
#pragma unroll 2
        for (int step = 0; step < STEPS; step++) {
            double left[TALL][4];
#pragma unroll
            for (int m = 0; m < TALL; m++) {
                left[m][0] = next[m].x, left[m][1] = next[m].y, left[m][2] = next[m].z, left[m][3] = next[m].w;
                if (step + 1 < STEPS) next[m] = __ldg(mine + ((step + 1) * TALL + m) * 32);
            }
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                const double right[2] = {load(step, 0, i), load(step, 4, i)};
#pragma unroll
                for (int m = 0; m < TALL; m++) mma_f64(sum[i][m], left[m], right);
            }
        }
    }
    template <class Sums>
    __device__ __forceinline__ void keep(int, const Tiles&, const Sums&) const {}
};

template <bool CHECKS>
__device__ __forceinline__ void shift_finely(const PixelFineArguments& p) {
    DYNAMIC_SHARED(memory);
    float *wide = memory + 2 * padded(CHANNELS * X_PLANE, 2), *narrow = wide + WIDE * WIDE_PLANE;
    int* far = reinterpret_cast<int*>(narrow + NARROW * NARROW_PLANE);
    FineWay<CHECKS> way;
    walk(way, Maps<double>{wide, narrow, reinterpret_cast<double*>(memory), far}, p);
    if (CHECKS) {
#pragma unroll
        for (int distance = 16; distance; distance /= 2) way.most = fmaxf(way.most, __shfl_xor_sync(~0u, way.most, distance));
        if (threadIdx.x % 32 == 0) p.largest[blockIdx.x * WARPS + threadIdx.x / 32] = way.most;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) pixel_fine_forward(const PixelFineArguments p) { shift_finely<false>(p); }
extern "C" __global__ void __launch_bounds__(THREADS, 1) pixel_fine_check(const PixelFineArguments p) { shift_finely<true>(p); }
