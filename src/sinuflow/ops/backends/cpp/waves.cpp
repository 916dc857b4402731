// Sinusoidal transformers on a CPU, in float32 and float64, feature-major, for compilers that vectorise loops.
//
// Rows are processed in tiles of LANES: every inner loop runs over a tile and has no branches. Formulas as in
// ops/waves.py. Each kernel works on rows `begin` to `end`, so that threads can share a batch.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

constexpr int LANES = 64;
constexpr double ALPHA_MAX = 1.0 - 1.0 / 1024.0, FREQUENCY_MIN = 1e-4, SLOW = 0.1;

template <class T>
struct Tile {
    alignas(64) T lane[LANES];
    inline T& operator[](int r) { return lane[r]; }
    inline const T& operator[](int r) const { return lane[r]; }
};

// Loops over a tile are vectorised only if all functions in them are inlined.
#define INLINE inline __attribute__((always_inline))
#define FOR_LANES _Pragma("omp simd") for (int r = 0; r < LANES; r++)

// ---------------------------------------------------------------- elementary functions, without branches

// The format of a floating-point type: WHOLE is 2^MANTISSA, from where on every number is an integer.
template <class T> struct Format;
template <> struct Format<float> {
    using Bits = uint32_t;
    using Flag = int32_t;  // as wide as a number, so that flags vectorise with numbers
    static constexpr int MANTISSA = 23, BIAS = 127;
    static constexpr float WHOLE = 8388608.0f, SMALLEST = 1.17549435e-38f, LOG_SMALLEST = -87.33654f;
    static constexpr float EXP_MIN = -87.3f, EXP_MAX = 88.7f;
    static constexpr Bits SQRT_HALF = 0x3f3504f3;
};
template <> struct Format<double> {
    using Bits = uint64_t;
    using Flag = int64_t;
    static constexpr int MANTISSA = 52, BIAS = 1023;
    static constexpr double WHOLE = 4503599627370496.0, SMALLEST = 2.2250738585072014e-308, LOG_SMALLEST = -708.3964185322641;
    static constexpr double EXP_MIN = -708.3, EXP_MAX = 709.7;
    static constexpr Bits SQRT_HALF = 0x3fe6a09e667f3bcd;
};
template <class T> using Bits = typename Format<T>::Bits;
template <class T> using Flag = typename Format<T>::Flag;

template <class T> INLINE Bits<T> to_bits(T x) { Bits<T> bits; std::memcpy(&bits, &x, sizeof(T)); return bits; }
template <class T> INLINE T from_bits(Bits<T> bits) { T x; std::memcpy(&x, &bits, sizeof(T)); return x; }

template <class T>
INLINE T polynomial(T, T last) { return last; }
template <class T, class... More>
INLINE T polynomial(T x, T first, More... more) { return first + x * polynomial(x, static_cast<T>(more)...); }

template <class T>
INLINE void sin_cos(T u, T& sine, T& cosine) {
    const T quarter = std::nearbyint(u * T(0.63661977236758134308));
    T r, low, high;
    if constexpr (sizeof(T) == 4) {  // pi/2 in three parts
        r = u - quarter * 1.5707964f;
        r = r - quarter * -4.371139e-08f;
        r = r - quarter * -1.7151245e-15f;
    } else {
        r = u - quarter * 1.5707963267948966;
        r = r - quarter * 6.123233995736766e-17;
        r = r - quarter * -1.4973849048591833e-33;
    }
    // Where u has lost its phase, r is noise: hold it in range.
    r = r < T(-0.78539816339744828) ? T(-0.78539816339744828) : r;
    r = r > T(0.78539816339744828) ? T(0.78539816339744828) : r;
    // 0 to 3, from the lowest bits of a sum above WHOLE: also defined for NaN, which has no integer value.
    const Bits<T> turn = to_bits(quarter - T(4) * std::floor(quarter * T(0.25)) + Format<T>::WHOLE);
    const T s = r * r;
    if constexpr (sizeof(T) == 4) {
        low = r + r * s * polynomial(s, -1.6666654611e-1f, 8.3321608736e-3f, -1.9515295891e-4f);
        high = 1.0f - 0.5f * s + s * s * polynomial(s, 4.166664568298827e-2f, -1.388731625493765e-3f, 2.443315711809948e-5f);
    } else {
        low = r + r * s * polynomial(s, -1.66666666666666324348e-1, 8.33333333332248946124e-3, -1.98412698298579493134e-4,
                                     2.75573137070700676789e-6, -2.50507602534068634195e-8, 1.58969099521155010221e-10);
        high = 1.0 - 0.5 * s + s * s * polynomial(s, 4.16666666666666019037e-2, -1.38888888888741095749e-3,
            2.48015872894767294178e-5, -2.75573143513906633035e-7, 2.08757232129817482790e-9, -1.13596475577881948265e-11);
    }
    const bool odd = turn & 1;
    const T a = odd ? high : low, b = odd ? low : high;
    sine = turn & 2 ? -a : a;
    cosine = (turn + 1) & 2 ? -b : b;
}

