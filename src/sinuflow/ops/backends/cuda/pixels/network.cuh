// A miniature PixelCNN (conditioners/pixelcnn.py), one image per thread block: memory layout and products.
//
// Compiled in: CHANNELS, HEIGHT, WIDTH of the image, MAPS inside a residual block, BLOCKS; OUTPUTS, a shift and maybe a
// free log-scale; and TF32: whether training rounds to TF32, as PyTorch's convolutions may.
//
// All feature maps of the image are in shared memory. A layer is a product of [maps] by [maps and kernel places] with
// [maps and kernel places] by [pixels]; pixels come in tiles of eight, each of one warp. 1x1 convolutions need no
// barrier.

constexpr int WARPS = 16, THREADS = 32 * WARPS;
constexpr int PIXELS = HEIGHT * WIDTH, FEATURES = CHANNELS * PIXELS;
constexpr int HEADS = OUTPUTS * CHANNELS;  // outputs of a pixel, [output][channel]
constexpr int TILES = (PIXELS + 7) / 8, MINE = (TILES + WARPS - 1) / WARPS;  // tiles of eight pixels, and the tiles of a warp
constexpr int NARROW = padded(MAPS, 16), WIDE = padded(2 * MAPS, 16), HEAD = padded(HEADS, 16);

// Padded size of a map, such that four maps of eight pixels lie in different banks.
__host__ __device__ constexpr int plane(int numbers) { return padded(numbers - 8, 32) + 8; }

// The first convolution reaches three pixels, those of the residual blocks one. The zero padding at the right of a row
// is also that at the left of the next.
constexpr int FAR = 3, FAR_SIDE = 2 * FAR + 1, FAR_PLACES = FAR * FAR_SIDE + FAR + 1;
constexpr int X_ROW = WIDTH + FAR, X_PLANE = (HEIGHT + FAR) * X_ROW + FAR;
constexpr int NEAR_PLACES = 5;
constexpr int NARROW_ROW = WIDTH + 1, NARROW_PLANE = plane((HEIGHT + 1) * NARROW_ROW + 1);
constexpr int WIDE_PLANE = plane(8 * TILES);

INLINE constexpr int far_offset(int place) { return (place / FAR_SIDE - FAR) * X_ROW + place % FAR_SIDE - FAR; }
INLINE constexpr int near_offset(int place) { return (place / 3 - 1) * NARROW_ROW + place % 3 - 1; }
INLINE int x_place(int pixel) { return FAR + (pixel / WIDTH + FAR) * X_ROW + pixel % WIDTH; }
INLINE int narrow_place(int pixel) { return 1 + (pixel / WIDTH + 1) * NARROW_ROW + pixel % WIDTH; }

// Steps of eight columns: of the first convolution, with columns [place][channel]; of a block's three, the middle one
// with columns [place][map]; of the head.
constexpr int FIRST_STEPS = padded(FAR_PLACES * CHANNELS, 8) / 8, SHRINK_STEPS = WIDE / 8, LOOK_STEPS = NEAR_PLACES * NARROW / 8;
constexpr int GROW_STEPS = NARROW / 8, HEAD_STEPS = WIDE / 8;

// Saved activations of an image: the wide maps before a block, its narrow ones before and after the 3x3 convolution,
// and so on, all rectified; finally the head's input.
constexpr int SAVED_BLOCK = WIDE + 2 * NARROW, SAVED_MAPS = BLOCKS * SAVED_BLOCK + WIDE;
// What the context adds to an image: to the wide maps, and to every 3x3 convolution.
constexpr int ADDED = WIDE + BLOCKS * NARROW;

// The index of a pixel's channel among the features; reversed for the upper triangular map.
INLINE long feature_index(int channel, int pixel, bool reverse) {
    const int i = channel * PIXELS + pixel;
    return reverse ? FEATURES - 1 - i : i;
}
// The index among the outputs.
INLINE long output_index(int head, int pixel, bool reverse) {
    return static_cast<long>(head / CHANNELS) * FEATURES + feature_index(head % CHANNELS, pixel, reverse);
}

// Offsets of the first convolution's columns from a pixel; padded columns have zero weights.
INLINE void store_columns(int* far) {
    for (int k = threadIdx.x; k < 8 * FIRST_STEPS; k += THREADS) far[k] = k % CHANNELS * X_PLANE + far_offset(min(k / CHANNELS, FAR_PLACES - 1));
}

// Call `use` for every channel and pixel, always by the same thread, with its place in shared memory and its address.
// With PLANES, for the outputs.
template <int PLANES = CHANNELS, class Number, class Use>
INLINE void each_feature(const Number* from, int batch, int image, bool reverse, Use use) {
#pragma unroll 8
    for (int e = threadIdx.x; e < PLANES * PIXELS; e += THREADS)
        use(e / PIXELS * X_PLANE + x_place(e % PIXELS), from + output_index(e / PIXELS, e % PIXELS, reverse) * batch + image);
}

