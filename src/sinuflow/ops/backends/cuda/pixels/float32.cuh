// The network in float32 by FMA, which rounds to nearest: a thread takes two pixels at a time, with all their maps.
// (With tensor cores, whose sums are truncated, z had three times the error even with three products per product.)

// Mode of a pass: outputs alone; also the largest hidden unit, for the rounding error to expect; or also the
// activations for the backward pass.
enum Purpose { SCORE, CHECK, LEARN };

// Two pixels of a thread; if the second does not exist, it repeats the last one and is not stored.
struct Two {
    int pixel[2];
    bool both;

    INLINE Two(int first) : pixel{first, min(first + THREADS, PIXELS - 1)}, both(first + THREADS < PIXELS) {}
};
constexpr int PAIRS = (PIXELS + 2 * THREADS - 1) / (2 * THREADS);

// Accumulate maps of a layer at two pixels, as many as fit in registers; `load` returns the input (column, which
// pixel).
template <int MAPS_NOW, int ROWS, int COLUMNS, class Load>
INLINE void add_columns(float (&sum)[2][MAPS_NOW], const float* weights, Load load) {
#pragma unroll 2
    for (int column = 0; column < COLUMNS; column++) {
        const float4* from = reinterpret_cast<const float4*>(weights + column * ROWS);
        const float value[2] = {load(column, 0), load(column, 1)};
        UNROLL for (int m = 0; m < MAPS_NOW; m += 4) {
            const float4 w = __ldg(from + m / 4);
            const float four[4] = {w.x, w.y, w.z, w.w};
            UNROLL for (int c = 0; c < 4; c++)
                UNROLL for (int i = 0; i < 2; i++) sum[i][m + c] = fmaf(four[c], value[i], sum[i][m + c]);
        }
    }
}
// Call `use` for maps of a layer at two pixels: with the map, the pixel, and the sum plus `more`, such as a bias.
template <int MAPS_NOW, class More, class Use>
INLINE void each_sum(const Two& at, const float (&sum)[2][MAPS_NOW], int first, int maps, More more, Use use) {
    UNROLL for (int m = 0; m < MAPS_NOW; m++) {
        if (first + m >= maps) continue;
        const float fixed = more(first + m);
        UNROLL for (int i = 0; i < 2; i++)
            if (i == 0 || at.both) use(first + m, at.pixel[i], sum[i][m] + fixed);
    }
}
// The same for all maps of a layer at all pixels of a thread; `load` returns the input (column, place of the pixel).
template <int MAPS_NOW, int ROWS, int COLUMNS, class Place, class Load, class More, class Use>
INLINE void each_unit(const float* weights, int maps, Place place_of, Load load, More more, Use use) {
    NO_UNROLL for (int start = threadIdx.x; start < PIXELS; start += 2 * THREADS) {
        const Two at(start);
        const int place[2] = {place_of(at.pixel[0]), place_of(at.pixel[1])};
        NO_UNROLL for (int first = 0; first < maps; first += MAPS_NOW) {
            float sum[2][MAPS_NOW] = {};
            add_columns<MAPS_NOW, ROWS, COLUMNS>(sum, weights + first, [&](int column, int i) { return load(column, place[i]); });
            each_sum(at, sum, first, maps, more, use);
        }
    }
}
// The place of a pixel in a saved float32 map.
INLINE int saved_place(int pixel) {
    const int tile = pixel / 8, turn = tile / WARPS, set = turn / AT_ONCE * WARPS + tile % WARPS;
    return (4 * set + pixel % 8 / 2) * SAVED_WORDS + 2 * (turn % AT_ONCE) + pixel % 2;
}
constexpr int WIDE_NOW = WIDE % 32 ? 16 : 32, HEAD_NOW = padded(HEADS, 4);

