// What all kernels of a flow share: its shape, sines, and products with masked matrices.
//
// The shape is compiled in: FEATURES, CONTEXT, HIDDEN, DEPTH (hidden layers), RESIDUAL, OUTPUTS (per
// feature), SCALES, WAVES, SQUASH (0: off), CONDITIONAL (whether a network computes the waves),
// NETWORKS, ROWS (of the batch, to a block: 8, 16 or 32) and WARPS.
#ifndef EMULATED
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) float name[]
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#endif

constexpr int THREADS = 32 * WARPS;
__host__ __device__ constexpr int padded(int n, int m) { return (n + m - 1) / m * m; }
// Rows of an operand in shared memory are this far apart, so that the 32 numbers that a warp takes of it
// for one product lie in 32 banks.
__host__ __device__ constexpr int stride_of(int n) { return padded(n - 4, 32) + 4; }

constexpr int INPUTS = CONTEXT + FEATURES;
constexpr int INPUTS8 = padded(INPUTS, 8);
constexpr int UNITS = padded(HIDDEN, 16);
constexpr int HEAD = FEATURES * OUTPUTS;
constexpr int HEAD16 = padded(HEAD, 16);
constexpr int BIASES = DEPTH * UNITS + HEAD16;  // of one network
constexpr int COLUMNS = ROWS / 8;               // tiles of eight rows of the batch

constexpr int UNIT_TILES = UNITS / 16;
constexpr int HEAD_TILES = HEAD16 / 16;
constexpr int INPUT_TILES = padded(INPUTS, 16) / 16;

constexpr int INPUT_STRIDE = stride_of(INPUTS8);
constexpr int UNIT_STRIDE = stride_of(UNITS);
constexpr int HEAD_STRIDE = stride_of(HEAD16);

constexpr float ALPHA_LARGEST = 1.0f - 1.0f / 1024.0f;
constexpr float LEAST_FREQUENCY = 1e-4f;

// ---------------------------------------------------------------- functions of one number

// In range, and above zero; unlike the library's minimum and maximum, both leave what is not a number as it is.
__device__ __forceinline__ float held(float x, float limit) { return x < -limit ? -limit : x > limit ? limit : x; }
__device__ __forceinline__ float rectified(float x) { return x < 0.0f ? 0.0f : x; }

// Sine and cosine by a polynomial on [-pi/4, pi/4].
__device__ __forceinline__ void sin_cos(float u, float& sine, float& cosine) {
    const float quarter = rintf(u * 0.6366197723675814f);
    float r = fmaf(-quarter, 1.5707964f, u);  // pi/2 in three parts
    r = fmaf(-quarter, -4.371139e-08f, r);
    r = fmaf(-quarter, -1.7151245e-15f, r);
    r = held(r, 0.7853982f);  // beyond 2^24 it is noise
    const int turn = static_cast<int>(quarter - 4.0f * floorf(quarter * 0.25f));
    const float s = r * r;
    const float low = fmaf(r * s, fmaf(s, fmaf(s, -1.9515295891e-4f, 8.3321608736e-3f), -1.6666654611e-1f), r);
    const float high = fmaf(s * s, fmaf(s, fmaf(s, 2.443315711809948e-5f, -1.388731625493765e-3f), 4.166664568298827e-2f),
                            fmaf(-0.5f, s, 1.0f));
    sine = turn & 1 ? high : low;
    cosine = turn & 1 ? low : high;
    if (turn & 2) sine = -sine;
    if (turn == 1 || turn == 2) cosine = -cosine;
}

__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// What a network sees of a feature.
__device__ __forceinline__ float squashed(float x) {
    if (SQUASH == 0) return x;
    const float ratio = held(x * (1.0f / (SQUASH ? SQUASH : 1)), 1e6f);
    return SQUASH * ratio * rsqrtf(fmaf(ratio, ratio, 1.0f));
}

// ---------------------------------------------------------------- products with masked matrices
//
// A matrix is packed in tiles of 16 rows by 8 columns, each 128 numbers in the order in which the lanes of
// a warp want them, and tiles that the mask empties are left out. Of a row of tiles, `Span` says where it
// begins and which columns of tiles it has. The other operand, activations of ROWS rows of the batch, lies
// in shared memory. Each number is the sum of two tf32 numbers, and three of the four products of the
// parts are added: that keeps the precision of float32.

struct Span {
    int offset, first, end, unused;
};

