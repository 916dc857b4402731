// Sinusoidal transformers on a CPU, in float32 and float64, feature-major, for compilers that vectorise loops.
//
// Rows are processed in tiles of LANES: every inner loop runs over a tile and has no branches. Formulas as in
// ops/waves.py. Threads share a batch: each call of a kernel works on some of the rows, with slots of its own.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
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

// A floating-point type, with the coefficients of its elementary functions, lowest power first. WHOLE is 2^MANTISSA, from
// where on every number is an integer; constants in parts are exact sums of numbers with few bits.
template <class T> struct Format;
template <> struct Format<float> {
    using Bits = uint32_t;
    using Flag = int32_t;  // as wide as a number, so that flags vectorise with numbers
    static constexpr Bits SQRT_HALF = 0x3f3504f3;
    static constexpr float LOG_SMALLEST = -87.33654f, EXP_MIN = -87.3f, EXP_MAX = 88.7f;
    static constexpr float LN2[] = {0.693359375f, -2.12194440e-4f}, HALF_PI[] = {1.5707964f, -4.371139e-08f, -1.7151245e-15f};
    static constexpr float SIN[] = {-1.6666654611e-1f, 8.3321608736e-3f, -1.9515295891e-4f};
    static constexpr float COS[] = {4.166664568298827e-2f, -1.388731625493765e-3f, 2.443315711809948e-5f};
    static constexpr float EXP[] = {1.0f}, EXP_DIVISOR[] = {2.0f, 1.6666625440e-1f, -2.7667332906e-3f};
    static constexpr float LOG[] = {6.6666662693e-1f, 4.0000972152e-1f, 2.8498786688e-1f, 2.4279078841e-1f};
};
template <> struct Format<double> {
    using Bits = uint64_t;
    using Flag = int64_t;
    static constexpr Bits SQRT_HALF = 0x3fe6a09e667f3bcd;
    static constexpr double LOG_SMALLEST = -708.3964185322641, EXP_MIN = -708.3, EXP_MAX = 709.7;
    static constexpr double LN2[] = {6.93147180369123816490e-1, 1.90821492927058770002e-10};
    static constexpr double HALF_PI[] = {1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33};
    static constexpr double SIN[] = {-1.66666666666666324348e-1, 8.33333333332248946124e-3, -1.98412698298579493134e-4,
                                     2.75573137070700676789e-6, -2.50507602534068634195e-8, 1.58969099521155010221e-10};
    static constexpr double COS[] = {4.16666666666666019037e-2, -1.38888888888741095749e-3, 2.48015872894767294178e-5,
                                     -2.75573143513906633035e-7, 2.08757232129817482790e-9, -1.13596475577881948265e-11};
    static constexpr double EXP[] = {9.99999999999999999910e-1, 3.02994407707441961300e-2, 1.26177193074810590878e-4};
    static constexpr double EXP_DIVISOR[] = {2.00000000000000000005, 2.27265548208155028766e-1, 2.52448340349684104192e-3, 3.00198505138664455042e-6};
    static constexpr double LOG[] = {6.666666666666735130e-1, 3.999999999940941908e-1, 2.857142874366239149e-1, 2.222219843214978396e-1,
                                     1.818357216161805012e-1, 1.531383769920937332e-1, 1.479819860511658591e-1};
};
template <class T> using Bits = typename Format<T>::Bits;
template <class T> using Flag = typename Format<T>::Flag;
template <class T> constexpr int MANTISSA = std::numeric_limits<T>::digits - 1;
template <class T> constexpr int BIAS = std::numeric_limits<T>::max_exponent - 1;
template <class T> constexpr T WHOLE = T(1) / std::numeric_limits<T>::epsilon();

template <class T> INLINE Bits<T> to_bits(T x) { Bits<T> bits; std::memcpy(&bits, &x, sizeof(T)); return bits; }
template <class T> INLINE T from_bits(Bits<T> bits) { T x; std::memcpy(&x, &bits, sizeof(T)); return x; }

template <int FIRST = 0, class T, int COUNT>
INLINE T polynomial(T x, const T (&coefficients)[COUNT]) {
    if constexpr (FIRST == COUNT - 1) return coefficients[FIRST];
    else return coefficients[FIRST] + x * polynomial<FIRST + 1>(x, coefficients);
}