// Store the largest value of every warp, for the check.
INLINE void store_largest(float* to, float largest) {
    largest = lane_max<32>(largest);
    if (threadIdx.x % 32 == 0) to[blockIdx.x * WARPS + threadIdx.x / 32] = largest;
}

// ---------------------------------------------------------------- products by tensor cores

// Tensor cores truncate to TF32: products of the high parts alone, or of both parts for float32 precision.
enum Precision { TF32_PRODUCTS, FLOAT32_PRODUCTS, FLOAT64_PRODUCTS };

// Add products of TALL * 16 rows by COUNT tiles of pixels to `sum`. Weights are stored as fragments,
// [STEPS][TALL][lane][4]; `load` returns the other operand (step, 0 or 4 for the half, tile).
template <int TALL, int STEPS, Precision PRECISION, class Number, int COUNT, class Load>
INLINE void multiply(Number (&sum)[COUNT][TALL][4], const float* weights, Load load) {
    const float4* mine = reinterpret_cast<const float4*>(weights) + threadIdx.x % 32;
    float4 next[TALL];  // prefetched by one step
    UNROLL for (int m = 0; m < TALL; m++) next[m] = __ldg(mine + m * 32);
#pragma unroll(PRECISION == TF32_PRODUCTS ? 5 : 2)
    for (int step = 0; step < STEPS; step++) {
        Number above[TALL][4], below[TALL][4];
        UNROLL for (int m = 0; m < TALL; m++) {
            above[m][0] = next[m].x, above[m][1] = next[m].y, above[m][2] = next[m].z, above[m][3] = next[m].w;
            if (step + 1 < STEPS) next[m] = __ldg(mine + ((step + 1) * TALL + m) * 32);
            UNROLL for (int c = 0; c < (PRECISION == FLOAT32_PRODUCTS ? 4 : 0); c++) below[m][c] = tf32_remainder(above[m][c]);
        }
        UNROLL for (int i = 0; i < COUNT; i++) {
            Number high[2] = {load(step, 0, i), load(step, 4, i)};
            if constexpr (PRECISION == FLOAT64_PRODUCTS) {
                UNROLL for (int m = 0; m < TALL; m++) mma_f64(sum[i][m], above[m], high);
            } else {
                float low[2];
                UNROLL for (int h = 0; h < (PRECISION == FLOAT32_PRODUCTS ? 2 : 0); h++) split(high[h], high[h], low[h]);
                UNROLL for (int m = 0; m < TALL; m++) {
                    if (PRECISION == FLOAT32_PRODUCTS) {
                        mma_tf32(sum[i][m], above[m], low);
                        mma_tf32(sum[i][m], below[m], high);
                    }
                    mma_tf32(sum[i][m], above[m], high);
                }
            }
        }
    }
}

// Tiles that a warp takes at once, as many as fit in registers; not three, which are no vector type.
constexpr int AT_ONCE = MINE < 3 ? MINE : 4, CHUNKS = (MINE + AT_ONCE - 1) / AT_ONCE;
// Sets of tiles that a warp takes at once, chunk by chunk and warp by warp.
constexpr int SETS = CHUNKS * WARPS;

// Whether all warps have equally many tiles in the same columns of the image: then places differ by constants.
constexpr int ROWS_APART = 8 * WARPS / WIDTH;
constexpr bool REGULAR = TILES % (WARPS * AT_ONCE) == 0 && PIXELS % 8 == 0 && 8 * WARPS % WIDTH == 0;

// A warp's tiles; beyond the last one they repeat it, and the result is not used.
struct Tiles {
    int set, first;

    INLINE Tiles(int chunk) : set(threadIdx.x / 32 + WARPS * chunk), first(threadIdx.x / 32 + WARPS * AT_ONCE * chunk) {}
    INLINE bool exists(int i) const { return REGULAR || first + WARPS * i < TILES; }
    INLINE int pixel(int i) const { return 8 * (REGULAR ? first + WARPS * i : min(first + WARPS * i, TILES - 1)); }
    // The pixel that this lane loads for a product; it exists.
    INLINE int loaded(int i) const {
        const int mine = static_cast<int>(threadIdx.x) % 32 / 4;
        return REGULAR ? 8 * first + mine + 8 * WARPS * i : min(pixel(i) + mine, PIXELS - 1);
    }
    // Its place in maps with rows of that length; `place` maps pixels to places.
    template <class Place> INLINE int at(int i, int row, Place place) const {
        return REGULAR ? place(loaded(0)) + i * (ROWS_APART * row) : place(loaded(i));
    }
};

