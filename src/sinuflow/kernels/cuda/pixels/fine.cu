// The network with sums in double precision, by tensor cores, on GPUs where these multiply doubles fast.
//
// Units are rounded to single precision when a layer is done, and pixels are not rounded at all. Before that, sums are next
// to exact, in whatever order they are taken: the inverse, which takes another one, finds the same units, and so the same
// shift. What it is off by comes from the rounding of z alone.

struct PixelFineArguments {
    const double* x;       // [NUMBERS][batch]
    const float* weights;  // of the layers, as tensor cores want them
    const float* biases;   // of the layers, one after the other
    const float* added;    // by the context, [batch][ADDED]; or null
    double* z;             // [NUMBERS][batch]
    float* largest;        // [batch][WARPS], for a check
    int batch, reverse;
};

// As `multiply`, in double precision.
template <int TALL, int STEPS, int COUNT, class Load>
__device__ __forceinline__ void multiply_finely(double (&sum)[COUNT][TALL][4], const float* weights, Load load) {
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

constexpr int ALL = CHUNKS * AT_ONCE;  // tiles of a warp

template <bool CHECKS>
__device__ __forceinline__ void shift_finely(const PixelFineArguments& p) {
    DYNAMIC_SHARED(memory);
    double* x = reinterpret_cast<double*>(memory);
    float* wide = memory + 2 * padded(CHANNELS * X_PLANE, 2);  // before its activation
    float* narrow = wide + WIDE * WIDE_PLANE;
    int* far = reinterpret_cast<int*>(narrow + NARROW * NARROW_PLANE);
    const int image = blockIdx.x, lane = threadIdx.x % 32, member = lane % 4;
    const float* added = p.added ? p.added + static_cast<long>(image) * ADDED : nullptr;

    for (int e = threadIdx.x; e < NARROW * NARROW_PLANE; e += THREADS) narrow[e] = 0.0f;
    for (int e = threadIdx.x; e < CHANNELS * X_PLANE; e += THREADS) x[e] = 0.0;
    note_columns(far);
    __syncthreads();
    each_number(p.x, p.batch, image, p.reverse, [&](int place, const double* from) { x[place] = *from; });
    __syncthreads();

    float most = 0.0f;
    auto noted = [&](int pixel, double sum) {
        const float unit = static_cast<float>(sum);
        if (CHECKS && (PIXELS % 8 == 0 || pixel < PIXELS)) most = fmaxf(most, unit);
        return unit;
    };
    // The wide maps at two pixels, of which the second may be one too many: there is room for it.
    auto store_wide = [&](int map, int pixel, double one, double two) {
        *reinterpret_cast<float2*>(wide + map * WIDE_PLANE + pixel) = make_float2(noted(pixel, one), noted(pixel + 1, two));
    };
    auto store_narrow = [&](int map, int pixel, double one, double two) {
        float* to = narrow + map * NARROW_PLANE;
        if (PIXELS % 8 == 0 || pixel < PIXELS) to[narrow_place(pixel)] = rectified(noted(pixel, one));
        if (PIXELS % 8 == 0 || pixel + 1 < PIXELS) to[narrow_place(pixel + 1)] = rectified(noted(pixel + 1, two));
    };
    auto active = [&](int map, int pixel) { return rectified(wide[map * WIDE_PLANE + pixel]); };

    const float *weights = p.weights, *bias = p.biases;
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const Tiles tiles(chunk);
        double sum[AT_ONCE][WIDE / 16][4] = {};
        const OfRows<WIDE / 16> more([&](int map) { return bias[map] + (added ? added[map] : 0.0f); });
        int place[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) place[i] = tiles.at(i, X_ROW, x_place);
        multiply_finely<WIDE / 16, FIRST_STEPS>(sum, weights, [&](int step, int half, int i) { return x[far[8 * step + half + member] + place[i]]; });
        more.add_to(sum);
        each_pair(tiles, sum, store_wide);
    }
    weights += FIRST_STEPS * WIDE * 8, bias += WIDE;
    __syncwarp();

#pragma unroll 1
    for (int block = 0; block < BLOCKS; block++) {
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const Tiles tiles(chunk);
            const OfRows<NARROW / 16> more([&](int map) { return bias[map]; });
            double sum[AT_ONCE][NARROW / 16][4] = {};
            multiply_finely<NARROW / 16, SHRINK_STEPS>(sum, weights, [&](int step, int half, int i) { return active(8 * step + half + member, tiles.loaded(i)); });
            more.add_to(sum);
            each_pair(tiles, sum, store_narrow);
        }
        weights += SHRINK_STEPS * NARROW * 8, bias += NARROW;
        __syncthreads();

        // All warps have looked before anybody writes to where they look.
        const OfRows<NARROW / 16> more([&](int map) { return bias[map] + (added ? added[WIDE + block * NARROW + map] : 0.0f); });
        const Tiles tiles(0);
        double seen[ALL][NARROW / 16][4] = {};
        int place[ALL];
#pragma unroll
        for (int i = 0; i < ALL; i++) place[i] = tiles.at(i, NARROW_ROW, narrow_place) + member * NARROW_PLANE;
        multiply_finely<NARROW / 16, LOOK_STEPS>(seen, weights, [&](int step, int half, int i) {
            return narrow[(8 * step % NARROW + half) * NARROW_PLANE + near_offset(8 * step / NARROW) + place[i]];
        });
        __syncthreads();
        more.add_to(seen);
        each_pair(tiles, seen, store_narrow);
        weights += LOOK_STEPS * NARROW * 8, bias += NARROW;
        __syncwarp();

#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const Tiles tiles(chunk);
            const OfRows<WIDE / 16> more([&](int map) { return bias[map]; });
            double sum[AT_ONCE][WIDE / 16][4] = {};
            multiply_finely<WIDE / 16, GROW_STEPS>(sum, weights, [&](int step, int half, int i) {
                return narrow[(8 * step + half + member) * NARROW_PLANE + tiles.at(i, NARROW_ROW, narrow_place)];
            });
            more.add_to(sum);
            each_pair(tiles, sum, [&](int map, int pixel, double one, double two) {
                const float2 before = *reinterpret_cast<const float2*>(wide + map * WIDE_PLANE + pixel);
                store_wide(map, pixel, before.x + one, before.y + two);
            });
        }
        weights += GROW_STEPS * WIDE * 8, bias += WIDE;
        __syncwarp();
    }