// 2^n for a whole n, from the lowest bits of a sum above WHOLE.
template <class T>
INLINE T power_of_two(T n) {
    return from_bits<T>((to_bits(n + T(1.5) * Format<T>::WHOLE) + Format<T>::BIAS) << Format<T>::MANTISSA);
}

// e^x by 2^n times a polynomial in the remainder; 0 and infinity beyond the range of normal numbers.
template <class T>
INLINE T exponential(T x) {
    constexpr T least = Format<T>::EXP_MIN, most = Format<T>::EXP_MAX;
    const T held = x < least ? least : x > most ? most : x;
    const T n = std::nearbyint(held * T(1.44269504088896340736));
    T p;
    if constexpr (sizeof(T) == 4) {
        const float r = held - n * 0.693359375f - n * -2.12194440e-4f;
        p = polynomial(r, 5.0000001201e-1f, 1.6666665459e-1f, 4.1665795894e-2f, 8.3334519073e-3f, 1.3981999507e-3f, 1.9875691500e-4f);
        p = p * r * r + r + 1.0f;
    } else {
        const double r = held - n * 6.93145751953125e-1 - n * 1.42860682030941723212e-6, s = r * r;
        p = r * polynomial(s, 9.99999999999999999910e-1, 3.02994407707441961300e-2, 1.26177193074810590878e-4);
        const double q = polynomial(s, 2.00000000000000000005, 2.27265548208155028766e-1, 2.52448340349684104192e-3, 3.00198505138664455042e-6);
        p = 1.0 + 2.0 * p / (q - p);
    }
    const T half = std::floor(T(0.5) * n);  // in two factors, because the largest power is infinite
    const T found = p * power_of_two(half) * power_of_two(n - half);
    return x < least ? T(0) : x > most ? T(INFINITY) : x == x ? found : x;
}

// The logarithm of a positive normal number.
template <class T>
INLINE T logarithm(T x) {
    using F = Format<T>;
    const Bits<T> shifted = to_bits(x) - F::SQRT_HALF, one = Bits<T>(1) << F::MANTISSA;
    const T e = from_bits<T>(((shifted + F::BIAS * one) >> F::MANTISSA) | to_bits(F::WHOLE)) - (F::WHOLE + T(F::BIAS));
    const T m = from_bits<T>((shifted & (one - 1)) + F::SQRT_HALF) - T(1);
    T found;
    if constexpr (sizeof(T) == 4) {
        const float z = m * m;
        const float p = polynomial(m, 3.3333331174e-1f, -2.4999993993e-1f, 2.0000714765e-1f, -1.6668057665e-1f, 1.4249322787e-1f,
                                   -1.2420140846e-1f, 1.1676998740e-1f, -1.1514610310e-1f, 7.0376836292e-2f);
        found = m + (p * m * z - 0.5f * z + e * -2.12194440e-4f) + e * 0.693359375f;
    } else {
        const double s = m / (2.0 + m), z = s * s, half = 0.5 * m * m;
        const double p = z * polynomial(z, 6.666666666666735130e-1, 3.999999999940941908e-1, 2.857142874366239149e-1,
            2.222219843214978396e-1, 1.818357216161805012e-1, 1.531383769920937332e-1, 1.479819860511658591e-1);
        found = e * 6.93147180369123816490e-1 - ((half - (s * (half + p) + e * 1.90821492927058770002e-10)) - m);
    }
    return x > F::SMALLEST ? found : x == T(0) ? T(-INFINITY) : x > T(0) ? F::LOG_SMALLEST : T(NAN);
}

template <class T>
INLINE T hyperbolic_tangent(T x) {
    const T size = std::fabs(x), s = x * x, e = exponential(T(-2) * size), far = (T(1) - e) / (T(1) + e);
    T near, limit;
    if constexpr (sizeof(T) == 4) {
        near = size * polynomial(s, 1.0f, -0.3333333333f, 0.1333333333f, -0.05396825397f);
        limit = 0.1f;
    } else {
        const double p = polynomial(s, -1.61468768441708447952e3, -9.92877231001918586564e1, -9.64399179425052238628e-1);
        near = size + size * s * p / polynomial(s, 4.84406305325125486048e3, 2.23548839060100448583e3, 1.12811678491632931402e2, 1.0);
        limit = 0.625;
    }
    const T found = size < limit ? near : far;
    return x < T(0) ? -found : found;
}

