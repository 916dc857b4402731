// Shape of a flow, and scalar functions.
//
// Compiled in: FEATURES, CONTEXT, HIDDEN, DEPTH (hidden layers), RESIDUAL, OUTPUTS (per feature), SCALES, WAVES, SQUASH
// (0: off), CONDITIONAL (whether networks compute the waves), NETWORKS; and the launch configuration: ROWS of the batch
// per block (8, 16 or 32), LIVE (rows in use), WARPS, SPLIT, SLOTS and PAIRED (see products.cuh), GROUP, GROUP_UNITS,
// DEGREE_UNITS, FAR_WARP and DIRECT (see inverse.cu), SOURCE_BITS (see parameters.cu).
constexpr int THREADS = 32 * WARPS;

constexpr int INPUTS = CONTEXT + FEATURES;
constexpr int INPUTS16 = padded(INPUTS, 16);
constexpr int UNITS = padded(HIDDEN, 16);
constexpr int HEAD = FEATURES * OUTPUTS;
constexpr int HEAD16 = padded(HEAD, 16);
constexpr int BIASES = DEPTH * UNITS + HEAD16;  // of one network
constexpr int COLUMNS = ROWS / 8;               // tiles of eight rows
constexpr int BLOCKS = NETWORKS / 2;            // of LDU: upper shift, scales, lower shift
constexpr bool STREAMS = RESIDUAL && DEPTH > 2;

// Parameters of the waves of one block, see shared_waves.
constexpr int SCALE_SIZE = (4 * WAVES + 1) * FEATURES;
constexpr int WAVE_SIZE = CONDITIONAL ? 0 : padded(SCALES * SCALE_SIZE, 4);

constexpr float ALPHA_LARGEST = 1.0f - 1.0f / 1024.0f;
constexpr float LEAST_FREQUENCY = 1e-4f;

// Copy so many floats asynchronously, by the threads from `first` on.
template <int COUNT> INLINE void copy_floats(float* to, const float* from, int first = 0) {
    const float4* fours = reinterpret_cast<const float4*>(from);
    for (int e = threadIdx.x - first; e < COUNT / 4; e += THREADS - first) copy_async(to + 4 * e, fours + e);
}
// Call `use` for COUNT values of every row of the batch: their place in [COUNT][ROWS], and in [COUNT][rows].
template <int COUNT, class Use> INLINE void each_value(int first, int batch, long rows, Use use) {
    for (int e = threadIdx.x; e < COUNT * ROWS; e += THREADS)
        if (first + e % ROWS < batch) use(e, e / ROWS * rows + first + e % ROWS);
}

// ---------------------------------------------------------------- scalar functions

// Clamp that propagates NaN.
INLINE float clamped(float x, float limit) { return x < -limit ? -limit : x > limit ? limit : x; }

// Sine and cosine by a polynomial on [-pi/4, pi/4].
INLINE void sin_cos(float u, float& sine, float& cosine) {
    const float quarter = rintf(u * 0.6366197723675814f);
    float r = fmaf(-quarter, 1.5707964f, u);  // pi/2 as the sum of three floats
    r = fmaf(-quarter, -4.371139e-08f, r);
    r = fmaf(-quarter, -1.7151245e-15f, r);
    r = clamped(r, 0.7853982f);  // beyond 2^24 there is no precision left
    const int turn = static_cast<int>(quarter) & 3;
    const float s = r * r;
    const float low = fmaf(r * s, fmaf(s, fmaf(s, -1.9515295891e-4f, 8.3321608736e-3f), -1.6666654611e-1f), r);
    const float high = fmaf(s * s, fmaf(s, fmaf(s, 2.443315711809948e-5f, -1.388731625493765e-3f), 4.166664568298827e-2f),
                            fmaf(-0.5f, s, 1.0f));
    sine = turn & 1 ? high : low;
    cosine = turn & 1 ? low : high;
    if (turn & 2) sine = -sine;
    if (turn == 1 || turn == 2) cosine = -cosine;
}

INLINE float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }
INLINE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// The input of a network for a feature.
INLINE float squashed(float x) {
    if (SQUASH == 0) return x;
    const float ratio = clamped(x * (1.0f / (SQUASH ? SQUASH : 1)), 1e6f);
    return SQUASH * ratio * rsqrtf(fmaf(ratio, ratio, 1.0f));
}

// Hash of ops/dropout.py.
INLINE unsigned mixed_bits(unsigned x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

// Whether a hidden layer has dropout: all, or those inside residual blocks.
INLINE bool may_drop(int layer) { return !STREAMS || layer % 2; }

// Features enter every second network in reverse order.
INLINE bool is_reversed(int network) { return CONDITIONAL ? network % 2 == 1 : network % 2 == 0; }
INLINE int flipped(int i, bool reverse) { return reverse ? FEATURES - 1 - i : i; }
