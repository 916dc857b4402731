// Outputs for a batch of images, and the activations for the backward pass; with TF32 by tensor cores.

struct Tf32Arithmetic {
    using Number = float;
    static constexpr int LOOK_ONCE = AT_ONCE;
    Activation* saved;  // of this image

    INLINE float seen(float pixel) const { return to_tf32(pixel); }
    INLINE float unit(float sum, bool) const { return to_tf32(sum); }
    INLINE float active(float sum) const { return to_tf32(rectified(sum)); }
    template <int TALL, int STEPS, int COUNT, class Load>
    INLINE void multiply(float (&sum)[COUNT][TALL][4], const float* weights, Load load) const {
        ::multiply<TALL, STEPS, TF32_PRODUCTS>(sum, weights, load);
    }
    template <int TALL> INLINE void keep(int maps, const Tiles& tiles, const float (&sum)[AT_ONCE][TALL][4]) const {
        ::keep(saved + maps * SAVED_PLANE, tiles, sum);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) pixel_learn(const ForwardArguments<float> p) {
#if TF32
    DYNAMIC_SHARED(memory);
    float *narrow = memory + WIDE * WIDE_PLANE, *x = narrow + NARROW * NARROW_PLANE;
    Tf32Arithmetic arithmetic{p.saved + static_cast<long>(blockIdx.x) * SAVED_MAPS * SAVED_PLANE};
    forward_tensor_cores(arithmetic, memory, narrow, x, reinterpret_cast<int*>(x + CHANNELS * X_PLANE), p);
#else
    forward_float32<LEARN>(p);
#endif
}
