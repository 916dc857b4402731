// The network in float32 by FMA, which rounds to nearest: a thread takes two pixels at a time, with all their maps.
// (With tensor cores, whose sums are truncated, z had three times the error even with three products per product.)

// Mode of a pass: outputs alone; also the largest hidden unit, for the rounding error to expect; or also the
// activations for the backward pass.
enum Purpose { SCORE, CHECK, LEARN };

// Two pixels of a thread; if the second does not exist, it repeats the last one and is not stored.
struct Two {
    int pixel[2];
    bool both;

    __device__ __forceinline__ Two(int first) : pixel{first, min(first + THREADS, PIXELS - 1)}, both(first + THREADS < PIXELS) {}
};
constexpr int PAIRS = (PIXELS + 2 * THREADS - 1) / (2 * THREADS);

// Accumulate maps of a layer at two pixels, as many as fit in registers; `load` returns the input (column, which
// pixel).
template <int MAPS_NOW, int ROWS, int COLUMNS, class Load>
__device__ __forceinline__ void add_columns(float (&sum)[2][MAPS_NOW], const float* weights, Load load) {
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
// The place of a pixel in a saved float32 map.
__device__ __forceinline__ int saved_place(int pixel) {
    const int tile = pixel / 8, turn = tile / WARPS, set = turn / AT_ONCE * WARPS + tile % WARPS;
    return (4 * set + pixel % 8 / 2) * SAVED_WORDS + 2 * (turn % AT_ONCE) + pixel % 2;
}
constexpr int WIDE_NOW = WIDE % 32 ? 16 : 32, HEAD_NOW = padded(HEADS, 4);

template <Purpose WHAT>
__device__ __forceinline__ void forward_float32(const PixelForwardArguments& p) {
    DYNAMIC_SHARED(memory);
    float* wide = memory;  // before activation
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
    NO_UNROLL for (int start = threadIdx.x; start < PIXELS; start += 2 * THREADS) {
        const Two at(start);
        const int place[2] = {x_place(at.pixel[0]), x_place(at.pixel[1])};
        NO_UNROLL for (int first = 0; first < WIDE; first += WIDE_NOW) {
            float sum[2][WIDE_NOW] = {};
            add_columns<WIDE_NOW, WIDE, FAR_PLACES * CHANNELS>(sum, weights + first, [&](int column, int i) { return x[far[column] + place[i]]; });
            UNROLL for (int m = 0; m < WIDE_NOW; m++) {
                const int map = first + m;
                const float more = __ldg(bias + map) + (added ? added[map] : 0.0f);
                UNROLL for (int i = 0; i < 2; i++) {
                    if (i && !at.both) continue;
                    const float value = sum[i][m] + more;
                    wide[map * WIDE_PLANE + at.pixel[i]] = value;
                    keep(map, at.pixel[i], value);
                }
            }
        }
    }
    weights += 8 * FIRST_STEPS * WIDE, bias += WIDE;

    NO_UNROLL for (int block = 0; block < BLOCKS; block++) {
        const int maps = block * SAVED_BLOCK + WIDE;  // saved maps before those of this block
        NO_UNROLL for (int start = threadIdx.x; start < PIXELS; start += 2 * THREADS) {
            const Two at(start);
            float sum[2][NARROW] = {};
            add_columns<NARROW, NARROW, WIDE>(sum, weights, [&](int map, int i) { return rectified(wide[map * WIDE_PLANE + at.pixel[i]]); });
            UNROLL for (int map = 0; map < NARROW; map++)
                UNROLL for (int i = 0; i < 2; i++) {
                    if (i && !at.both) continue;
                    const float value = sum[i][map] + __ldg(bias + map);
                    narrow[map * NARROW_PLANE + narrow_place(at.pixel[i])] = rectified(value);
                    keep(maps + map, at.pixel[i], value);
                }
        }
        weights += WIDE * NARROW, bias += NARROW;
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
            const Two at(start);
            UNROLL for (int map = 0; map < NARROW; map++) {
                const float more = __ldg(bias + map) + (added ? added[WIDE + block * NARROW + map] : 0.0f);
                UNROLL for (int i = 0; i < 2; i++) {
                    if (i && !at.both) continue;
                    const float value = seen[pair][i][map] + more;
                    narrow[map * NARROW_PLANE + narrow_place(at.pixel[i])] = rectified(value);
                    keep(maps + NARROW + map, at.pixel[i], value);
                }
            }
        }
        weights += NEAR_PLACES * NARROW * NARROW, bias += NARROW;

        NO_UNROLL for (int start = threadIdx.x; start < PIXELS; start += 2 * THREADS) {
            const Two at(start);
            const int place[2] = {narrow_place(at.pixel[0]), narrow_place(at.pixel[1])};
            NO_UNROLL for (int first = 0; first < WIDE; first += WIDE_NOW) {
                float sum[2][WIDE_NOW] = {};
                add_columns<WIDE_NOW, WIDE, NARROW>(sum, weights + first, [&](int map, int i) { return narrow[map * NARROW_PLANE + place[i]]; });
                UNROLL for (int m = 0; m < WIDE_NOW; m++) {
                    const int map = first + m;
                    const float more = __ldg(bias + map);
                    UNROLL for (int i = 0; i < 2; i++) {
                        if (i && !at.both) continue;
                        float& to = wide[map * WIDE_PLANE + at.pixel[i]];
                        to += sum[i][m] + more;
                        keep(maps + 2 * NARROW + map, at.pixel[i], to);
                    }
                }
            }
        }
        weights += NARROW * WIDE, bias += WIDE;
        // No barrier: what follows concerns a thread's own pixels, until the next 3x3 convolution.
    }

    NO_UNROLL for (int start = threadIdx.x; start < PIXELS; start += 2 * THREADS) {
        const Two at(start);
        float sum[2][HEAD_NOW] = {};
        add_columns<HEAD_NOW, HEAD, WIDE>(sum, weights, [&](int map, int i) { return rectified(wide[map * WIDE_PLANE + at.pixel[i]]); });
        UNROLL for (int head = 0; head < HEADS; head++)
            UNROLL for (int i = 0; i < 2; i++) {
                if (i && !at.both) continue;
                const float output = sum[i][head] + __ldg(bias + head);
                p.outputs[output_index(head, at.pixel[i], p.reverse) * p.batch + image] = head < CHANNELS ? x[head * X_PLANE + x_place(at.pixel[i])] + output : output;
            }
    }
    if (WHAT == CHECK) {
        UNROLL for (int distance = 16; distance; distance /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
        if (threadIdx.x % 32 == 0) p.largest[image * WARPS + threadIdx.x / 32] = largest;
    }
}
