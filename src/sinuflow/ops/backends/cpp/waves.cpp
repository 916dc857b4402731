// The sinusoidal transformers on a CPU, in float32, feature-major, for compilers that vectorise loops.
//
// Rows are taken in strips of LANES: every inner loop runs over a strip and has no branches. Formulas as in
// ops/waves.py. Each function works on rows `begin` to `end`, so that threads can share a batch.

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

constexpr int LANES = 64;
constexpr int MOST_WAVES = 64;
constexpr float ALPHA_LARGEST = 1.0f - 1.0f / 1024.0f, LEAST_FREQUENCY = 1e-4f, SLOW = 0.1f;
constexpr float EPSILON = 1.1920929e-07f;

using Strip = float[LANES];

#define FOR_LANES _Pragma("omp simd") for (int r = 0; r < LANES; r++)

// ---------------------------------------------------------------- functions of one number, without branches

inline float bits_as_float(int32_t bits) { float x; std::memcpy(&x, &bits, 4); return x; }
inline int32_t float_as_bits(float x) { int32_t bits; std::memcpy(&bits, &x, 4); return bits; }

inline void sin_cos(float u, float& sine, float& cosine) {
    const float quarter = std::nearbyint(u * 0.6366197723675814f);
    float r = u - quarter * 1.5707964f;  // pi/2 in three parts
    r = r - quarter * -4.371139e-08f;
    r = r - quarter * -1.7151245e-15f;
    r = r < -0.7853982f ? -0.7853982f : r;  // beyond 2^24 it is noise: hold it in range
    r = r > 0.7853982f ? 0.7853982f : r;
    // 0 to 3, from the lowest bits of a sum above 2^23: also defined for NaN, which has no integer value.
    const uint32_t turn = float_as_bits(quarter - 4.0f * std::floor(quarter * 0.25f) + 8388608.0f);
    const float s = r * r;
    const float low = r + r * s * (-1.6666654611e-1f + s * (8.3321608736e-3f + s * -1.9515295891e-4f));
    const float high = 1.0f - 0.5f * s + s * s * (4.166664568298827e-2f + s * (-1.388731625493765e-3f + s * 2.443315711809948e-5f));
    const bool odd = turn & 1;
    const float a = odd ? high : low, b = odd ? low : high;
    sine = turn & 2 ? -a : a;
    cosine = (turn + 1) & 2 ? -b : b;
}

// e^x by 2^n times a polynomial; 0 and infinity beyond the range of float32.
inline float exponential(float x) {
    const float held = x < -87.3f ? -87.3f : x > 88.7f ? 88.7f : x;
    const float n = std::nearbyint(held * 1.44269504088896341f);
    const float r = held - n * 0.693359375f - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const int32_t power = static_cast<int32_t>(x == x ? n : 0.0f);  // NaN has no integer value
    // In two factors, because 2^128 is no number.
    const float found = p * bits_as_float(((power >> 1) + 127) << 23) * bits_as_float((power - (power >> 1) + 127) << 23);
    return x < -87.3f ? 0.0f : x > 88.7f ? INFINITY : x == x ? found : x;
}

// The logarithm of a positive normal number.
inline float logarithm(float x) {
    const uint32_t shifted = static_cast<uint32_t>(float_as_bits(x)) - 0x3f3504f3;  // sqrt(1/2)
    const float e = static_cast<float>(static_cast<int32_t>(shifted) >> 23);
    const float m = bits_as_float((shifted & 0x7fffff) + 0x3f3504f3) - 1.0f, z = m * m;
    float p = 7.0376836292e-2f;
    p = p * m - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    const float found = m + (p * m * z - 0.5f * z + e * -2.12194440e-4f) + e * 0.693359375f;
    return x > 1.17549435e-38f ? found : x == 0.0f ? -INFINITY : x > 0.0f ? -87.33654f : NAN;
}

inline float hyperbolic_tangent(float x) {
    const float size = std::fabs(x), e = exponential(-2.0f * size), s = x * x;
    const float far = (1.0f - e) / (1.0f + e);
    const float near = size * (1.0f + s * (-0.3333333333f + s * (0.1333333333f - s * 0.05396825397f)));
    const float found = size < 0.1f ? near : far;
    return x < 0.0f ? -found : found;
}