#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const Tiles tiles(chunk);
        const OfRows<HEAD / 16> more([&](int channel) { return bias[channel]; });
        double sum[AT_ONCE][HEAD / 16][4] = {};
        multiply_finely<HEAD / 16, HEAD_STEPS>(sum, weights, [&](int step, int half, int i) { return active(8 * step + half + member, tiles.loaded(i)); });
        more.add_to(sum);
        each_pair(tiles, sum, [&](int channel, int pixel, double one, double two) {
            if (channel >= CHANNELS) return;
            const double* at = x + channel * X_PLANE;
            if (pixel < PIXELS) p.z[number_of(channel, pixel, p.reverse) * p.batch + image] = at[x_place(pixel)] + one;
            if (pixel + 1 < PIXELS) p.z[number_of(channel, pixel + 1, p.reverse) * p.batch + image] = at[x_place(pixel + 1)] + two;
        });
    }
    if (CHECKS) {
#pragma unroll
        for (int distance = 16; distance; distance /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, distance));
        if (lane == 0) p.largest[image * WARPS + threadIdx.x / 32] = most;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) pixel_fine_forward(const PixelFineArguments p) { shift_finely<false>(p); }
extern "C" __global__ void __launch_bounds__(THREADS, 1) pixel_fine_check(const PixelFineArguments p) { shift_finely<true>(p); }
