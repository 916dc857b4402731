// The network with float64 sums by tensor cores, on GPUs where these are fast.
//
// Hidden units are rounded to float32 when a layer is complete; pixels are not rounded. Float64 sums are next to exact
// in any order: the inverse, which sums in another order, computes the same units, and so the same shift and scale. Its
// error comes from the rounding of z alone.

template <bool CHECKS>
struct Float64Arithmetic {
    using Number = double;
    static constexpr int LOOK_ONCE = ALL;
    float largest = 0.0f;  // of all hidden units, for the check

    INLINE double seen(double pixel) const { return pixel; }
    INLINE float unit(double sum, bool exists) {
        const float result = static_cast<float>(sum);
        if (CHECKS && exists) largest = fmaxf(largest, result);
        return result;
    }
    INLINE float active(double sum) { return rectified(unit(sum, true)); }
    template <int TALL, int STEPS, int COUNT, class Load>
    INLINE void multiply(double (&sum)[COUNT][TALL][4], const float* weights, Load load) const {
        ::multiply<TALL, STEPS, FLOAT64_PRODUCTS>(sum, weights, load);
    }
    template <class Any> INLINE void keep(int, const Tiles&, const Any&) const {}
};

template <bool CHECKS> INLINE void forward_float64(const ForwardArguments<double>& p) {
    DYNAMIC_SHARED(memory);
    float *wide = memory + 2 * padded(CHANNELS * X_PLANE, 2), *narrow = wide + WIDE * WIDE_PLANE;
    int* far = reinterpret_cast<int*>(narrow + NARROW * NARROW_PLANE);
    Float64Arithmetic<CHECKS> arithmetic;
    forward_tensor_cores(arithmetic, wide, narrow, reinterpret_cast<double*>(memory), far, p);
    if (CHECKS) store_largest(p.largest, arithmetic.largest);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) pixel_float64_forward(const ForwardArguments<double> p) { forward_float64<false>(p); }
extern "C" __global__ void __launch_bounds__(THREADS, 1) pixel_float64_check(const ForwardArguments<double> p) { forward_float64<true>(p); }
