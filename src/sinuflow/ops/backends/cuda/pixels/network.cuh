// A miniature PixelCNN (conditioners/pixelcnn.py), for one image by one block: how its numbers lie.
//
// The shape is compiled in: CHANNELS, HEIGHT, WIDTH of the image, MAPS of a bottleneck, BLOCKS (residual ones); OUTPUTS, of
// which the first is a shift, and a second one is free numbers of a scale; and ROUGH: whether eleven bits of every
// number are enough while it learns, as for PyTorch's convolutions.
//
// All feature maps of the image are in shared memory. Every layer is a product of a small matrix with a large one,
// [maps] by [maps it sees, at every place of its kernel] by [pixels]: pixels come in tiles of eight, of which each
// warp has its own. What looks at the own pixel alone need not wait for other warps.

constexpr int WARPS = 16, THREADS = 32 * WARPS;
constexpr int PIXELS = HEIGHT * WIDTH, NUMBERS = CHANNELS * PIXELS;
constexpr int HEADS = OUTPUTS * CHANNELS;  // what is said of a pixel, [output][channel]
constexpr int TILES = (PIXELS + 7) / 8, MINE = (TILES + WARPS - 1) / WARPS;  // tiles of eight pixels, and those of a warp
constexpr int NARROW = padded(MAPS, 16), WIDE = padded(2 * MAPS, 16), HEAD = padded(HEADS, 16);

// The distance from a map to the next, such that four maps of eight pixels lie in different banks.
__host__ __device__ constexpr int plane(int numbers) { return padded(numbers - 8, 32) + 8; }

// The first convolution looks three pixels far, those of the bottlenecks one. Beyond the image there are zeros; those
// on the right of a row are also those on the left of the next.
constexpr int FAR = 3, FAR_SIDE = 2 * FAR + 1, FAR_PLACES = FAR * FAR_SIDE + FAR + 1;
constexpr int X_ROW = WIDTH + FAR, X_PLANE = (HEIGHT + FAR) * X_ROW + FAR;
constexpr int NEAR_PLACES = 5;
constexpr int NARROW_ROW = WIDTH + 1, NARROW_PLANE = plane((HEIGHT + 1) * NARROW_ROW + 1);
constexpr int WIDE_PLANE = plane(8 * TILES);

__device__ __forceinline__ constexpr int far_offset(int place) { return (place / FAR_SIDE - FAR) * X_ROW + place % FAR_SIDE - FAR; }
__device__ __forceinline__ constexpr int near_offset(int place) { return (place / 3 - 1) * NARROW_ROW + place % 3 - 1; }
__device__ __forceinline__ int x_place(int pixel) { return FAR + (pixel / WIDTH + FAR) * X_ROW + pixel % WIDTH; }
__device__ __forceinline__ int narrow_place(int pixel) { return 1 + (pixel / WIDTH + 1) * NARROW_ROW + pixel % WIDTH; }

// Products by eight: of the first convolution, whose columns are [place][channel]; of the three of a bottleneck, of
// which the middle one has columns [place][map]; of the head.
constexpr int FIRST_STEPS = padded(FAR_PLACES * CHANNELS, 8) / 8, SHRINK_STEPS = WIDE / 8, LOOK_STEPS = NEAR_PLACES * NARROW / 8;
constexpr int GROW_STEPS = NARROW / 8, HEAD_STEPS = WIDE / 8;

// What is kept of an image, map by map: the wide maps before a bottleneck, its narrow ones before and after the look,
// and again, all rectified; the last wide ones are what the head sees.
constexpr int KEPT_BLOCK = WIDE + 2 * NARROW, KEPT_MAPS = BLOCKS * KEPT_BLOCK + WIDE;
// What the context adds, image by image: to the wide maps, and to every look.
constexpr int ADDED = WIDE + BLOCKS * NARROW;

// Where a number of an image is among all: batches are stored feature by feature; or from the last to the first.
__device__ __forceinline__ long number_of(int channel, int pixel, bool reverse) {
    const int i = channel * PIXELS + pixel;
    return reverse ? NUMBERS - 1 - i : i;
}
// The same for what the head says: all numbers of its first output, then those of the next.
__device__ __forceinline__ long told_of(int head, int pixel, bool reverse) {
    return static_cast<long>(head / CHANNELS) * NUMBERS + number_of(head % CHANNELS, pixel, reverse);
}

// Where the columns of the first convolution are, from a pixel; beyond the last there are weights of zero.
__device__ __forceinline__ void note_columns(int* far) {
    for (int k = threadIdx.x; k < 8 * FIRST_STEPS; k += THREADS) far[k] = k % CHANNELS * X_PLANE + far_offset(min(k / CHANNELS, FAR_PLACES - 1));
}