// log(1 + e^x)
template <class T>
INLINE T softplus(T x) {
    const T e = exponential(-std::fabs(x)), y = T(1) + e;
    return (x > T(0) ? x : T(0)) + logarithm(y) - ((y - T(1)) - e) / y;
}

template <class T>
INLINE T sigmoid(T x) {
    const T e = exponential(-std::fabs(x));
    return (x >= T(0) ? T(1) : e) / (T(1) + e);
}

// ---------------------------------------------------------------- tiles

struct Sizes {
    int features;
    int64_t rows;
    int scales, waves;
};

struct Rows {
    int64_t begin;
    int count;  // up to LANES; lanes beyond are zero when loaded, and not stored
};

template <class T>
inline void load(Tile<T>& to, const T* from, const Rows& rows) {
    if (rows.count == LANES) {
        std::memcpy(&to, from + rows.begin, sizeof(to));
        return;
    }
    for (int r = 0; r < LANES; r++) to[r] = r < rows.count ? from[rows.begin + r] : T(0);
}

template <class T>
inline void store(T* to, const Tile<T>& from, const Rows& rows) {
    std::memcpy(to + rows.begin, &from, sizeof(T) * rows.count);
}

// The waves of one transformer: the same for all rows of a tile, or one set per row.
template <class T>
struct Shared {
    const T *frequency, *cosine, *sine;
    T offset;
    inline T a(int k, int) const { return frequency[k]; }
    inline T p(int k, int) const { return cosine[k]; }
    inline T q(int k, int) const { return sine[k]; }
    inline T shift(int) const { return offset; }
};

template <class T>
struct PerRow {
    const Tile<T> *frequency, *cosine, *sine, *offset;
    inline T a(int k, int r) const { return frequency[k][r]; }
    inline T p(int k, int r) const { return cosine[k][r]; }
    inline T q(int k, int r) const { return sine[k][r]; }
    inline T shift(int r) const { return (*offset)[r]; }
};

// The difference tau(x) - x and the slope, and for CURVATURE the second derivative; for GRADIENTS also sin^2 u and
// sin u cos u. The waves are summed before x is added: added to x one by one, each would be rounded as x is.
template <bool CURVATURE, bool GRADIENTS, class T, class Waves>
inline void evaluate(const Waves& waves, int count, const Tile<T>& x, Tile<T>& rise, Tile<T>& slope, Tile<T>* curvature = nullptr,
                     Tile<T>* squares = nullptr, Tile<T>* products = nullptr) {
    FOR_LANES { rise[r] = waves.shift(r); slope[r] = T(1); }
    if constexpr (CURVATURE) FOR_LANES (*curvature)[r] = T(0);
    for (int k = 0; k < count; k++)
        FOR_LANES {
            const T a = waves.a(k, r), p = waves.p(k, r), q = waves.q(k, r);
            T s, c;
            sin_cos(a * x[r], s, c);
            const T square = s * s, product = s * c, turn = T(1) - T(2) * square;
            rise[r] += (q * square - p * product) / a;
            slope[r] -= p * turn - T(2) * q * product;
            if constexpr (CURVATURE) (*curvature)[r] += T(2) * a * (q * turn + T(2) * p * product);
            if constexpr (GRADIENTS) { squares[k][r] = square; products[k][r] = product; }
        }
}

// From x + rest to tau(x + rest), linearised at x; rest is the rounding error of the sum before. So a stack of
// transformers is about as accurate as one rounding.
template <class T>
inline void compensated_add(Tile<T>& x, Tile<T>& rest, const Tile<T>& rise, const Tile<T>& slope) {
    FOR_LANES {
        const T more = rise[r] + slope[r] * rest[r], sum = x[r] + more, added = sum - x[r];
        rest[r] = (x[r] - (sum - added)) + (more - added);
        x[r] = sum;
    }
}

// ---------------------------------------------------------------- safeguarded Newton iteration

template <class T>
struct Solution {
    Tile<T> slope, residual;
    Tile<Flag<T>> iterations, converged;
};