#ifndef EMULATED
__device__ __forceinline__ void mma_tf32(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
                   "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}
#endif

__device__ __forceinline__ void split(float x, float& high, float& low) {
    high = __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
    low = x - high;
}

// A warp's share of one product: TILES rows of tiles at once, by all rows of the batch.
template <int TILES, bool RECTIFY>
struct Product {
    float sum[TILES][COLUMNS][4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) sum[i][j][c] = 0.0f;
    }

    // Add columns of tiles `first` to `end`, as far as each row of tiles has them.
    __device__ __forceinline__ void add(const float4* __restrict__ packed, const Span (&span)[TILES], int first, int end,
                                        const float* operand, int stride) {
        const int lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
        // With few sums at once, separate ones for every kind of product keep the tensor cores from waiting.
        constexpr int KINDS = TILES * COLUMNS <= 4 ? 2 : 1;
        // Weights come from the cache of the whole chip: ask for them well before they are needed.
        constexpr int AHEAD = COLUMNS == 1 ? 4 : 2;
        float4 ahead[AHEAD][TILES];
        float cross[KINDS][TILES][COLUMNS][4];
#pragma unroll
        for (int d = 0; d < AHEAD; d++)
#pragma unroll
            for (int i = 0; i < TILES; i++) ahead[d][i] = fetch(packed, span[i], first + d, lane);
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) cross[0][i][j][c] = cross[KINDS - 1][i][j][c] = 0.0f;
        for (int start = first; start < end; start += AHEAD) {
#pragma unroll
            for (int d = 0; d < AHEAD; d++) {
                const int k = start + d;
                if (k >= end) break;
                float4 now[TILES];
#pragma unroll
                for (int i = 0; i < TILES; i++) {
                    now[i] = ahead[d][i];
                    ahead[d][i] = fetch(packed, span[i], k + AHEAD, lane);
                }
                float high[COLUMNS][2], low[COLUMNS][2];
#pragma unroll
                for (int j = 0; j < COLUMNS; j++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        float x = operand[(8 * j + group) * stride + 8 * k + member + 4 * h];
                        if (RECTIFY) x = rectified(x);
                        split(x, high[j][h], low[j][h]);
                    }
#pragma unroll
                for (int i = 0; i < TILES; i++) {
                    if (k < span[i].first || k >= span[i].end) continue;  // the same for the whole warp
                    float above[4], below[4];
                    split(now[i].x, above[0], below[0]);
                    split(now[i].y, above[1], below[1]);
                    split(now[i].z, above[2], below[2]);
                    split(now[i].w, above[3], below[3]);
#pragma unroll
                    for (int j = 0; j < COLUMNS; j++) {
                        mma_tf32(sum[i][j], above, high[j]);
                        mma_tf32(cross[0][i][j], above, low[j]);
                        mma_tf32(cross[KINDS - 1][i][j], below, high[j]);
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    sum[i][j][c] += KINDS == 1 ? cross[0][i][j][c] : cross[0][i][j][c] + cross[KINDS - 1][i][j][c];
    }

    // Call back with every number of the result: tile, row of the matrix, row of the batch, and the number.
    template <class Use>
    __device__ __forceinline__ void each(Use use) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) use(i, lane / 4 + 8 * (c / 2), 8 * j + 2 * (lane % 4) + c % 2, sum[i][j][c]);
    }

   private:
    static __device__ __forceinline__ float4 fetch(const float4* __restrict__ packed, const Span& span, int k, int lane) {
        if (k < span.first || k >= span.end) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        return __ldg(packed + (span.offset + k - span.first) * 32 + lane);
    }
};

__device__ __forceinline__ Span span_at(const Span* __restrict__ spans, int tile, int tiles) {
    if (tile >= tiles) return Span{0, 0, 0, 0};
    const int* at = reinterpret_cast<const int*>(spans + tile);
    return Span{__ldg(at), __ldg(at + 1), __ldg(at + 2), 0};
}

// A whole product: the warps share its rows of tiles. `use` gets row, row of the batch, and the number.
template <bool RECTIFY, class Use>
__device__ __forceinline__ void multiply(const float4* __restrict__ packed, const Span* __restrict__ spans, int tiles,
                                         const float* operand, int stride, Use use) {
    constexpr int AT_ONCE = COLUMNS == 4 || UNIT_TILES <= 2 * WARPS ? 2 : 4;
    const int warp = threadIdx.x / 32;
    for (int base = warp; base < tiles; base += AT_ONCE * WARPS) {
        Product<AT_ONCE, RECTIFY> product;
        Span span[AT_ONCE];
        int first = 1 << 30, end = 0;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            span[i] = span_at(spans, base + i * WARPS, tiles);
            if (span[i].end > span[i].first) first = min(first, span[i].first), end = max(end, span[i].end);
        }
        product.clear();
        product.add(packed, span, first, end, operand, stride);
        product.each([&](int i, int row, int n, float value) {
            const int tile = base + i * WARPS;
            if (tile < tiles) use(16 * tile + row, n, value);
        });
    }
}

// The same for few rows of tiles: then warps share the columns. Parts of the sums go to `parts`, which
// has room for [WARPS][16][ROWS]; `sum_of_parts` adds them up after a barrier.
template <int TILES>
struct Shared {
    static constexpr int SHARES = WARPS / TILES > 0 ? WARPS / TILES : 1;
};

template <int TILES, bool RECTIFY>
__device__ __forceinline__ void multiply_shared(const float4* __restrict__ packed, const Span* __restrict__ spans,
                                                const float* operand, int stride, float* parts) {
    constexpr int SHARES = Shared<TILES>::SHARES;
    const int warp = threadIdx.x / 32;
    for (int job = warp; job < TILES * SHARES; job += WARPS) {
        const int tile = job % TILES, share = job / TILES;
        Product<1, RECTIFY> product;
        const Span span[1] = {span_at(spans, tile, TILES)};
        const int count = span[0].end - span[0].first, each = (count + SHARES - 1) / SHARES;
        const int first = span[0].first + share * each, end = min(span[0].end, first + each);
        product.clear();
        product.add(packed, span, first, end, operand, stride);
        product.each([&](int, int row, int n, float value) { parts[(share * 16 * TILES + 16 * tile + row) * ROWS + n] = value; });
    }
}

template <int TILES>
__device__ __forceinline__ float sum_of_parts(const float* parts, int row, int n) {
    float total = 0.0f;
#pragma unroll
    for (int share = 0; share < Shared<TILES>::SHARES; share++) total += parts[(share * 16 * TILES + row) * ROWS + n];
    return total;
}
__host__ __device__ constexpr int parts_size(int tiles) { return (WARPS / tiles > 0 ? WARPS / tiles : 1) * 16 * tiles * ROWS; }
