// z = x + c(x) for a batch of images, and all that the gradients need: by tensor cores, if eleven bits of every number
// are enough.

__device__ __forceinline__ void shift_roughly(const PixelForwardArguments& p) {
    DYNAMIC_SHARED(memory);
    float* wide = memory;  // before its activation
    float* narrow = wide + WIDE * WIDE_PLANE;
    float* x = narrow + NARROW * NARROW_PLANE;
    int* far = reinterpret_cast<int*>(x + CHANNELS * X_PLANE);  // where the columns of the first convolution are, from a pixel
    const int image = blockIdx.x, lane = threadIdx.x % 32, member = lane % 4;
    const float* added = p.added ? p.added + static_cast<long>(image) * ADDED : nullptr;
    Kept* kept = p.kept + static_cast<long>(image) * KEPT_MAPS * KEPT_PLANE;

    for (int e = threadIdx.x; e < NARROW * NARROW_PLANE + CHANNELS * X_PLANE; e += THREADS) narrow[e] = 0.0f;
    note_columns(far);
    __syncthreads();
    each_number(p.x, p.batch, image, p.reverse, [&](int place, const float* from) { x[place] = *from; });
    __syncthreads();

    // The wide maps at two pixels, of which the second may be one too many: there is room for it.
    auto store_wide = [&](int map, int pixel, float one, float two) {
        *reinterpret_cast<float2*>(wide + map * WIDE_PLANE + pixel) = make_float2(rounded(one), rounded(two));
    };
    auto store_narrow = [&](int map, int pixel, float one, float two) {
        float* to = narrow + map * NARROW_PLANE;
        if (PIXELS % 8 == 0 || pixel < PIXELS) to[narrow_place(pixel)] = rounded(rectified(one));
        if (PIXELS % 8 == 0 || pixel + 1 < PIXELS) to[narrow_place(pixel + 1)] = rounded(rectified(two));
    };
    auto active = [&](int map, int pixel) { return rectified(wide[map * WIDE_PLANE + pixel]); };

    const float *weights = p.weights, *bias = p.biases;
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const Tiles tiles(chunk);
        float sum[AT_ONCE][WIDE / 16][4] = {};
        const OfRows<WIDE / 16> more([&](int map) { return bias[map] + (added ? added[map] : 0.0f); });
        int place[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) place[i] = tiles.at(i, X_ROW, x_place);
        multiply<WIDE / 16, FIRST_STEPS, ROUGH_ONES>(sum, weights, [&](int step, int half, int i) { return rounded(x[far[8 * step + half + member] + place[i]]); });
        more.add_to(sum);
        each_pair(tiles, sum, store_wide);
        keep(kept, tiles, sum);
    }
    weights += FIRST_STEPS * WIDE * 8, bias += WIDE;
    __syncwarp();

#pragma unroll 1
    for (int block = 0; block < BLOCKS; block++) {
        const int maps = block * KEPT_BLOCK + WIDE;  // that are kept before those of this bottleneck
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const Tiles tiles(chunk);
            const OfRows<NARROW / 16> more([&](int map) { return bias[map]; });
            float sum[AT_ONCE][NARROW / 16][4] = {};
            multiply<NARROW / 16, SHRINK_STEPS, ROUGH_ONES>(sum, weights, [&](int step, int half, int i) { return active(8 * step + half + member, tiles.loaded(i)); });
            more.add_to(sum);
            each_pair(tiles, sum, store_narrow);
            keep(kept + maps * KEPT_PLANE, tiles, sum);
        }
        weights += SHRINK_STEPS * NARROW * 8, bias += NARROW;
        __syncthreads();

        // All warps have looked before anybody writes to where they look.
        const OfRows<NARROW / 16> more([&](int map) { return bias[map] + (added ? added[WIDE + block * NARROW + map] : 0.0f); });
        float seen[CHUNKS][AT_ONCE][NARROW / 16][4] = {};
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const Tiles tiles(chunk);
            int place[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) place[i] = tiles.at(i, NARROW_ROW, narrow_place) + member * NARROW_PLANE;
            multiply<NARROW / 16, LOOK_STEPS, ROUGH_ONES>(seen[chunk], weights, [&](int step, int half, int i) {
                return narrow[(8 * step % NARROW + half) * NARROW_PLANE + near_offset(8 * step / NARROW) + place[i]];
            });
        }
        __syncthreads();
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            more.add_to(seen[chunk]);
            each_pair(Tiles(chunk), seen[chunk], store_narrow);
            keep(kept + (maps + NARROW) * KEPT_PLANE, Tiles(chunk), seen[chunk]);
        }
        weights += LOOK_STEPS * NARROW * 8, bias += NARROW;
        __syncwarp();

#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const Tiles tiles(chunk);
            const OfRows<WIDE / 16> more([&](int map) { return bias[map]; });
            float sum[AT_ONCE][WIDE / 16][4] = {};
            multiply<WIDE / 16, GROW_STEPS, ROUGH_ONES>(sum, weights, [&](int step, int half, int i) {
                return narrow[(8 * step + half + member) * NARROW_PLANE + tiles.at(i, NARROW_ROW, narrow_place)];
            });
            more.add_to(sum);
            each_pair(tiles, sum, [&](int map, int pixel, float& one, float& two) {
                const float2 before = *reinterpret_cast<const float2*>(wide + map * WIDE_PLANE + pixel);
                one += before.x, two += before.y;
                store_wide(map, pixel, one, two);
            });
            keep(kept + (maps + 2 * NARROW) * KEPT_PLANE, tiles, sum);
        }
        weights += GROW_STEPS * WIDE * 8, bias += WIDE;
        __syncwarp();
    }

#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const Tiles tiles(chunk);
        const OfRows<HEAD / 16> more([&](int channel) { return bias[channel]; });
        float sum[AT_ONCE][HEAD / 16][4] = {};
        multiply<HEAD / 16, HEAD_STEPS, ROUGH_ONES>(sum, weights, [&](int step, int half, int i) { return active(8 * step + half + member, tiles.loaded(i)); });
        more.add_to(sum);
        each_pair(tiles, sum, [&](int channel, int pixel, float one, float two) {
            if (channel >= CHANNELS) return;
            const float* at = x + channel * X_PLANE;
            if (pixel < PIXELS) p.z[number_of(channel, pixel, p.reverse) * p.batch + image] = at[x_place(pixel)] + one;
            if (pixel + 1 < PIXELS) p.z[number_of(channel, pixel + 1, p.reverse) * p.batch + image] = at[x_place(pixel + 1)] + two;
        });
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) pixel_learn(const PixelForwardArguments p) {
#if ROUGH
    shift_roughly(p);
#else
    shift_exactly<LEARN>(p);
#endif
}