// Solve tau(x) = target for a tile; `x` and `rest`, which is far smaller, hold the targets, and then the solutions.
// Only the first `count` rows matter.
template <class T, class Waves>
inline void solve(const Waves& waves, int size, Tile<T>& x, Tile<T>& rest, int count, int limit, Solution<T>& found) {
    constexpr T epsilon = std::numeric_limits<T>::epsilon();
    Tile<T> target, target_rest, low, high, lowest, last, rise, slopes, curvature, centre, radius, tilt, amplitude;
    Tile<Flag<T>> finished;
    FOR_LANES { centre[r] = waves.shift(r); radius[r] = T(0); tilt[r] = T(1); amplitude[r] = T(0); }
    for (int k = 0; k < size; k++)
        FOR_LANES {
            const T a = waves.a(k, r), p = waves.p(k, r), q = waves.q(k, r);
            const T length = std::sqrt(p * p + q * q), half = T(0.5) / a, ratio = a * a / T(SLOW * SLOW);
            centre[r] += half * q;
            radius[r] += half * length;
            tilt[r] -= p / (T(1) + ratio * ratio);
            amplitude[r] += length;
        }
    // Copied outside of the loop: GCC 12 would store to x and rest before it has loaded all of them.
    target = x;
    target_rest = rest;
    FOR_LANES {
        const T goal = target[r], middle = goal - centre[r];
        const T slack = T(16) * epsilon * (std::fabs(middle) + std::fabs(goal) + radius[r]);
        low[r] = middle - radius[r] - slack;
        high[r] = middle + radius[r] + slack;
        lowest[r] = T(1) - (amplitude[r] < T(ALPHA_MAX) ? amplitude[r] : T(ALPHA_MAX));
        last[r] = T(INFINITY);
        x[r] = (goal - waves.shift(r)) / tilt[r];
        finished[r] = r >= count;
        found.iterations[r] = 0;
        found.converged[r] = 1;
        found.residual[r] = T(0);
        found.slope[r] = T(1);
    }
    for (int evaluations = 1;; evaluations++) {
        evaluate<true, false>(waves, size, x, rise, slopes, &curvature);
        Flag<T> left = 0;
        const Flag<T> final = evaluations >= limit;
#pragma omp simd reduction(+ : left)
        for (int r = 0; r < LANES; r++) {
            const T at = x[r], gap = (at - target[r]) + (rise[r] - target_rest[r]), residual = std::fabs(gap);
            const T size_x = std::fabs(at), size_t = std::fabs(target[r]);
            const Flag<T> was = finished[r], now = residual <= T(8) * epsilon * (size_x > size_t ? size_x : size_t) ? 1 : 0;
            const Flag<T> stop = was | now | final | (residual == residual ? 0 : 1);
            // A finished row does not change any more, so its result does not depend on the others.
            found.residual[r] = was ? found.residual[r] : residual;
            found.iterations[r] = was ? found.iterations[r] : evaluations;
            found.converged[r] = was ? found.converged[r] : now;
            finished[r] = stop;
            left += 1 - stop;
            const T slope = slopes[r], least = lowest[r], greatest = T(2) - least;
            const T near = at - gap / greatest, far = at - gap / least;
            const T under = gap > 0 ? far : near, over = gap > 0 ? near : far;
            const T bottom = low[r] > under ? low[r] : under, top = high[r] < over ? high[r] : over;
            T divisor = slope + std::sqrt(std::fabs(slope * slope - T(2) * gap * curvature[r]));
            divisor = divisor > T(2) * least ? divisor : T(2) * least;
            divisor = divisor < T(2) * greatest ? divisor : T(2) * greatest;
            const T step = at - T(2) * gap / divisor, half = T(0.5) * (bottom + top);
            T next = step >= bottom ? step : half;
            next = step <= top ? next : half;
            next = residual <= T(0.5) * last[r] ? next : half;
            low[r] = bottom;
            high[r] = top;
            last[r] = residual;
            // A converged row takes a last step, because its residual would grow in the next layers; but not where the
            // function bends within rounding.
            const T correction = gap / slope;
            const Flag<T> straight =
                (std::fabs(correction * curvature[r]) <= T(0.01) * slope ? 1 : 0) & (std::fabs(correction) <= T(2e-4) ? 1 : 0);
            const T taken = now & straight ? correction : T(0), after = at - taken, missed = (at - after) - taken;
            rest[r] = was ? rest[r] : missed;
            found.slope[r] = was ? found.slope[r] : slope + curvature[r] * (after - at);
            x[r] = was ? at : (stop ? after : next);
        }
        if (left == 0) return;
    }
}

// The worst of several solutions, one after the other.
template <class T>
struct Certificate {
    Tile<T> residual;
    Tile<Flag<T>> iterations, converged;

    inline void clear() {
        FOR_LANES { residual[r] = T(0); iterations[r] = 0; converged[r] = 1; }
    }
    inline void add(const Solution<T>& found) {
        FOR_LANES {
            const T gap = found.residual[r] == found.residual[r] ? found.residual[r] : T(INFINITY);
            residual[r] = gap > residual[r] ? gap : residual[r];
            iterations[r] = found.iterations[r] > iterations[r] ? found.iterations[r] : iterations[r];
            converged[r] = converged[r] & found.converged[r];
        }
    }
    inline void require_finite(const Tile<T>& x) {
        FOR_LANES {
            const Flag<T> finite = std::fabs(x[r]) < T(INFINITY) ? 1 : 0;
            residual[r] = finite ? residual[r] : T(INFINITY);
            converged[r] = converged[r] & finite;
        }
    }
};

