// Sinusoidal transformers of one feature of one row, as in ops/waves.py.
//
// LANES neighbouring lanes can share a transformer: each has every LANES-th wave, and reductions give all the same
// result.

__host__ __device__ constexpr int lanes_for(int count) { return count <= 1 ? 1 : count <= 2 ? 2 : count <= 4 ? 4 : count <= 8 ? 8 : count <= 16 ? 16 : 32; }
__host__ __device__ constexpr int spare_lanes(int most, int rows) { return most == 1 || FEATURES * rows * most <= THREADS ? most : spare_lanes(most / 2, rows); }

// Lanes per element if all features of all rows are available: as many as there are threads for.
constexpr int SPREAD = spare_lanes(lanes_for(WAVES), ROWS), LIVE_SPREAD = spare_lanes(lanes_for(WAVES), LIVE);
// Lanes per element if a warp takes one row.
constexpr int TOGETHER = lanes_for(WAVES);
static_assert(WAVES <= 32, "a lane for every wave");

// Call `use` for all features of all rows (or the first TAKEN), by a group of lanes each, with the element and whether
// this lane stores its results. Whole warps participate in the reductions.
template <int LANES, int TAKEN = ROWS, class Use> INLINE void each_element(Use use) {
    constexpr int COUNT = FEATURES * TAKEN;
    for (int t = threadIdx.x; t < padded(COUNT * LANES, 32); t += THREADS) {
        const int e = min(t / LANES, COUNT - 1);
        use(e / TAKEN * ROWS + e % TAKEN, t / LANES < COUNT && t % LANES == 0);
    }
}

struct Value {
    float value, slope, curvature;
};

// Constrained parameters: frequencies a, 1 / a, and p, q = alpha w (cos 2b, sin 2b).
template <int LANES>
struct Waves {
    static constexpr int COUNT = (WAVES + LANES - 1) / LANES;
    float a[COUNT], inverse[COUNT], p[COUNT], q[COUNT], shift;

    // The index of a lane's i-th wave, and whether it exists.
    static INLINE int number(int i) { return threadIdx.x % LANES + LANES * i; }
    static INLINE bool exists(int i) { return WAVES % LANES == 0 || number(i) < WAVES; }

    template <bool CURVED = true> INLINE Value at(float x) const {
        float rise = 0.0f, slope = 0.0f, curvature = 0.0f;
        UNROLL for (int i = 0; i < COUNT; i++) {
            float sine, cosine;
            sin_cos(a[i] * x, sine, cosine);
            const float square = sine * sine, product = sine * cosine, turn = fmaf(-2.0f, square, 1.0f);
            rise = fmaf(q[i] * square - p[i] * product, inverse[i], rise);
            slope += fmaf(p[i], turn, -2.0f * q[i] * product);
            if (CURVED) curvature = fmaf(2.0f * a[i], fmaf(q[i], turn, 2.0f * p[i] * product), curvature);
        }
        return {x + (shift + lane_sum<LANES>(rise)), 1.0f - lane_sum<LANES>(slope), CURVED ? lane_sum<LANES>(curvature) : 0.0f};
    }
};

// Shared waves, stored as [scale][a_1.. 1 / a_1.. p_1.. q_1.. d][feature].
template <int LANES> INLINE Waves<LANES> shared_waves(const float* waves, int scale, int feature) {
    Waves<LANES> result;
    const float* at = waves + scale * SCALE_SIZE + feature;
    UNROLL for (int i = 0; i < result.COUNT; i++) {
        const bool exists = result.exists(i);
        const float* mine = at + (exists ? result.number(i) : 0) * FEATURES;
        result.a[i] = mine[0];
        result.inverse[i] = mine[WAVES * FEATURES];
        result.p[i] = exists ? mine[2 * WAVES * FEATURES] : 0.0f;
        result.q[i] = exists ? mine[3 * WAVES * FEATURES] : 0.0f;
    }
    result.shift = at[4 * WAVES * FEATURES];
    return result;
}
INLINE void store_waves(float* waves, int scale, int feature, const Waves<1>& from) {
    float* at = waves + scale * SCALE_SIZE + feature;
    for (int k = 0; k < WAVES; k++) {
        at[k * FEATURES] = from.a[k];
        at[(WAVES + k) * FEATURES] = from.inverse[k];
        at[(2 * WAVES + k) * FEATURES] = from.p[k];
        at[(3 * WAVES + k) * FEATURES] = from.q[k];
    }
    at[4 * WAVES * FEATURES] = from.shift;
}

// Unconstrained parameters of one scale.
template <int LANES>
struct FreeWaves {
    static constexpr int COUNT = Waves<LANES>::COUNT;
    float frequency[COUNT], share[COUNT], sine[COUNT], cosine[COUNT], strength;  // share: softmax of the weights; strength: after tanh