// log(1 + e^x)
inline float softplus(float x) {
    const float e = exponential(-std::fabs(x)), y = 1.0f + e;
    return (x > 0.0f ? x : 0.0f) + logarithm(y) - ((y - 1.0f) - e) / y;
}

inline float sigmoid(float x) {
    const float e = exponential(-std::fabs(x));
    return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

// ---------------------------------------------------------------- strips

struct Rows {
    int64_t begin;
    int count;  // up to LANES; what is beyond is zero when it is read, and not written
};

inline void load(Strip& to, const float* from, const Rows& rows) {
    if (rows.count == LANES) {
        std::memcpy(to, from + rows.begin, sizeof(Strip));
        return;
    }
    for (int r = 0; r < LANES; r++) to[r] = r < rows.count ? from[rows.begin + r] : 0.0f;
}

inline void store(float* to, const Strip& from, const Rows& rows) {
    std::memcpy(to + rows.begin, from, sizeof(float) * rows.count);
}

// Constrained waves of one transformer: the same for all rows of a strip, or not.
struct Shared {
    const float *a, *p, *q;
    float shift;
    inline float frequency(int k, int) const { return a[k]; }
    inline float cosine(int k, int) const { return p[k]; }
    inline float sine(int k, int) const { return q[k]; }
};

struct PerRow {
    Strip a[MOST_WAVES], p[MOST_WAVES], q[MOST_WAVES];
    static constexpr float shift = 0.0f;
    inline float frequency(int k, int r) const { return a[k][r]; }
    inline float cosine(int k, int r) const { return p[k][r]; }
    inline float sine(int k, int r) const { return q[k][r]; }
};

// The rise tau(x) - x, slope and, if wanted, curvature. Added to x one by one, every wave would be rounded as x is.
template <class Waves>
inline void evaluate(const Waves& waves, int count, const Strip& x, Strip& rise, Strip& slope, Strip* curvature) {
    FOR_LANES { rise[r] = waves.shift; slope[r] = 1.0f; }
    if (curvature) FOR_LANES (*curvature)[r] = 0.0f;
    for (int k = 0; k < count; k++) {
        if (curvature) {
            FOR_LANES {
                const float a = waves.frequency(k, r), p = waves.cosine(k, r), q = waves.sine(k, r);
                float s, c;
                sin_cos(a * x[r], s, c);
                const float square = s * s, product = s * c, turn = 1.0f - 2.0f * square;
                rise[r] += (q * square - p * product) / a;
                slope[r] -= p * turn - 2.0f * q * product;
                (*curvature)[r] += 2.0f * a * (q * turn + 2.0f * p * product);
            }
        } else {
            FOR_LANES {
                const float a = waves.frequency(k, r), p = waves.cosine(k, r), q = waves.sine(k, r);
                float s, c;
                sin_cos(a * x[r], s, c);
                const float square = s * s, product = s * c;
                rise[r] += (q * square - p * product) / a;
                slope[r] -= p * (1.0f - 2.0f * square) - 2.0f * q * product;
            }
        }
    }
}

// Slope and curvature, with the products of sines that the gradients are made of.
template <class Waves>
inline void evaluate_for_gradients(const Waves& waves, int count, const Strip& x, Strip& slope, Strip& curvature, Strip* squares,
                                   Strip* products) {
    FOR_LANES { slope[r] = 1.0f; curvature[r] = 0.0f; }
    for (int k = 0; k < count; k++)
        FOR_LANES {
            const float a = waves.frequency(k, r), p = waves.cosine(k, r), q = waves.sine(k, r);
            float s, c;
            sin_cos(a * x[r], s, c);
            const float square = s * s, product = s * c, turn = 1.0f - 2.0f * square;
            squares[k][r] = square;
            products[k][r] = product;
            slope[r] -= p * turn - 2.0f * q * product;
            curvature[r] += 2.0f * a * (q * turn + 2.0f * p * product);
        }
}

// From x + rest to tau(x + rest), by the tangent at x; rest is what rounding took of the sum before. So sums of a stack
// of transformers are as good as rounded once.
inline void climb(Strip& x, Strip& rest, const Strip& rise, const Strip& slope) {
    FOR_LANES {
        const float more = rise[r] + slope[r] * rest[r], sum = x[r] + more, added = sum - x[r];
        rest[r] = (x[r] - (sum - added)) + (more - added);
        x[r] = sum;
    }
}

// ---------------------------------------------------------------- the certified search

// The solutions of a strip with their certificates. Flags are whole numbers, which vectorise as floats do.
struct Search {
    Strip slope, residual;
    int32_t used[LANES], done[LANES];
};

// Solve tau(x) = target for a strip; `x` and `rest`, which is far smaller, hold the targets, and then the solutions.
// `count` rows matter.
template <class Waves>
inline void search(const Waves& waves, int size, Strip& x, Strip& rest, int count, int limit, Search& found) {
    Strip target, beyond, low, high, lowest, last, rise, slopes, curvature, centre, radius, tilt, spread;
    int32_t finished[LANES];
    FOR_LANES { centre[r] = waves.shift; radius[r] = 0.0f; tilt[r] = 1.0f; spread[r] = 0.0f; }
    for (int k = 0; k < size; k++)
        FOR_LANES {
            const float a = waves.frequency(k, r), p = waves.cosine(k, r), q = waves.sine(k, r);
            const float length = std::sqrt(p * p + q * q), half = 0.5f / a, slowness = a * a / (SLOW * SLOW);
            centre[r] += half * q;
            radius[r] += half * length;
            tilt[r] -= p / (1.0f + slowness * slowness);
            spread[r] += length;
        }
    FOR_LANES {
        const float goal = x[r], middle = goal - centre[r];
        const float slack = 16.0f * EPSILON * (std::fabs(middle) + std::fabs(goal) + radius[r]);
        target[r] = goal;
        beyond[r] = rest[r];
        rest[r] = 0.0f;
        low[r] = middle - radius[r] - slack;
        high[r] = middle + radius[r] + slack;
        lowest[r] = 1.0f - (spread[r] < ALPHA_LARGEST ? spread[r] : ALPHA_LARGEST);
        last[r] = INFINITY;
        x[r] = (goal - waves.shift) / tilt[r];
        finished[r] = r >= count;
        found.used[r] = 0;
        found.done[r] = 1;
        found.residual[r] = 0.0f;
        found.slope[r] = 1.0f;
    }
    for (int evaluations = 1;; evaluations++) {
        evaluate(waves, size, x, rise, slopes, &curvature);
        int32_t left = 0;
        const int32_t final = evaluations >= limit;
#pragma omp simd reduction(+ : left)
        for (int r = 0; r < LANES; r++) {
            const float at = x[r], gap = (at - target[r]) + (rise[r] - beyond[r]), residual = std::fabs(gap);
            const float size_x = std::fabs(at), size_t = std::fabs(target[r]);
            const int32_t was = finished[r], now = residual <= 8.0f * EPSILON * (size_x > size_t ? size_x : size_t) ? 1 : 0;
            const int32_t stop = was | now | final | (residual == residual ? 0 : 1);
            // What is found stays as it is, however long others search: so a row's answer is its own.
            found.residual[r] = was ? found.residual[r] : residual;
            found.used[r] = was ? found.used[r] : evaluations;
            found.done[r] = was ? found.done[r] : now;
            finished[r] = stop;
            left += 1 - stop;
            const float slope = slopes[r], least = lowest[r], greatest = 2.0f - least;
            const float near = at - gap / greatest, far = at - gap / least;
            const float under = gap > 0 ? far : near, over = gap > 0 ? near : far;
            const float bottom = low[r] > under ? low[r] : under, top = high[r] < over ? high[r] : over;
            float divisor = slope + std::sqrt(std::fabs(slope * slope - 2.0f * gap * curvature[r]));
            divisor = divisor > 2.0f * least ? divisor : 2.0f * least;
            divisor = divisor < 2.0f * greatest ? divisor : 2.0f * greatest;
            const float step = at - 2.0f * gap / divisor, half = 0.5f * (bottom + top);
            float next = step >= bottom ? step : half;
            next = step <= top ? next : half;
            next = residual <= 0.5f * last[r] ? next : half;
            low[r] = bottom;
            high[r] = top;
            last[r] = residual;
            // What is good enough takes a last step, because what is left of the residual grows in the layers to come;
            // but not where the function bends within rounding.
            const float left_over = gap / slope;
            const int32_t straight =
                (std::fabs(left_over * curvature[r]) <= 0.01f * slope ? 1 : 0) & (std::fabs(left_over) <= 2e-4f ? 1 : 0);
            const float after = now & straight ? at - left_over : at;
            const float missed = now & straight ? (at - after) - left_over : 0.0f;
            rest[r] = was ? rest[r] : missed;
            found.slope[r] = was ? found.slope[r] : slope + curvature[r] * (after - at);
            x[r] = was ? at : (stop ? after : next);
        }
        if (left == 0) return;
    }
}

// The worst of several searches, one after the other.
struct Certificate {
    Strip worst;
    int32_t most[LANES], good[LANES];

    inline void clear() {
        FOR_LANES { worst[r] = 0.0f; most[r] = 0; good[r] = 1; }
    }
    inline void add(const Search& found) {
        FOR_LANES {
            const float off = found.residual[r] == found.residual[r] ? found.residual[r] : INFINITY;
            worst[r] = off > worst[r] ? off : worst[r];
            most[r] = found.used[r] > most[r] ? found.used[r] : most[r];
            good[r] = good[r] & found.done[r];
        }
    }
    inline void demand_finite(const Strip& x) {
        FOR_LANES {
            const int32_t finite = std::fabs(x[r]) < INFINITY ? 1 : 0;
            worst[r] = finite ? worst[r] : INFINITY;
            good[r] = good[r] & finite;
        }
    }
};

// ---------------------------------------------------------------- conditional waves

// The parameters of a feature, row by row: d, s, all frequencies, phases, weights, strengths.
struct Conditional {
    const float* at;  // [parameters][rows]
    int64_t rows;
    int scales, waves;

    inline const float* row(int i) const { return at + i * rows; }
    inline int frequency(int j, int k) const { return 2 + j * waves + k; }
    inline int phase(int j, int k) const { return frequency(j, k) + scales * waves; }
    inline int weight(int j, int k) const { return frequency(j, k) + 2 * scales * waves; }
    inline int strength(int j) const { return 2 + 3 * scales * waves + j; }
};

// What constraining leaves behind for the gradients.
struct Constrained {
    PerRow waves;
    Strip share[MOST_WAVES], sine[MOST_WAVES], cosine[MOST_WAVES], free[MOST_WAVES], strength;
};

inline void constrain(const Conditional& from, int j, const Rows& rows, Constrained& to) {
    Strip largest, total;
    load(to.strength, from.row(from.strength(j)), rows);
    FOR_LANES { to.strength[r] = hyperbolic_tangent(to.strength[r]); largest[r] = -INFINITY; total[r] = 0.0f; }
    for (int k = 0; k < from.waves; k++) {
        load(to.share[k], from.row(from.weight(j, k)), rows);
        FOR_LANES largest[r] = to.share[k][r] > largest[r] ? to.share[k][r] : largest[r];
    }
    for (int k = 0; k < from.waves; k++)
        FOR_LANES { to.share[k][r] = exponential(to.share[k][r] - largest[r]); total[r] += to.share[k][r]; }
    for (int k = 0; k < from.waves; k++) {
        Strip phase;
        load(phase, from.row(from.phase(j, k)), rows);
        load(to.free[k], from.row(from.frequency(j, k)), rows);
        FOR_LANES {
            to.share[k][r] /= total[r];
            float s, c;
            sin_cos(2.0f * phase[r], s, c);
            const float size = ALPHA_LARGEST * to.strength[r] * to.share[k][r];
            to.sine[k][r] = s;
            to.cosine[k][r] = c;
            to.waves.a[k][r] = softplus(to.free[k][r]) + LEAST_FREQUENCY;
            to.waves.p[k][r] = size * c;
            to.waves.q[k][r] = size * s;
        }
    }
}

}  // namespace