// ---------------------------------------------------------------- sources of waves
//
// A source hands out the waves of transformer j of the current feature and rows, and takes their gradients. Waves are
// stored in slots, one per transformer if all of them are needed together. In a conditional layer, an affine map comes
// first, whose parameters are also given row by row.

// a, p, q: [scales][features][waves]; d: [scales][features]; gradients: [scales][features][3 waves + 1], added to.
template <class T>
struct SharedWaves {
    static constexpr bool ELEMENTWISE = false;
    const T *a, *p, *q, *d;
    T* gradients;
    Sizes n;
    int feature = 0;

    SharedWaves(const T* a, const T* p, const T* q, const T* d, T* gradients, const Sizes& n, int)
        : a(a), p(p), q(q), d(d), gradients(gradients), n(n) {}
    inline int64_t place(int j) const { return static_cast<int64_t>(j) * n.features + feature; }
    inline void select(int i, const Rows&) { feature = i; }
    inline Shared<T> load_waves(int j, int) const { return waves(j); }
    inline Shared<T> waves(int j) const {
        const int64_t at = place(j);
        return {a + at * n.waves, p + at * n.waves, q + at * n.waves, d[at]};
    }
    inline void affine(Tile<T>&, Tile<T>&) const {}
    inline void inverse_affine(Tile<T>&, const Tile<T>&, Tile<T>&) const {}
    inline void add(T* to, const Tile<T>& from) const {
        T sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int r = 0; r < LANES; r++) sum += from[r];
        *to += sum;
    }
    inline void wave_gradient(int j, int k, const Tile<T>& of_a, const Tile<T>& of_p, const Tile<T>& of_q) {
        T* to = gradients + place(j) * (3 * n.waves + 1) + k;
        add(to, of_a);
        add(to + n.waves, of_p);
        add(to + 2 * n.waves, of_q);
    }
    inline void transformer_gradient(int j, const Tile<T>& of_d) { add(gradients + place(j) * (3 * n.waves + 1) + 3 * n.waves, of_d); }
    inline void affine_gradient(const Tile<T>&, const Tile<T>&, Tile<T>&) {}
};

// The same with a last axis of rows, everywhere; gradients are stored.
template <class T>
struct RowWaves {
    static constexpr bool ELEMENTWISE = false;
    const T *a, *p, *q, *d;
    T* gradients;
    Sizes n;
    int feature = 0;
    Rows rows{};
    std::vector<Tile<T>> slots;  // [slots][3 waves + 1]

    RowWaves(const T* a, const T* p, const T* q, const T* d, T* gradients, const Sizes& n, int count)
        : a(a), p(p), q(q), d(d), gradients(gradients), n(n), slots(static_cast<size_t>(count) * (3 * n.waves + 1)) {}
    inline int64_t place(int j) const { return (static_cast<int64_t>(j) * n.features + feature) * n.rows; }
    inline void select(int i, const Rows& chosen) { feature = i; rows = chosen; }
    inline PerRow<T> waves(int slot) const {
        const Tile<T>* from = slots.data() + static_cast<size_t>(slot) * (3 * n.waves + 1);
        return {from, from + n.waves, from + 2 * n.waves, from + 3 * n.waves};
    }
    inline PerRow<T> load_waves(int j, int slot) {
        Tile<T>* to = slots.data() + static_cast<size_t>(slot) * (3 * n.waves + 1);
        for (int k = 0; k < n.waves; k++) {
            const int64_t at = place(j) * n.waves + k * n.rows;
            load(to[k], a + at, rows);
            load(to[n.waves + k], p + at, rows);
            load(to[2 * n.waves + k], q + at, rows);
            if (rows.count < LANES) FOR_LANES to[k][r] = r < rows.count ? to[k][r] : T(1);  // a divisor
        }
        load(to[3 * n.waves], d + place(j), rows);
        return waves(slot);
    }
    inline void affine(Tile<T>&, Tile<T>&) const {}
    inline void inverse_affine(Tile<T>&, const Tile<T>&, Tile<T>&) const {}
    inline void wave_gradient(int j, int k, const Tile<T>& of_a, const Tile<T>& of_p, const Tile<T>& of_q) {
        T* to = gradients + place(j) * (3 * n.waves + 1) + k * n.rows;
        store(to, of_a, rows);
        store(to + n.waves * n.rows, of_p, rows);
        store(to + 2 * n.waves * n.rows, of_q, rows);
    }
    inline void transformer_gradient(int j, const Tile<T>& of_d) {
        store(gradients + place(j) * (3 * n.waves + 1) + 3 * n.waves * n.rows, of_d, rows);
    }
    inline void affine_gradient(const Tile<T>&, const Tile<T>&, Tile<T>&) {}
};