// Call `use` for a lane's rows of a fragment: with its two indices, and the row.
template <int TALL, class Use> INLINE void each_row(Use use) {
    const int lane = threadIdx.x % 32;
    UNROLL for (int m = 0; m < TALL; m++)
        UNROLL for (int h = 0; h < 2; h++) use(m, h, 16 * m + 8 * h + lane / 4);
}

// Values per row of a result, such as biases, prefetched.
template <int TALL>
struct OfRows {
    float value[TALL][2];

    template <class At> INLINE OfRows(At at) {
        each_row<TALL>([&](int m, int h, int row) { value[m][h] = at(row); });
    }
    template <class Number, int COUNT> INLINE void add_to(Number (&sum)[COUNT][TALL][4]) const {
        UNROLL for (int i = 0; i < COUNT; i++)
            UNROLL for (int m = 0; m < TALL; m++)
                UNROLL for (int c = 0; c < 4; c++) sum[i][m][c] += value[m][c / 2];
    }
};

// Call `use` for the elements of a result with the row, the first of two neighbouring pixels, and both values.
template <int TALL, class Number, int COUNT, class Use>
INLINE void each_pair(const Tiles& tiles, Number (&sum)[COUNT][TALL][4], Use use) {
    UNROLL for (int i = 0; i < COUNT; i++) {
        if (!tiles.exists(i)) continue;
        const int member = threadIdx.x % 4;
        each_row<TALL>([&](int m, int h, int row) { use(row, tiles.pixel(i) + 2 * member, sum[i][m][2 * h], sum[i][m][2 * h + 1]); });
    }
}

// ---------------------------------------------------------------- saved activations

// A lane's part of a saved map: two pixels of every tile of a set, contiguous. In half precision with TF32: it has the
// same 11 bits, down to 6e-5, and saturates at 65504.
constexpr int SAVED_WORDS = TF32 ? AT_ONCE : 2 * AT_ONCE;
// Parts in a map.
constexpr int SAVED_PLANE = 4 * SETS;
struct alignas(4 * (SAVED_WORDS < 4 ? SAVED_WORDS : 4)) Activation {
    unsigned word[SAVED_WORDS];

    INLINE void set(int i, float one, float two) {
        if constexpr (TF32)
            word[i] = in_halves(one, two);
        else
            word[2 * i] = __float_as_uint(one), word[2 * i + 1] = __float_as_uint(two);
    }
    INLINE float2 pair(int i) const {
        if constexpr (TF32)
            return of_halves(word[i]);
        else
            return make_float2(__uint_as_float(word[2 * i]), __uint_as_float(word[2 * i + 1]));
    }
    // Whether the first or second pixel is positive or NaN; none is negative.
    INLINE bool active(int i, int which) const {
        if constexpr (TF32)
            return (word[i] & (which ? 0x7fff0000u : 0x7fffu)) != 0u;
        else
            return !(__uint_as_float(word[2 * i + which]) <= 0.0f);
    }
};

INLINE Activation saved_at(const Activation* map, int set) {
    Activation result;
    read_once(result.word, map[4 * set + threadIdx.x % 4].word);
    return result;
}

// Save rectified maps of a set of tiles, with zeros beyond the last pixel. Tiles that do not exist may hold anything.
template <int TALL> INLINE void keep(Activation* maps, const Tiles& tiles, const float (&sum)[AT_ONCE][TALL][4]) {
    const int member = threadIdx.x % 4;
    each_row<TALL>([&](int m, int h, int row) {
        Activation part;
        UNROLL for (int i = 0; i < AT_ONCE; i++) {
            const int pixel = tiles.pixel(i) + 2 * member;
            const bool one = PIXELS % 8 == 0 || pixel < PIXELS, two = PIXELS % 8 == 0 || pixel + 1 < PIXELS;
            part.set(i, one ? rectified(sum[i][m][2 * h]) : 0.0f, two ? rectified(sum[i][m][2 * h + 1]) : 0.0f);
        }
        write_once(maps[row * SAVED_PLANE + 4 * tiles.set + member].word, part.word);
    });
}

// ---------------------------------------------------------------- arguments of the forward kernels

template <class Number>
struct ForwardArguments {
    const Number* x;       // [FEATURES][batch]
    const float* weights;  // of the layers, column by column, or as fragments for tensor cores
    const float* biases;   // of the layers, one after the other
    const float* added;    // by the context, [batch][ADDED]; or null
    Number* outputs;       // [OUTPUTS][FEATURES][batch]: x + c(x), and the free log-scale
    Activation* saved;     // [batch][SAVED_MAPS][SAVED_PLANE], in training
    float* largest;        // [batch][WARPS], for the check
    int batch, reverse;
};