template <class T>
INLINE void sin_cos(T u, T& sine, T& cosine) {
    using F = Format<T>;
    const T quarter = std::nearbyint(u * T(0.63661977236758134308));
    T r = u - quarter * F::HALF_PI[0];
    r = r - quarter * F::HALF_PI[1];
    r = r - quarter * F::HALF_PI[2];
    // Where u has lost its phase, r is noise: hold it in range.
    r = r < T(-0.78539816339744828) ? T(-0.78539816339744828) : r;
    r = r > T(0.78539816339744828) ? T(0.78539816339744828) : r;
    // 0 to 3, from the lowest bits of a sum above WHOLE: also defined for NaN, which has no integer value.
    const Bits<T> turn = to_bits(quarter - T(4) * std::floor(quarter * T(0.25)) + WHOLE<T>);
    const T s = r * r, low = r + r * s * polynomial(s, F::SIN), high = T(1) - T(0.5) * s + s * s * polynomial(s, F::COS);
    const bool odd = turn & 1;
    const T a = odd ? high : low, b = odd ? low : high;
    sine = turn & 2 ? -a : a;
    cosine = (turn + 1) & 2 ? -b : b;
}

// 2^n for a whole n, from the lowest bits of a sum above WHOLE.
template <class T>
INLINE T power_of_two(T n) {
    return from_bits<T>((to_bits(n + T(1.5) * WHOLE<T>) + BIAS<T>) << MANTISSA<T>);
}

// e^x, or e^x - 1 for x <= 0, by 2^n times 1 + t; 0 and infinity beyond the range of normal numbers.
template <bool MINUS_ONE = false, class T>
INLINE T exponential(T x) {
    using F = Format<T>;
    const T held = x < F::EXP_MIN ? F::EXP_MIN : x > F::EXP_MAX ? F::EXP_MAX : x, n = std::nearbyint(held * T(1.44269504088896340736));
    const T r = held - n * F::LN2[0] - n * F::LN2[1], s = r * r, p = r * polynomial(s, F::EXP), q = polynomial(s, F::EXP_DIVISOR);
    const T t = T(2) * p / (q - p);
    if constexpr (MINUS_ONE) return x == x ? t * power_of_two(n) + (power_of_two(n) - T(1)) : x;
    const T half = std::floor(T(0.5) * n);  // in two factors, because the largest power is infinite
    const T found = (T(1) + t) * power_of_two(half) * power_of_two(n - half);
    return x < F::EXP_MIN ? T(0) : x > F::EXP_MAX ? T(INFINITY) : x == x ? found : x;
}

// The logarithm of a positive normal number: log (1 + m) = 2 artanh s with s = m / (2 + m), after its exponent.
template <class T>
INLINE T logarithm(T x) {
    using F = Format<T>;
    const Bits<T> shifted = to_bits(x) - F::SQRT_HALF, one = Bits<T>(1) << MANTISSA<T>;
    const T e = from_bits<T>(((shifted + BIAS<T> * one) >> MANTISSA<T>) | to_bits(WHOLE<T>)) - (WHOLE<T> + T(BIAS<T>));
    const T m = from_bits<T>((shifted & (one - 1)) + F::SQRT_HALF) - T(1);
    const T s = m / (T(2) + m), z = s * s, half = T(0.5) * m * m, p = z * polynomial(z, F::LOG);
    const T found = e * F::LN2[0] - ((half - (s * (half + p) + e * F::LN2[1])) - m);
    return x > std::numeric_limits<T>::min() ? found : x == T(0) ? T(-INFINITY) : x > T(0) ? F::LOG_SMALLEST : T(NAN);
}