// Unconstrained parameters: [features][2 + scales (3 waves + 1)][rows], of a feature d, s, then all frequencies, phases,
// weights and strengths; gradients likewise.
template <class T>
struct ConditionalWaves {
    static constexpr bool ELEMENTWISE = true;
    const T* parameters;
    T* gradients;
    Sizes n;
    int64_t size;  // parameters of a feature
    const T* from = nullptr;
    T* to = nullptr;
    Rows rows{};
    Tile<T> offset, half, scale, zero = {}, of_alpha = {};
    std::vector<Tile<T>> slots, along;  // [slots][7 waves + 1], [waves]

    ConditionalWaves(const T* parameters, T* gradients, const Sizes& n, int count)
        : parameters(parameters), gradients(gradients), n(n), size(2 + static_cast<int64_t>(n.scales) * (3 * n.waves + 1)),
          slots(static_cast<size_t>(count) * (7 * n.waves + 1)), along(n.waves) {}

    inline int64_t frequency(int j, int k) const { return (2 + static_cast<int64_t>(j) * n.waves + k) * n.rows; }
    inline int64_t phase(int j, int k) const { return frequency(j + n.scales, k); }
    inline int64_t weight(int j, int k) const { return frequency(j + 2 * n.scales, k); }
    inline int64_t strength(int j) const { return (2 + 3 * static_cast<int64_t>(n.scales) * n.waves + j) * n.rows; }

    inline void select(int i, const Rows& chosen) {
        from = parameters + i * size * n.rows;
        if (gradients) to = gradients + i * size * n.rows;
        rows = chosen;
        load(offset, from, rows);
        load(half, from + n.rows, rows);
        FOR_LANES { half[r] = hyperbolic_tangent(T(0.5) * half[r]); scale[r] = exponential(T(2) * half[r]); }
    }
    inline Tile<T>* slot(int index) { return slots.data() + static_cast<size_t>(index) * (7 * n.waves + 1); }
    inline PerRow<T> waves(int index) {
        const Tile<T>* s = slot(index);
        return {s, s + n.waves, s + 2 * n.waves, &zero};
    }
    inline PerRow<T> load_waves(int j, int index) {
        Tile<T> *a = slot(index), *p = a + n.waves, *q = p + n.waves, *share = q + n.waves, *sine = share + n.waves;
        Tile<T> *cosine = sine + n.waves, *free = cosine + n.waves, &alpha = *(free + n.waves), largest, total;
        load(alpha, from + strength(j), rows);
        FOR_LANES { alpha[r] = hyperbolic_tangent(alpha[r]); largest[r] = T(-INFINITY); total[r] = T(0); }
        for (int k = 0; k < n.waves; k++) {
            load(share[k], from + weight(j, k), rows);
            FOR_LANES largest[r] = share[k][r] > largest[r] ? share[k][r] : largest[r];
        }
        for (int k = 0; k < n.waves; k++)
            FOR_LANES { share[k][r] = exponential(share[k][r] - largest[r]); total[r] += share[k][r]; }
        for (int k = 0; k < n.waves; k++) {
            Tile<T> angle;
            load(angle, from + phase(j, k), rows);
            load(free[k], from + frequency(j, k), rows);
            FOR_LANES {
                share[k][r] /= total[r];
                T s, c;
                sin_cos(T(2) * angle[r], s, c);
                const T amplitude = T(ALPHA_MAX) * alpha[r] * share[k][r];
                sine[k][r] = s;
                cosine[k][r] = c;
                a[k][r] = softplus(free[k][r]) + T(FREQUENCY_MIN);
                p[k][r] = amplitude * c;
                q[k][r] = amplitude * s;
            }
        }
        return waves(index);
    }
    inline void affine(Tile<T>& x, Tile<T>& ladj) const {
        FOR_LANES { x[r] = x[r] * scale[r] + offset[r]; ladj[r] += T(2) * half[r]; }
    }
    inline void inverse_affine(Tile<T>& x, const Tile<T>& rest, Tile<T>& slope) const {
        FOR_LANES { x[r] = ((x[r] - offset[r]) + rest[r]) / scale[r]; slope[r] *= scale[r]; }
    }
    inline void wave_gradient(int j, int k, const Tile<T>& of_a, const Tile<T>& of_p, const Tile<T>& of_q) {
        const Tile<T>*s = slot(j), &p = s[n.waves + k], &q = s[2 * n.waves + k], &share = s[3 * n.waves + k];
        const Tile<T>&sine = s[4 * n.waves + k], &cosine = s[5 * n.waves + k], &free = s[6 * n.waves + k];
        Tile<T> of_frequency, of_phase;
        if (k == 0) of_alpha = {};
        FOR_LANES {
            of_frequency[r] = of_a[r] * sigmoid(free[r]);
            of_phase[r] = T(2) * (of_q[r] * p[r] - of_p[r] * q[r]);
            along[k][r] = of_p[r] * cosine[r] + of_q[r] * sine[r];
            of_alpha[r] += share[r] * along[k][r];
        }
        store(to + frequency(j, k), of_frequency, rows);
        store(to + phase(j, k), of_phase, rows);
    }
    inline void transformer_gradient(int j, const Tile<T>&) {
        const Tile<T>*share = slot(j) + 3 * n.waves, &alpha = slot(j)[7 * n.waves];
        Tile<T> gradient;
        for (int k = 0; k < n.waves; k++) {
            FOR_LANES gradient[r] = T(ALPHA_MAX) * alpha[r] * share[k][r] * (along[k][r] - of_alpha[r]);
            store(to + weight(j, k), gradient, rows);
        }
        FOR_LANES gradient[r] = of_alpha[r] * T(ALPHA_MAX) * (T(1) - alpha[r] * alpha[r]);
        store(to + strength(j), gradient, rows);
    }
    inline void affine_gradient(const Tile<T>& x, const Tile<T>& of_ladj, Tile<T>& grad) {
        Tile<T> of_scale;
        FOR_LANES of_scale[r] = (grad[r] * x[r] * scale[r] + of_ladj[r]) * (T(1) - half[r] * half[r]);
        store(to, grad, rows);
        store(to + n.rows, of_scale, rows);
        FOR_LANES grad[r] *= scale[r];
    }
};

