// The sinusoidal transformers of one feature of one row. Formulas as in kernels/waves.py.

struct Value {
    float value, slope, curvature;
};

// Constrained waves, wherever they come from: frequencies a, 1 / a, and p, q = alpha w (cos 2b, sin 2b).
struct Waves {
    float a[WAVES], inverse[WAVES], p[WAVES], q[WAVES], shift;

    __device__ __forceinline__ Value at(float x) const {
        float rise = shift, slope = 1.0f, curvature = 0.0f;
#pragma unroll
        for (int k = 0; k < WAVES; k++) {
            float sine, cosine;
            sin_cos(a[k] * x, sine, cosine);
            const float square = sine * sine, product = sine * cosine, turn = fmaf(-2.0f, square, 1.0f);
            rise += (q[k] * square - p[k] * product) * inverse[k];
            slope -= fmaf(p[k], turn, -2.0f * q[k] * product);
            curvature += 2.0f * a[k] * fmaf(q[k], turn, 2.0f * p[k] * product);
        }
        return {x + rise, slope, curvature};
    }
};

// Shared waves, stored as [scale][a_1.. 1 / a_1.. p_1.. q_1.. d][feature].
__device__ __forceinline__ Waves shared_waves(const float* waves, int scale, int feature) {
    Waves found;
    const float* at = waves + scale * SCALE_NUMBERS + feature;
#pragma unroll
    for (int k = 0; k < WAVES; k++) {
        found.a[k] = at[k * FEATURES];
        found.inverse[k] = at[(WAVES + k) * FEATURES];
        found.p[k] = at[(2 * WAVES + k) * FEATURES];
        found.q[k] = at[(3 * WAVES + k) * FEATURES];
    }
    found.shift = at[4 * WAVES * FEATURES];
    return found;
}
__device__ __forceinline__ void store_waves(float* waves, int scale, int feature, const Waves& from) {
    float* at = waves + scale * SCALE_NUMBERS + feature;
    for (int k = 0; k < WAVES; k++) {
        at[k * FEATURES] = from.a[k];
        at[(WAVES + k) * FEATURES] = from.inverse[k];
        at[(2 * WAVES + k) * FEATURES] = from.p[k];
        at[(3 * WAVES + k) * FEATURES] = from.q[k];
    }
    at[4 * WAVES * FEATURES] = from.shift;
}

// Free numbers of one scale, from which its waves follow.
struct FreeWaves {
    float frequency[WAVES], share[WAVES], sine[WAVES], cosine[WAVES], strength;  // share: softmax; strength: tanh

    __device__ __forceinline__ void load(const float* frequencies, const float* phases, const float* weights, float free_strength,
                                         int step) {
        strength = tanhf(free_strength);
        float largest = weights[0], total = 0.0f;
#pragma unroll
        for (int k = 1; k < WAVES; k++) largest = fmaxf(largest, weights[k * step]);
#pragma unroll
        for (int k = 0; k < WAVES; k++) total += share[k] = expf(weights[k * step] - largest);
#pragma unroll
        for (int k = 0; k < WAVES; k++) {
            share[k] /= total;
            frequency[k] = frequencies[k * step];
            sin_cos(2.0f * phases[k * step], sine[k], cosine[k]);
        }
    }

    __device__ __forceinline__ Waves constrained(float shift) const {
        Waves found;
#pragma unroll
        for (int k = 0; k < WAVES; k++) {
            const float size = ALPHA_LARGEST * strength * share[k];
            found.a[k] = softplus(frequency[k]) + LEAST_FREQUENCY;
            found.inverse[k] = 1.0f / found.a[k];
            found.p[k] = size * cosine[k];
            found.q[k] = size * sine[k];
        }
        found.shift = shift;
        return found;
    }
};

// The parameters of a feature as a network puts them out: d, s, all frequencies, phases, weights, strengths.
__device__ __forceinline__ void load_conditional(FreeWaves& free, const float* out, int scale) {
    constexpr int COUNT = SCALES * WAVES;
    const float* frequencies = out + 2 + scale * WAVES;
    free.load(frequencies, frequencies + COUNT, frequencies + 2 * COUNT, out[2 + 3 * COUNT + scale], 1);
}
__device__ __forceinline__ Waves conditional_waves(const float* out, int scale) {
    FreeWaves free;
    load_conditional(free, out, scale);
    return free.constrained(0.0f);
}
__device__ __forceinline__ float log_scale_of(const float* out) { return 2.0f * tanhf(0.5f * out[1]); }

// The gradients of a transformer's parameters at x, given those of its value and its slope.
struct WaveGradients {
    float a[WAVES], p[WAVES], q[WAVES];

    __device__ __forceinline__ void add(const Waves& waves, float x, float of_value, float of_slope) {
#pragma unroll
        for (int k = 0; k < WAVES; k++) {
            float sine, cosine;
            const float frequency = waves.a[k], inverse = waves.inverse[k];
            sin_cos(frequency * x, sine, cosine);
            const float square = sine * sine, product = sine * cosine, turn = fmaf(-2.0f, square, 1.0f);
            const float bend = fmaf(waves.p[k], turn, -2.0f * waves.q[k] * product);
            const float bow = 2.0f * fmaf(waves.q[k], turn, 2.0f * waves.p[k] * product);
            const float rise = (waves.q[k] * square - waves.p[k] * product) * inverse;
            a[k] += of_slope * x * bow - of_value * inverse * fmaf(x, bend, rise);
            p[k] -= fmaf(of_value * inverse, product, of_slope * turn);
            q[k] += fmaf(of_value * inverse, square, 2.0f * of_slope * product);
        }
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int k = 0; k < WAVES; k++) a[k] = p[k] = q[k] = 0.0f;
    }
};

// From the gradients of constrained waves to those of the free numbers.
struct FreeGradients {
    float frequency[WAVES], phase[WAVES], weight[WAVES], strength;

    __device__ __forceinline__ void follow(const FreeWaves& free, const WaveGradients& of) {
        const float alpha = ALPHA_LARGEST * free.strength;
        float total = 0.0f, along[WAVES];
#pragma unroll
        for (int k = 0; k < WAVES; k++) {
            along[k] = fmaf(of.p[k], free.cosine[k], of.q[k] * free.sine[k]);
            total = fmaf(free.share[k], along[k], total);
        }
#pragma unroll
        for (int k = 0; k < WAVES; k++) {
            const float size = alpha * free.share[k];
            frequency[k] = of.a[k] * sigmoid(free.frequency[k]);
            phase[k] = 2.0f * size * (of.q[k] * free.cosine[k] - of.p[k] * free.sine[k]);
            weight[k] = size * (along[k] - total);
        }
        strength = total * ALPHA_LARGEST * (1.0f - free.strength * free.strength);
    }
};