template <class T>
INLINE T hyperbolic_tangent(T x) {
    const T e = exponential<true>(T(-2) * std::fabs(x)), found = -e / (T(2) + e);
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

// Of a call, as in library.py: rows `begin` to `end` of a batch, and the most evaluations of an inverse.
struct Sizes {
    int64_t features, rows, scales, waves, limit, begin, end;
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

// A value of each row of a tile, or one for all.
template <class T> INLINE T lane(const Tile<T>& values, int r) { return values[r]; }
template <class T> INLINE T lane(T value, int) { return value; }

// The waves of one transformer, as tiles, or as numbers that all rows share; numbers are read once, before a loop.
template <class Values>
struct Waves {
    using Read = std::conditional_t<std::is_arithmetic_v<Values>, Values, const Values&>;
    const Values *a, *p, *q, *d;
    int64_t count;
};

// The difference tau(x) - x and the slope, and for CURVATURE the second derivative; for GRADIENTS also sin^2 u and
// sin u cos u. The waves are summed before x is added: added to x one by one, each would be rounded as x is.
template <bool CURVATURE, bool GRADIENTS, class T, class Values>
inline void evaluate(const Waves<Values>& waves, const Tile<T>& x, Tile<T>& rise, Tile<T>& slope, Tile<T>* curvature = nullptr,
                     Tile<T>* squares = nullptr, Tile<T>* products = nullptr) {
    const typename Waves<Values>::Read shift = *waves.d;
    FOR_LANES { rise[r] = lane(shift, r); slope[r] = T(1); }
    if constexpr (CURVATURE) FOR_LANES (*curvature)[r] = T(0);
    for (int k = 0; k < waves.count; k++) {
        const typename Waves<Values>::Read as = waves.a[k], ps = waves.p[k], qs = waves.q[k];
        FOR_LANES {
            const T a = lane(as, r), p = lane(ps, r), q = lane(qs, r);
            T s, c;
            sin_cos(a * x[r], s, c);
            const T square = s * s, product = s * c, turn = T(1) - T(2) * square;
            rise[r] += (q * square - p * product) / a;
            slope[r] -= p * turn - T(2) * q * product;
            if constexpr (CURVATURE) (*curvature)[r] += T(2) * a * (q * turn + T(2) * p * product);
            if constexpr (GRADIENTS) { squares[k][r] = square; products[k][r] = product; }
        }
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

    inline void clear() {
        FOR_LANES { slope[r] = T(1); residual[r] = T(0); iterations[r] = 0; converged[r] = 1; }
    }
    // The product of the slopes, and the worst of the rest, of two solutions one after the other.
    inline void add(const Solution<T>& found) {
        FOR_LANES {
            const T gap = found.residual[r] == found.residual[r] ? found.residual[r] : T(INFINITY);
            slope[r] *= found.slope[r];
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

// Solve tau(x) = target for a tile; `x` and `rest`, which is far smaller, hold the targets, and then the solutions.
// Only the first `count` rows matter.
template <class T, class Values>
inline void solve(const Waves<Values>& waves, Tile<T>& x, Tile<T>& rest, int count, int64_t limit, Solution<T>& found) {
    constexpr T epsilon = std::numeric_limits<T>::epsilon();
    Tile<T> target, target_rest, low, high, lowest, last, rise, slopes, curvature, centre, radius, tilt, amplitude;
    Tile<Flag<T>> finished;
    const typename Waves<Values>::Read shift = *waves.d;
    FOR_LANES { centre[r] = lane(shift, r); radius[r] = T(0); tilt[r] = T(1); amplitude[r] = T(0); }
    for (int k = 0; k < waves.count; k++) {
        const typename Waves<Values>::Read as = waves.a[k], ps = waves.p[k], qs = waves.q[k];
        FOR_LANES {
            const T a = lane(as, r), p = lane(ps, r), q = lane(qs, r);
            const T length = std::sqrt(p * p + q * q), half = T(0.5) / a, ratio = a * a / T(SLOW * SLOW);
            centre[r] += half * q;
            radius[r] += half * length;
            tilt[r] -= p / (T(1) + ratio * ratio);
            amplitude[r] += length;
        }
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
        x[r] = (goal - lane(shift, r)) / tilt[r];
        finished[r] = r >= count;
    }
    found.clear();
    for (int evaluations = 1;; evaluations++) {
        evaluate<true, false>(waves, x, rise, slopes, &curvature);
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

// ---------------------------------------------------------------- sources of waves
//
// A source hands out the waves of transformer j of the current feature and rows, and takes their gradients. Waves that
// differ by row are stored in slots, one per transformer if all of them are needed together.

// A stack. Parameters: a, p, q, [scales][features][waves][columns], and d, [scales][features][columns], with a column per
// row, or one for all rows; gradients: [scales][features][3 waves + 1][columns], added to if rows share them.
template <class T, class Values>
struct Stack {
    static constexpr bool CONDITIONAL = false, PER_ROW = !std::is_same_v<Values, T>;
    const T* const* parameters;
    T* gradients;
    Sizes n;
    int feature = 0;
    Rows rows{};
    std::vector<Tile<T>> tiles;  // [slots][3 waves + 1]

    Stack(const T* const* parameters, T* gradients, const Sizes& n, int slots)
        : parameters(parameters), gradients(gradients), n(n), tiles(PER_ROW ? slots * (3 * n.waves + 1) : 0) {}
    inline int64_t place(int j, int64_t size, int64_t k) const {
        return ((j * n.features + feature) * size + k) * (PER_ROW ? n.rows : 1);
    }
    inline const T* wave(int part, int j, int k) const { return parameters[part] + place(j, n.waves, k); }
    inline const T* shift(int j) const { return parameters[3] + place(j, 1, 0); }
    inline void select(int i, const Rows& chosen) { feature = i; rows = chosen; }
    inline Waves<Values> waves(int j) const {
        if constexpr (PER_ROW) {
            const Tile<T>* from = &tiles[j * (3 * n.waves + 1)];
            return {from, from + n.waves, from + 2 * n.waves, from + 3 * n.waves, n.waves};
        } else return {wave(0, j, 0), wave(1, j, 0), wave(2, j, 0), shift(j), n.waves};
    }
    inline Waves<Values> load_waves(int j, int slot) {
        if constexpr (!PER_ROW) return waves(j);
        Tile<T>* to = &tiles[slot * (3 * n.waves + 1)];
        for (int k = 0; k < n.waves; k++) {
            load(to[k], wave(0, j, k), rows);
            load(to[n.waves + k], wave(1, j, k), rows);
            load(to[2 * n.waves + k], wave(2, j, k), rows);
            if (rows.count < LANES) FOR_LANES to[k][r] = r < rows.count ? to[k][r] : T(1);  // a divisor
        }
        load(to[3 * n.waves], shift(j), rows);
        return waves(slot);
    }
    inline void gradient(int j, int64_t k, const Tile<T>& of) {
        T *to = gradients + place(j, 3 * n.waves + 1, k), sum = 0;
        if constexpr (PER_ROW) return store(to, of, rows);
#pragma omp simd reduction(+ : sum)
        for (int r = 0; r < LANES; r++) sum += of[r];
        *to += sum;
    }
    inline void wave_gradient(int j, int k, const Tile<T>& of_a, const Tile<T>& of_p, const Tile<T>& of_q) {
        gradient(j, k, of_a);
        gradient(j, n.waves + k, of_p);
        gradient(j, 2 * n.waves + k, of_q);
    }
    inline void transformer_gradient(int j, const Tile<T>& of_d) { gradient(j, 3 * n.waves, of_d); }
};

// A conditional layer: an affine map, then waves. Unconstrained parameters: [features][2 + scales (3 waves + 1)][rows], of a
// feature d, s, then all frequencies, phases, weights and strengths; gradients likewise.
template <class T>
struct Conditional {
    static constexpr bool CONDITIONAL = true;
    const T* parameters;
    T* gradients;
    Sizes n;
    int64_t size, width;  // parameters of a feature, tiles of a slot: a, p, q, shares, sines, cosines, frequencies, alpha
    const T* from = nullptr;
    T* to = nullptr;
    Rows rows{};
    Tile<T> offset, half, scale, zero = {}, of_alpha = {};
    std::vector<Tile<T>> tiles, along;  // [slots][width], [waves]

    Conditional(const T* const* parameters, T* gradients, const Sizes& n, int slots)
        : parameters(*parameters), gradients(gradients), n(n), size(2 + n.scales * (3 * n.waves + 1)),
          width(7 * n.waves + 1), tiles(slots * width), along(n.waves) {}

    inline int64_t frequency(int j, int k) const { return (2 + j * n.waves + k) * n.rows; }
    inline int64_t phase(int j, int k) const { return frequency(j + n.scales, k); }
    inline int64_t weight(int j, int k) const { return frequency(j + 2 * n.scales, k); }
    inline int64_t strength(int j) const { return (2 + 3 * n.scales * n.waves + j) * n.rows; }

    inline void select(int i, const Rows& chosen) {
        from = parameters + i * size * n.rows;
        if (gradients) to = gradients + i * size * n.rows;
        rows = chosen;
        load(offset, from, rows);
        load(half, from + n.rows, rows);
        FOR_LANES { half[r] = hyperbolic_tangent(T(0.5) * half[r]); scale[r] = exponential(T(2) * half[r]); }
    }
    inline Waves<Tile<T>> waves(int slot) const {
        const Tile<T>* from = &tiles[slot * width];
        return {from, from + n.waves, from + 2 * n.waves, &zero, n.waves};
    }
    inline Waves<Tile<T>> load_waves(int j, int slot) {
        Tile<T> *a = &tiles[slot * width], *p = a + n.waves, *q = p + n.waves, *share = q + n.waves, *sine = share + n.waves;
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
        return waves(slot);
    }
    inline void affine(Tile<T>& x, Tile<T>& ladj) const {
        FOR_LANES { x[r] = x[r] * scale[r] + offset[r]; ladj[r] += T(2) * half[r]; }
    }
    inline void inverse_affine(Tile<T>& x, const Tile<T>& rest, Tile<T>& slope) const {
        FOR_LANES { x[r] = ((x[r] - offset[r]) + rest[r]) / scale[r]; slope[r] *= scale[r]; }
    }
    inline void wave_gradient(int j, int k, const Tile<T>& of_a, const Tile<T>& of_p, const Tile<T>& of_q) {
        const Tile<T>*s = &tiles[j * width + k], &p = s[n.waves], &q = s[2 * n.waves], &share = s[3 * n.waves];
        const Tile<T>&sine = s[4 * n.waves], &cosine = s[5 * n.waves], &free = s[6 * n.waves];
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
        const Tile<T>*share = &tiles[j * width + 3 * n.waves], &alpha = share[4 * n.waves];
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
void forward(Source source, const Sizes& n, const T* x, T* z, T* ladj) {
    for (int64_t start = n.begin; start < n.end; start += LANES) {
        const Rows rows = tile_rows(start, n.end);
        Tile<T> total = {};
        for (int i = 0; i < n.features; i++) {
            Tile<T> now, rest = {}, rise, slope;
            load(now, x + i * n.rows, rows);
            source.select(i, rows);
            if constexpr (Source::CONDITIONAL) source.affine(now, total);
            for (int j = 0; j < n.scales; j++) {
                const auto waves = source.load_waves(j, 0);
                evaluate<false, false>(waves, now, rise, slope);
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
void backward(Source source, const Sizes& n, const T* x, const T* grad_z, const T* grad_ladj, T* grad_x) {
    const size_t scales = n.scales, width = n.waves;
    std::vector<Tile<T>> squares(scales * width), products(scales * width), inputs(scales), slopes(scales), curvatures(scales);
    for (int64_t start = n.begin; start < n.end; start += LANES) {
        const Rows rows = tile_rows(start, n.end);
        Tile<T> of_ladj, unused = {};
        load(of_ladj, grad_ladj, rows);
        for (int i = 0; i < n.features; i++) {
            Tile<T> original, now, rest = {}, rise, grad;
            load(original, x + i * n.rows, rows);
            now = original;
            source.select(i, rows);
            if constexpr (Source::CONDITIONAL) source.affine(now, unused);
            for (size_t j = 0; j < scales; j++) {
                inputs[j] = now;
                evaluate<true, true>(source.load_waves(j, j), now, rise, slopes[j], &curvatures[j], &squares[j * width], &products[j * width]);
                compensated_add(now, rest, rise, slopes[j]);
            }
            load(grad, grad_z + i * n.rows, rows);
            for (int j = n.scales - 1; j >= 0; j--) {
                auto waves = source.waves(j);
                const Tile<T>&at = inputs[j], &slope = slopes[j];
                Tile<T> of_slope;
                FOR_LANES of_slope[r] = of_ladj[r] / slope[r];
                for (int k = 0; k < n.waves; k++) {
                    const Tile<T>&squares_k = squares[j * width + k], &products_k = products[j * width + k];
                    const typename decltype(waves)::Read as = waves.a[k], ps = waves.p[k], qs = waves.q[k];
                    Tile<T> of_a, of_p, of_q;
                    FOR_LANES {
                        const T a = lane(as, r), p = lane(ps, r), q = lane(qs, r), inverse = T(1) / a;
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
            if constexpr (Source::CONDITIONAL) source.affine_gradient(original, of_ladj, grad);
            store(grad_x + i * n.rows, grad, rows);
        }
    }
}

// For a stack: ladj, iterations, residual, converged: [rows], the worst of all features and scales. For a conditional
// layer: [features][rows], and instead of the log-determinant the slope of the forward map.
template <class T, class Source>
void inverse(Source source, const Sizes& n, const T* z, T* x, T* ladj, int32_t* iterations, T* residual, uint8_t* converged) {
    for (int64_t start = n.begin; start < n.end; start += LANES) {
        const Rows rows = tile_rows(start, n.end);
        Tile<T> total = {};
        Solution<T> worst, found;
        worst.clear();
        for (int i = 0; i < n.features; i++) {
            Tile<T> now, rest = {};
            load(now, z + i * n.rows, rows);
            source.select(i, rows);
            if constexpr (Source::CONDITIONAL) worst.clear();
            for (int j = n.scales - 1; j >= 0; j--) {
                solve(source.load_waves(j, 0), now, rest, rows.count, n.limit, found);
                if constexpr (!Source::CONDITIONAL) FOR_LANES total[r] -= logarithm(found.slope[r]);
                worst.add(found);
            }
            if constexpr (Source::CONDITIONAL) source.inverse_affine(now, rest, worst.slope);
            worst.require_finite(now);  // the affine map may overflow
            store(x + i * n.rows, now, rows);
            if (!Source::CONDITIONAL && i + 1 < n.features) continue;
            const int64_t at = Source::CONDITIONAL ? i * n.rows : 0;
            store(ladj + at, Source::CONDITIONAL ? worst.slope : total, rows);
            store(residual + at, worst.residual, rows);
            for (int r = 0; r < rows.count; r++) {
                iterations[at + start + r] = static_cast<int32_t>(worst.iterations[r]);
                converged[at + start + r] = worst.converged[r] != 0;
            }
        }
    }
}

}  // namespace

#define KERNELS(NAME, T, ...)                                                                                                       \
    void NAME##_##T##_forward(const T* x, const T* const* parameters, T* z, T* ladj, const Sizes& n) {                              \
        forward(__VA_ARGS__(parameters, nullptr, n, 1), n, x, z, ladj);                                                             \
    }                                                                                                                               \
    void NAME##_##T##_backward(const T* x, const T* const* parameters, const T* grad_z, const T* grad_ladj, T* grad_x, T* gradients, \
                               const Sizes& n) {                                                                                    \
        backward(__VA_ARGS__(parameters, gradients, n, n.scales), n, x, grad_z, grad_ladj, grad_x);                                 \
    }                                                                                                                               \
    void NAME##_##T##_inverse(const T* z, const T* const* parameters, T* x, T* ladj, int32_t* iterations, T* residual,              \
                              uint8_t* converged, const Sizes& n) {                                                                 \
        inverse(__VA_ARGS__(parameters, nullptr, n, 1), n, z, x, ladj, iterations, residual, converged);                            \
    }

extern "C" {
KERNELS(shared, float, Stack<float, float>)
KERNELS(shared, double, Stack<double, double>)
KERNELS(row, float, Stack<float, Tile<float>>)
KERNELS(row, double, Stack<double, Tile<double>>)
KERNELS(conditional, float, Conditional<float>)
KERNELS(conditional, double, Conditional<double>)
}  // extern "C"