// ---------------------------------------------------------------- kernels
//
// x, z: [features][rows]; ladj: [rows].

inline Rows tile_rows(int64_t start, int64_t end) { return {start, static_cast<int>(end - start < LANES ? end - start : LANES)}; }

template <class T, class Source>
void forward(Source source, const Sizes& n, const T* x, T* z, T* ladj, int64_t begin, int64_t end) {
    for (int64_t start = begin; start < end; start += LANES) {
        const Rows rows = tile_rows(start, end);
        Tile<T> total = {};
        for (int i = 0; i < n.features; i++) {
            Tile<T> now, rest = {}, rise, slope;
            load(now, x + i * n.rows, rows);
            source.select(i, rows);
            source.affine(now, total);
            for (int j = 0; j < n.scales; j++) {
                const auto waves = source.load_waves(j, 0);
                evaluate<false, false>(waves, n.waves, now, rise, slope);
                compensated_add(now, rest, rise, slope);
                FOR_LANES total[r] += logarithm(slope[r]);
            }
            store(z + i * n.rows, now, rows);
        }
        store(ladj, total, rows);
    }
}

// One pass through the stack stores the sines that the gradients are made of, and a second one, backwards, uses them.
template <class T, class Source>
void backward(Source source, const Sizes& n, const T* x, const T* grad_z, const T* grad_ladj, T* grad_x, int64_t begin, int64_t end) {
    const size_t scales = n.scales, width = n.waves;
    std::vector<Tile<T>> squares(scales * width), products(scales * width), inputs(scales), rises(scales), slopes(scales), curvatures(scales);
    for (int64_t start = begin; start < end; start += LANES) {
        const Rows rows = tile_rows(start, end);
        Tile<T> of_ladj, unused = {};
        load(of_ladj, grad_ladj, rows);
        for (int i = 0; i < n.features; i++) {
            Tile<T> original, now, rest = {}, grad;
            load(original, x + i * n.rows, rows);
            now = original;
            source.select(i, rows);
            source.affine(now, unused);
            for (size_t j = 0; j < scales; j++) {
                inputs[j] = now;
                evaluate<true, true>(source.load_waves(j, j), n.waves, now, rises[j], slopes[j], &curvatures[j], &squares[j * width],
                                     &products[j * width]);
                compensated_add(now, rest, rises[j], slopes[j]);
            }
            load(grad, grad_z + i * n.rows, rows);
            for (int j = n.scales - 1; j >= 0; j--) {
                const auto waves = source.waves(j);
                const Tile<T>&at = inputs[j], &slope = slopes[j];
                Tile<T> of_slope;
                FOR_LANES of_slope[r] = of_ladj[r] / slope[r];
                for (int k = 0; k < n.waves; k++) {
                    const Tile<T>&squares_k = squares[j * width + k], &products_k = products[j * width + k];
                    Tile<T> of_a, of_p, of_q;
                    FOR_LANES {
                        const T a = waves.a(k, r), p = waves.p(k, r), q = waves.q(k, r), inverse = T(1) / a;
                        const T square = squares_k[r], product = products_k[r], turn = T(1) - T(2) * square;
                        // The derivatives of the rise and of the slope with respect to u = a x.
                        const T bend = p * turn - T(2) * q * product, bow = T(2) * (q * turn + T(2) * p * product);
                        const T rise = (q * square - p * product) * inverse, of_value = grad[r] * inverse;
                        of_a[r] = of_slope[r] * at[r] * bow - of_value * (at[r] * bend + rise);
                        of_p[r] = -(of_value * product + of_slope[r] * turn);
                        of_q[r] = of_value * square + T(2) * of_slope[r] * product;
                    }
                    source.wave_gradient(j, k, of_a, of_p, of_q);
                }
                source.transformer_gradient(j, grad);
                FOR_LANES grad[r] = grad[r] * slope[r] + of_slope[r] * curvatures[j][r];
            }
            source.affine_gradient(original, of_ladj, grad);
            store(grad_x + i * n.rows, grad, rows);
        }
    }
}