// An image of the batch, number by number, a thread always the same ones: `use` gets its place here, and where it is. It
// may also be an image of all that the head says.
template <int PLANES = CHANNELS, class Number, class Use>
__device__ __forceinline__ void each_number(const Number* from, int batch, int image, bool reverse, Use use) {
#pragma unroll 8
    for (int e = threadIdx.x; e < PLANES * PIXELS; e += THREADS)
        use(e / PIXELS * X_PLANE + x_place(e % PIXELS), from + told_of(e / PIXELS, e % PIXELS, reverse) * batch + image);
}

// ---------------------------------------------------------------- products by tensor cores

// Tensor cores take eleven bits of a number. So there are two kinds of products: of the numbers' first parts alone, and
// of both parts.
enum Products { ROUGH_ONES, FINE_ONES };

// TALL times sixteen rows by COUNT tiles of pixels, on top of what `sum` holds. Weights are stored as the lanes want
// them, [STEPS][TALL][lane][4]; `load` gives a number of the other operand: (step, 0 or 4 for the half, tile).
template <int TALL, int STEPS, Products HOW, int COUNT, class Load>
__device__ __forceinline__ void multiply(float (&sum)[COUNT][TALL][4], const float* weights, Load load) {
    const float4* mine = reinterpret_cast<const float4*>(weights) + threadIdx.x % 32;
    float4 next[TALL];  // weights are asked for a step early
#pragma unroll
    for (int m = 0; m < TALL; m++) next[m] = __ldg(mine + m * 32);
#pragma unroll(HOW == ROUGH_ONES ? 5 : 2)
    for (int step = 0; step < STEPS; step++) {
        float above[TALL][4], below[TALL][4];
#pragma unroll
        for (int m = 0; m < TALL; m++) {
            above[m][0] = next[m].x, above[m][1] = next[m].y, above[m][2] = next[m].z, above[m][3] = next[m].w;
            if (step + 1 < STEPS) next[m] = __ldg(mine + ((step + 1) * TALL + m) * 32);
#pragma unroll
            for (int c = 0; c < (HOW == ROUGH_ONES ? 0 : 4); c++) below[m][c] = dropped(above[m][c]);
        }
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            float high[2] = {load(step, 0, i), load(step, 4, i)}, low[2];
            if (HOW == FINE_ONES) {
                split(high[0], high[0], low[0]);
                split(high[1], high[1], low[1]);
            }
#pragma unroll
            for (int m = 0; m < TALL; m++) {
                if (HOW == FINE_ONES) {
                    mma_tf32(sum[i][m], above[m], low);
                    mma_tf32(sum[i][m], below[m], high);
                }
                mma_tf32(sum[i][m], above[m], high);
            }
        }
    }
}

// Tiles that a warp takes at once: as many as it has registers for; no three, which do not travel together.
constexpr int AT_ONCE = MINE < 3 ? MINE : 4, CHUNKS = (MINE + AT_ONCE - 1) / AT_ONCE;
// All sets of tiles that a warp takes at once, chunk by chunk and warp by warp.
constexpr int SETS = CHUNKS * WARPS;

// Whether every warp has as many tiles, all in the same columns of the image: then places differ by constants.
constexpr int ROWS_APART = 8 * WARPS / WIDTH;
constexpr bool REGULAR = TILES % (WARPS * AT_ONCE) == 0 && PIXELS % 8 == 0 && 8 * WARPS % WIDTH == 0;

// A warp's tiles, one after the other; beyond the last one it repeats that, and nobody looks at what comes of it.
struct Tiles {
    int set, first;

    __device__ __forceinline__ Tiles(int chunk) : set(threadIdx.x / 32 + WARPS * chunk), first(threadIdx.x / 32 + WARPS * AT_ONCE * chunk) {}
    __device__ __forceinline__ bool exists(int i) const { return REGULAR || first + WARPS * i < TILES; }
    __device__ __forceinline__ int pixel(int i) const { return 8 * (REGULAR ? first + WARPS * i : min(first + WARPS * i, TILES - 1)); }
    // The pixel that this lane loads for a product, one that exists.
    __device__ __forceinline__ int loaded(int i) const {
        const int mine = static_cast<int>(threadIdx.x) % 32 / 4;
        return REGULAR ? 8 * first + mine + 8 * WARPS * i : min(pixel(i) + mine, PIXELS - 1);
    }
    // Where it is in maps with rows of so many numbers, if `place` says where a pixel is.
    template <class Place>
    __device__ __forceinline__ int at(int i, int row, Place place) const {
        return REGULAR ? place(loaded(0)) + i * (ROWS_APART * row) : place(loaded(i));
    }
};