template <Purpose WHAT> INLINE void forward_float32(const ForwardArguments<float>& p) {
    DYNAMIC_SHARED(wide);  // before activation
    float* narrow = wide + WIDE * WIDE_PLANE;
    float* x = narrow + NARROW * NARROW_PLANE;
    int* far = reinterpret_cast<int*>(x + CHANNELS * X_PLANE);
    const int image = blockIdx.x;
    const float* added = p.added ? p.added + static_cast<long>(image) * ADDED : nullptr;
    constexpr int SAVED_MAP = SAVED_PLANE * SAVED_WORDS;
    unsigned* saved = WHAT == LEARN ? p.saved[static_cast<long>(image) * SAVED_MAPS * SAVED_PLANE].word : nullptr;

    for (int e = threadIdx.x; e < NARROW * NARROW_PLANE + CHANNELS * X_PLANE; e += THREADS) narrow[e] = 0.0f;
    store_columns(far);
    if (WHAT == LEARN)  // padding must be finite
        for (int map = threadIdx.x; map < SAVED_MAPS; map += THREADS)
            for (int pixel = PIXELS; pixel < 8 * TILES; pixel++) saved[map * SAVED_MAP + saved_place(pixel)] = 0u;
    __syncthreads();
    each_feature(p.x, p.batch, image, p.reverse, [&](int place, const float* from) { x[place] = *from; });
    __syncthreads();

    float largest = 0.0f;
    auto keep = [&](int map, int pixel, float value) {
        if (WHAT == CHECK) largest = fmaxf(largest, value);
        if (WHAT == LEARN) saved[map * SAVED_MAP + saved_place(pixel)] = __float_as_uint(rectified(value));
    };

    const float *weights = p.weights, *bias = p.biases;
    auto place_of = [](int pixel) { return pixel; };
    auto of_bias = [&](int map) { return __ldg(bias + map); };
    auto active = [&](int map, int pixel) { return rectified(wide[map * WIDE_PLANE + pixel]); };
    each_unit<WIDE_NOW, WIDE, FAR_PLACES * CHANNELS>(
        weights, WIDE, x_place, [&](int column, int place) { return x[far[column] + place]; },
        [&](int map) { return __ldg(bias + map) + (added ? added[map] : 0.0f); },
        [&](int map, int pixel, float value) {
            wide[map * WIDE_PLANE + pixel] = value;
            keep(map, pixel, value);
        });
    weights += 8 * FIRST_STEPS * WIDE, bias += WIDE;

    NO_UNROLL for (int block = 0; block < BLOCKS; block++) {
        int maps = block * SAVED_BLOCK + WIDE;  // saved maps before those of the layer
        auto store_narrow = [&](int map, int pixel, float value) {
            narrow[map * NARROW_PLANE + narrow_place(pixel)] = rectified(value);
            keep(maps + map, pixel, value);
        };
        each_unit<NARROW, NARROW, WIDE>(weights, NARROW, place_of, active, of_bias, store_narrow);
        weights += WIDE * NARROW, bias += NARROW, maps += NARROW;
        __syncthreads();

        // Every thread has read its neighbourhood before any writes.
        float seen[PAIRS][2][NARROW] = {};
        UNROLL for (int pair = 0; pair < PAIRS; pair++) {
            const Two at(min(static_cast<int>(threadIdx.x) + 2 * THREADS * pair, PIXELS - 1));
            const int place[2] = {narrow_place(at.pixel[0]), narrow_place(at.pixel[1])};
            NO_UNROLL for (int from = 0; from < NEAR_PLACES; from++)
                add_columns<NARROW, NARROW, NARROW>(seen[pair], weights + from * NARROW * NARROW, [&](int map, int i) { return narrow[map * NARROW_PLANE + near_offset(from) + place[i]]; });
        }
        __syncthreads();
        UNROLL for (int pair = 0; pair < PAIRS; pair++) {
            const int start = threadIdx.x + 2 * THREADS * pair;
            if (start >= PIXELS) continue;
            each_sum(Two(start), seen[pair], 0, NARROW, [&](int map) { return __ldg(bias + map) + (added ? added[WIDE + block * NARROW + map] : 0.0f); }, store_narrow);
        }
        weights += NEAR_PLACES * NARROW * NARROW, bias += NARROW, maps += NARROW;

        each_unit<WIDE_NOW, WIDE, NARROW>(
            weights, WIDE, narrow_place, [&](int map, int place) { return narrow[map * NARROW_PLANE + place]; }, of_bias,
            [&](int map, int pixel, float value) {
                float& to = wide[map * WIDE_PLANE + pixel];
                to += value;
                keep(maps + map, pixel, to);
            });
        weights += NARROW * WIDE, bias += WIDE;
        // No barrier: what follows concerns a thread's own pixels, until the next 3x3 convolution.
    }

    each_unit<HEAD_NOW, HEAD, WIDE>(weights, HEADS, place_of, active, of_bias, [&](int head, int pixel, float output) {
        p.outputs[output_index(head, pixel, p.reverse) * p.batch + image] = head < CHANNELS ? x[head * X_PLANE + x_place(pixel)] + output : output;
    });
    if (WHAT == CHECK) store_largest(p.largest, largest);
}