// For a stack: ladj, iterations, residual, converged: [rows], the worst of all features and scales. For a conditional
// layer: [features][rows], and instead of the log-determinant the slope of the forward map.
template <class T, class Source>
void inverse(Source source, const Sizes& n, const T* z, T* x, T* ladj, int32_t* iterations, T* residual, uint8_t* converged, int limit,
             int64_t begin, int64_t end) {
    for (int64_t start = begin; start < end; start += LANES) {
        const Rows rows = tile_rows(start, end);
        Tile<T> total = {};
        Certificate<T> certificate;
        certificate.clear();
        for (int i = 0; i < n.features; i++) {
            Tile<T> now, rest = {};
            load(now, z + i * n.rows, rows);
            source.select(i, rows);
            if constexpr (Source::ELEMENTWISE) {
                certificate.clear();
                FOR_LANES total[r] = T(1);
            }
            for (int j = n.scales - 1; j >= 0; j--) {
                Solution<T> found;
                solve(source.load_waves(j, 0), n.waves, now, rest, rows.count, limit, found);
                if constexpr (Source::ELEMENTWISE) FOR_LANES total[r] *= found.slope[r];
                else FOR_LANES total[r] -= logarithm(found.slope[r]);
                certificate.add(found);
            }
            source.inverse_affine(now, rest, total);
            certificate.require_finite(now);  // the affine map may overflow
            store(x + i * n.rows, now, rows);
            if (!Source::ELEMENTWISE && i + 1 < n.features) continue;
            const int64_t at = Source::ELEMENTWISE ? i * n.rows : 0;
            store(ladj + at, total, rows);
            store(residual + at, certificate.residual, rows);
            for (int r = 0; r < rows.count; r++) {
                iterations[at + start + r] = static_cast<int32_t>(certificate.iterations[r]);
                converged[at + start + r] = certificate.converged[r] != 0;
            }
        }
    }
}

}  // namespace

// Sources are made anew by every thread, so that each has its own slots.
#define SIZES int features, int64_t rows, int scales, int waves
#define RANGE int64_t begin, int64_t end
#define KERNELS(T, NAME, SOURCE, PARAMETERS, ARGUMENTS)                                                                           \
    void NAME##_forward(const T* x, PARAMETERS, T* z, T* ladj, SIZES, RANGE) {                                                    \
        const Sizes n{features, rows, scales, waves};                                                                             \
        forward(SOURCE<T>(ARGUMENTS, nullptr, n, 1), n, x, z, ladj, begin, end);                                                  \
    }                                                                                                                             \
    void NAME##_backward(const T* x, PARAMETERS, const T* grad_z, const T* grad_ladj, T* grad_x, T* gradients, SIZES, RANGE) {    \
        const Sizes n{features, rows, scales, waves};                                                                             \
        backward(SOURCE<T>(ARGUMENTS, gradients, n, scales), n, x, grad_z, grad_ladj, grad_x, begin, end);                        \
    }                                                                                                                             \
    void NAME##_inverse(const T* z, PARAMETERS, T* x, T* ladj, int32_t* iterations, T* residual, uint8_t* converged, SIZES,       \
                        int limit, RANGE) {                                                                                       \
        const Sizes n{features, rows, scales, waves};                                                                             \
        inverse(SOURCE<T>(ARGUMENTS, nullptr, n, 1), n, z, x, ladj, iterations, residual, converged, limit, begin, end);          \
    }
#define WAVES(T) const T *a, const T *p, const T *q, const T *d
#define COMMA ,

extern "C" {
#define ALL_KERNELS(T)                                                              \
    KERNELS(T, shared_##T, SharedWaves, WAVES(T), a COMMA p COMMA q COMMA d)        \
    KERNELS(T, row_##T, RowWaves, WAVES(T), a COMMA p COMMA q COMMA d)              \
    KERNELS(T, conditional_##T, ConditionalWaves, const T* parameters, parameters)
ALL_KERNELS(float)
ALL_KERNELS(double)
}  // extern "C"