extern "C" {

// x, z: [features][rows]; a, p, q: [scales][features][waves]; d: [scales][features]; ladj: [rows];
// inputs: [scales][features][rows], or null.
void scale_forward(const float* x, const float* a, const float* p, const float* q, const float* d, float* z, float* ladj,
                   float* inputs, int features, int64_t rows, int scales, int waves, int64_t begin, int64_t end) {
    for (int64_t start = begin; start < end; start += LANES) {
        const Rows strip{start, static_cast<int>(end - start < LANES ? end - start : LANES)};
        Strip total = {};
        for (int i = 0; i < features; i++) {
            Strip now, rest = {}, rise, slope;
            load(now, x + i * rows, strip);
            for (int j = 0; j < scales; j++) {
                const int64_t at = static_cast<int64_t>(j) * features + i;
                if (inputs) store(inputs + at * rows, now, strip);
                evaluate(Shared{a + at * waves, p + at * waves, q + at * waves, d[at]}, waves, now, rise, slope, nullptr);
                climb(now, rest, rise, slope);
                FOR_LANES total[r] += logarithm(slope[r]);
            }
            store(z + i * rows, now, strip);
        }
        store(ladj, total, strip);
    }
}

// sums: [scales][features][3 waves + 1], to which the gradients of a, p, q and d are added.
void scale_backward(const float* inputs, const float* a, const float* p, const float* q, const float* grad_z,
                    const float* grad_ladj, float* grad_x, float* sums, int features, int64_t rows, int scales, int waves,
                    int64_t begin, int64_t end) {
    Strip squares[MOST_WAVES], products[MOST_WAVES];
    for (int64_t start = begin; start < end; start += LANES) {
        const Rows strip{start, static_cast<int>(end - start < LANES ? end - start : LANES)};
        Strip of_ladj;
        load(of_ladj, grad_ladj, strip);
        for (int i = 0; i < features; i++) {
            Strip grad;
            load(grad, grad_z + i * rows, strip);
            for (int j = scales - 1; j >= 0; j--) {
                const int64_t at = static_cast<int64_t>(j) * features + i;
                const float *fa = a + at * waves, *fp = p + at * waves, *fq = q + at * waves;
                float* sum = sums + at * (3 * waves + 1);
                Strip x, slope, curvature, of_slope;
                load(x, inputs + at * rows, strip);
                evaluate_for_gradients(Shared{fa, fp, fq, 0.0f}, waves, x, slope, curvature, squares, products);
                FOR_LANES of_slope[r] = of_ladj[r] / slope[r];
                for (int k = 0; k < waves; k++) {
                    const float frequency = fa[k], cosine = fp[k], sine = fq[k], inverse = 1.0f / frequency;
                    float of_a = 0.0f, of_p = 0.0f, of_q = 0.0f;
#pragma omp simd reduction(+ : of_a, of_p, of_q)
                    for (int r = 0; r < LANES; r++) {
                        const float square = squares[k][r], product = products[k][r], turn = 1.0f - 2.0f * square;
                        const float bend = cosine * turn - 2.0f * sine * product, bow = 2.0f * (sine * turn + 2.0f * cosine * product);
                        const float rise = (sine * square - cosine * product) * inverse, of_value = grad[r] * inverse;
                        of_a += of_slope[r] * x[r] * bow - of_value * (x[r] * bend + rise);
                        of_p -= of_value * product + of_slope[r] * turn;
                        of_q += of_value * square + 2.0f * of_slope[r] * product;
                    }
                    sum[k] += of_a;
                    sum[waves + k] += of_p;
                    sum[2 * waves + k] += of_q;
                }
                float of_d = 0.0f;
#pragma omp simd reduction(+ : of_d)
                for (int r = 0; r < LANES; r++) of_d += grad[r];
                sum[3 * waves] += of_d;
                FOR_LANES grad[r] = grad[r] * slope[r] + of_slope[r] * curvature[r];
            }
            store(grad_x + i * rows, grad, strip);
        }
    }
}

// iterations, residual, converged: [rows], the worst of all features and scales.
void scale_inverse(const float* z, const float* a, const float* p, const float* q, const float* d, float* x, float* ladj,
                   int32_t* iterations, float* residual, uint8_t* converged, int features, int64_t rows, int scales, int waves,
                   int limit, int64_t begin, int64_t end) {
    for (int64_t start = begin; start < end; start += LANES) {
        const Rows strip{start, static_cast<int>(end - start < LANES ? end - start : LANES)};
        Strip total = {};
        Certificate certificate;
        certificate.clear();
        for (int i = 0; i < features; i++) {
            Strip now, rest = {};
            load(now, z + i * rows, strip);
            for (int j = scales - 1; j >= 0; j--) {
                const int64_t at = static_cast<int64_t>(j) * features + i;
                Search found;
                search(Shared{a + at * waves, p + at * waves, q + at * waves, d[at]}, waves, now, rest, strip.count, limit, found);
                FOR_LANES total[r] -= logarithm(found.slope[r]);
                certificate.add(found);
            }
            certificate.demand_finite(now);
            store(x + i * rows, now, strip);
        }
        store(ladj, total, strip);
        store(residual, certificate.worst, strip);
        for (int r = 0; r < strip.count; r++) {
            iterations[start + r] = certificate.most[r];
            converged[start + r] = certificate.good[r] != 0;
        }
    }
}

// parameters: [features][2 + scales (3 waves + 1)][rows]
void conditional_forward(const float* x, const float* parameters, float* z, float* ladj, int features, int64_t rows, int scales,
                         int waves, int64_t begin, int64_t end) {
    const int64_t size = 2 + static_cast<int64_t>(scales) * (3 * waves + 1);
    Constrained constrained;
    for (int64_t start = begin; start < end; start += LANES) {
        const Rows strip{start, static_cast<int>(end - start < LANES ? end - start : LANES)};
        Strip total = {};
        for (int i = 0; i < features; i++) {
            const Conditional from{parameters + i * size * rows, rows, scales, waves};
            Strip now, rest = {}, shift, free, rise, slope;
            load(now, x + i * rows, strip);
            load(shift, from.row(0), strip);
            load(free, from.row(1), strip);
            FOR_LANES {
                const float log_scale = 2.0f * hyperbolic_tangent(0.5f * free[r]);
                now[r] = now[r] * exponential(log_scale) + shift[r];
                total[r] += log_scale;
            }
            for (int j = 0; j < scales; j++) {
                constrain(from, j, strip, constrained);
                evaluate(constrained.waves, waves, now, rise, slope, nullptr);
                climb(now, rest, rise, slope);
                FOR_LANES total[r] += logarithm(slope[r]);
            }
            store(z + i * rows, now, strip);
        }
        store(ladj, total, strip);
    }
}

void conditional_backward(const float* x, const float* parameters, const float* grad_z, const float* grad_ladj, float* grad_x,
                          float* grad_parameters, int features, int64_t rows, int scales, int waves, int64_t begin, int64_t end) {
    const int64_t size = 2 + static_cast<int64_t>(scales) * (3 * waves + 1);
    Constrained constrained;
    Strip squares[MOST_WAVES], products[MOST_WAVES];
    for (int64_t start = begin; start < end; start += LANES) {
        const Rows strip{start, static_cast<int>(end - start < LANES ? end - start : LANES)};
        Strip of_ladj;
        load(of_ladj, grad_ladj, strip);
        for (int i = 0; i < features; i++) {
            const Conditional from{parameters + i * size * rows, rows, scales, waves};
            float* to = grad_parameters + i * size * rows;
            Strip x0, shift, half, scale, grad;
            load(x0, x + i * rows, strip);
            load(shift, from.row(0), strip);
            load(half, from.row(1), strip);
            load(grad, grad_z + i * rows, strip);
            FOR_LANES {
                half[r] = hyperbolic_tangent(0.5f * half[r]);
                scale[r] = exponential(2.0f * half[r]);
            }
            for (int j = scales - 1; j >= 0; j--) {
                Strip now, rest = {}, rise, slope, curvature, of_slope, of_alpha;
                FOR_LANES now[r] = x0[r] * scale[r] + shift[r];
                for (int before = 0; before < j; before++) {
                    constrain(from, before, strip, constrained);
                    evaluate(constrained.waves, waves, now, rise, slope, nullptr);
                    climb(now, rest, rise, slope);
                }
                constrain(from, j, strip, constrained);
                evaluate_for_gradients(constrained.waves, waves, now, slope, curvature, squares, products);
                FOR_LANES { of_slope[r] = of_ladj[r] / slope[r]; of_alpha[r] = 0.0f; }
                for (int k = 0; k < waves; k++) {
                    Strip of_frequency, of_phase, along;
                    FOR_LANES {
                        const float a = constrained.waves.a[k][r], p = constrained.waves.p[k][r], q = constrained.waves.q[k][r];
                        const float square = squares[k][r], product = products[k][r], turn = 1.0f - 2.0f * square;
                        const float bend = p * turn - 2.0f * q * product, bow = 2.0f * (q * turn + 2.0f * p * product);
                        const float rise = (q * square - p * product) / a, of_value = grad[r] / a;
                        const float of_a = of_slope[r] * now[r] * bow - of_value * (now[r] * bend + rise);
                        const float of_p = -(of_value * product + of_slope[r] * turn);
                        const float of_q = of_value * square + 2.0f * of_slope[r] * product;
                        const float s = constrained.sine[k][r], c = constrained.cosine[k][r], share = constrained.share[k][r];
                        of_frequency[r] = of_a * sigmoid(constrained.free[k][r]);
                        of_phase[r] = 2.0f * (of_q * p - of_p * q);
                        along[r] = of_p * c + of_q * s;
                        of_alpha[r] += share * along[r];
                    }
                    store(to + from.frequency(j, k) * rows, of_frequency, strip);
                    store(to + from.phase(j, k) * rows, of_phase, strip);
                    std::memcpy(squares[k], along, sizeof(Strip));  // the squares are not needed any more
                }
                for (int k = 0; k < waves; k++) {
                    Strip of_weight;
                    FOR_LANES of_weight[r] = ALPHA_LARGEST * constrained.strength[r] * constrained.share[k][r] * (squares[k][r] - of_alpha[r]);
                    store(to + from.weight(j, k) * rows, of_weight, strip);
                }
                Strip of_strength;
                FOR_LANES {
                    of_strength[r] = of_alpha[r] * ALPHA_LARGEST * (1.0f - constrained.strength[r] * constrained.strength[r]);
                    grad[r] = grad[r] * slope[r] + of_slope[r] * curvature[r];
                }
                store(to + from.strength(j) * rows, of_strength, strip);
            }
            Strip of_scale, of_x;
            FOR_LANES {
                of_scale[r] = (grad[r] * x0[r] * scale[r] + of_ladj[r]) * (1.0f - half[r] * half[r]);
                of_x[r] = grad[r] * scale[r];
            }
            store(to, grad, strip);
            store(to + rows, of_scale, strip);
            store(grad_x + i * rows, of_x, strip);
        }
    }
}

// slope, iterations, residual, converged: [features][rows]
void conditional_inverse(const float* z, const float* parameters, float* x, float* slope, int32_t* iterations, float* residual,
                         uint8_t* converged, int features, int64_t rows, int scales, int waves, int limit, int64_t begin, int64_t end) {
    const int64_t size = 2 + static_cast<int64_t>(scales) * (3 * waves + 1);
    Constrained constrained;
    for (int64_t start = begin; start < end; start += LANES) {
        const Rows strip{start, static_cast<int>(end - start < LANES ? end - start : LANES)};
        for (int i = 0; i < features; i++) {
            const Conditional from{parameters + i * size * rows, rows, scales, waves};
            Strip now, rest = {}, shift, free, whole;
            Certificate certificate;
            certificate.clear();
            load(now, z + i * rows, strip);
            load(shift, from.row(0), strip);
            load(free, from.row(1), strip);
            FOR_LANES { free[r] = exponential(2.0f * hyperbolic_tangent(0.5f * free[r])); whole[r] = free[r]; }
            for (int j = scales - 1; j >= 0; j--) {
                constrain(from, j, strip, constrained);
                Search found;
                search(constrained.waves, waves, now, rest, strip.count, limit, found);
                FOR_LANES whole[r] *= found.slope[r];
                certificate.add(found);
            }
            FOR_LANES now[r] = ((now[r] - shift[r]) + rest[r]) / free[r];
            certificate.demand_finite(now);  // the division may overflow
            store(x + i * rows, now, strip);
            store(slope + i * rows, whole, strip);
            store(residual + i * rows, certificate.worst, strip);
            for (int r = 0; r < strip.count; r++) {
                iterations[i * rows + start + r] = certificate.most[r];
                converged[i * rows + start + r] = certificate.good[r] != 0;
            }
        }
    }
}

}  // extern "C"