    // `get` returns the frequency (0), phase (1) or weight (2) of a wave.
    template <class Get> INLINE void load(Get get, float free_strength) {
        strength = tanhf(free_strength);
        float largest = -INFINITY, total = 0.0f;
        UNROLL for (int i = 0; i < COUNT; i++) {
            const bool exists = Waves<LANES>::exists(i);
            const int k = exists ? Waves<LANES>::number(i) : 0;
            frequency[i] = get(0, k);
            sin_cos(2.0f * get(1, k), sine[i], cosine[i]);
            share[i] = exists ? get(2, k) : -INFINITY;
            largest = fmaxf(largest, share[i]);
        }
        largest = lane_max<LANES>(largest);
        UNROLL for (int i = 0; i < COUNT; i++) total += share[i] = expf(share[i] - largest);
        total = lane_sum<LANES>(total);
        UNROLL for (int i = 0; i < COUNT; i++) share[i] /= total;
    }

    INLINE Waves<LANES> constrained(float shift) const {
        Waves<LANES> result;
        UNROLL for (int i = 0; i < COUNT; i++) {
            const float size = ALPHA_LARGEST * strength * share[i];
            result.a[i] = softplus(frequency[i]) + LEAST_FREQUENCY;
            result.inverse[i] = 1.0f / result.a[i];
            result.p[i] = size * cosine[i];
            result.q[i] = size * sine[i];
        }
        result.shift = shift;
        return result;
    }
};

// Outputs of a network for a feature: d, s, all frequencies, phases, weights, strengths.
INLINE constexpr int output_of(int kind, int scale, int k) { return 2 + (kind * SCALES + scale) * WAVES + k; }
INLINE constexpr int strength_of(int scale) { return 2 + 3 * SCALES * WAVES + scale; }

// `get` reads an output.
template <int LANES, class Get> INLINE FreeWaves<LANES> conditional_free(int scale, Get get) {
    FreeWaves<LANES> free;
    free.load([&](int kind, int k) { return get(output_of(kind, scale, k)); }, get(strength_of(scale)));
    return free;
}
template <int LANES, class Get> INLINE Waves<LANES> conditional_waves(int scale, Get get) {
    return conditional_free<LANES>(scale, get).constrained(0.0f);
}
INLINE float log_scale_from(float output) { return 2.0f * tanhf(0.5f * output); }

// Gradients of constrained parameters at x, given those of value and slope.
template <int LANES>
struct WaveGradients {
    static constexpr int COUNT = Waves<LANES>::COUNT;
    float a[COUNT] = {}, p[COUNT] = {}, q[COUNT] = {};

    INLINE void add(const Waves<LANES>& waves, float x, float of_value, float of_slope) {
        UNROLL for (int i = 0; i < COUNT; i++) {
            float sine, cosine;
            const float frequency = waves.a[i], inverse = waves.inverse[i];
            sin_cos(frequency * x, sine, cosine);
            const float square = sine * sine, product = sine * cosine, turn = fmaf(-2.0f, square, 1.0f);
            const float bend = fmaf(waves.p[i], turn, -2.0f * waves.q[i] * product);
            const float bow = 2.0f * fmaf(waves.q[i], turn, 2.0f * waves.p[i] * product);
            const float rise = (waves.q[i] * square - waves.p[i] * product) * inverse;
            a[i] += of_slope * x * bow - of_value * inverse * fmaf(x, bend, rise);
            p[i] -= fmaf(of_value * inverse, product, of_slope * turn);
            q[i] += fmaf(of_value * inverse, square, 2.0f * of_slope * product);
        }
    }
};

// From the gradients of constrained parameters to those of unconstrained ones.
template <int LANES>
struct FreeGradients {
    static constexpr int COUNT = Waves<LANES>::COUNT;
    float frequency[COUNT], phase[COUNT], weight[COUNT], strength;

    INLINE void follow(const FreeWaves<LANES>& free, const WaveGradients<LANES>& of) {
        const float alpha = ALPHA_LARGEST * free.strength;
        float total = 0.0f, along[COUNT];
        UNROLL for (int i = 0; i < COUNT; i++) {
            along[i] = fmaf(of.p[i], free.cosine[i], of.q[i] * free.sine[i]);
            total = fmaf(free.share[i], along[i], total);
        }
        total = lane_sum<LANES>(total);
        UNROLL for (int i = 0; i < COUNT; i++) {
            const float size = alpha * free.share[i];
            frequency[i] = of.a[i] * sigmoid(free.frequency[i]);
            phase[i] = 2.0f * size * (of.q[i] * free.cosine[i] - of.p[i] * free.sine[i]);
            weight[i] = size * (along[i] - total);
        }
        strength = total * ALPHA_LARGEST * (1.0f - free.strength * free.strength);
    }
};