// What belongs to the rows of a result, such as biases: asked for before it is needed.
template <int TALL>
struct OfRows {
    float value[TALL][2];

    template <class At>
    __device__ __forceinline__ OfRows(At at) {
#pragma unroll
        for (int m = 0; m < TALL; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) value[m][h] = at(16 * m + 8 * h + static_cast<int>(threadIdx.x) % 32 / 4);
    }
    template <class Number, int COUNT>
    __device__ __forceinline__ void add_to(Number (&sum)[COUNT][TALL][4]) const {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
#pragma unroll
            for (int m = 0; m < TALL; m++)
#pragma unroll
                for (int c = 0; c < 4; c++) sum[i][m][c] += value[m][c / 2];
    }
};

// The numbers of a result: `use` gets the row, the first of two neighbouring pixels, and both numbers.
template <int TALL, class Number, int COUNT, class Use>
__device__ __forceinline__ void each_pair(const Tiles& tiles, Number (&sum)[COUNT][TALL][4], Use use) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        if (!tiles.exists(i)) continue;
#pragma unroll
        for (int m = 0; m < TALL; m++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                use(16 * m + 8 * h + lane / 4, tiles.pixel(i) + 2 * (lane % 4), sum[i][m][2 * h], sum[i][m][2 * h + 1]);
    }
}

// ---------------------------------------------------------------- what is kept for the gradients

// A lane's part of a map: two pixels of every tile of a set, as they are in a result, so that they travel together. In
// half precision if they may be rough: it has the eleven bits that tensor cores take, down to 6e-5, and ends at 65504.
constexpr int KEPT_WORDS = ROUGH ? AT_ONCE : 2 * AT_ONCE;
// Lanes' parts of a map.
constexpr int KEPT_PLANE = 4 * SETS;
struct alignas(4 * (KEPT_WORDS < 4 ? KEPT_WORDS : 4)) Kept {
    unsigned word[KEPT_WORDS];

    __device__ __forceinline__ void set(int i, float one, float two) {
        if constexpr (ROUGH)
            word[i] = in_halves(one, two);
        else
            word[2 * i] = __float_as_uint(one), word[2 * i + 1] = __float_as_uint(two);
    }
    __device__ __forceinline__ float2 pair(int i) const {
        if constexpr (ROUGH)
            return of_halves(word[i]);
        else
            return make_float2(__uint_as_float(word[2 * i]), __uint_as_float(word[2 * i + 1]));
    }
    // Whether the first or the second of two pixels is above zero, or no number; none is below.
    __device__ __forceinline__ bool active(int i, int which) const {
        if constexpr (ROUGH)
            return (word[i] & (which ? 0x7fff0000u : 0x7fffu)) != 0u;
        else
            return !(__uint_as_float(word[2 * i + which]) <= 0.0f);
    }
};

__device__ __forceinline__ Kept kept_at(const Kept* map, int set) {
    Kept found;
    read_once(found.word, map[4 * set + threadIdx.x % 4].word);
    return found;
}

// Maps of a set of tiles, rectified, with zeros beyond the last pixel of the last tile. Tiles that do not exist have
// whatever: nobody asks for them (each_tile, each_pair).
template <int TALL>
__device__ __forceinline__ void keep(Kept* maps, const Tiles& tiles, const float (&sum)[AT_ONCE][TALL][4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < TALL; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            Kept part;
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int pixel = tiles.pixel(i) + 2 * (lane % 4);
                const bool one = PIXELS % 8 == 0 || pixel < PIXELS, two = PIXELS % 8 == 0 || pixel + 1 < PIXELS;
                part.set(i, one ? rectified(sum[i][m][2 * h]) : 0.0f, two ? rectified(sum[i][m][2 * h + 1]) : 0.0f);
            }
            write_once(maps[(16 * m + 8 * h + lane / 4) * KEPT_PLANE + 4 * tiles.set + lane % 4].word, part.word);
        }
}

// ---------------------------------------------------------------- what the forward kernels are told

template <class Number>
struct ForwardArguments {
    const Number* x;       // [NUMBERS][batch]
    const float* weights;  // of the layers, column by column for ordinary products, or as tensor cores want them
    const float* biases;   // of the layers, one after the other
    const float* added;    // by the context, [batch][ADDED]; or null
    Number* told;          // [OUTPUTS][NUMBERS][batch]: x + c(x), and what is said of its scale
    Kept* kept;            // [batch][KEPT_MAPS][KEPT_PLANE], to learn
    float* largest;        // [batch][WARPS], for a check
    int batch, reverse;
};
using PixelForwardArguments = ForwardArguments<float>;
using PixelFineArguments = ForwardArguments<double>;
