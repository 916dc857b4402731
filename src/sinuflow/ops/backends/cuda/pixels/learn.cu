// What a network tells of a batch of images, and all that the gradients need: by tensor cores, if eleven bits of every
// number are enough.

struct RoughWay {
    using Number = float;
    static constexpr int LOOK_ONCE = AT_ONCE;
    Kept* kept;  // of this image

    __device__ __forceinline__ float seen(float pixel) const { return rounded(pixel); }
    __device__ __forceinline__ float unit(float sum, bool) const { return rounded(sum); }
    __device__ __forceinline__ float active(float sum) const { return rounded(rectified(sum)); }
    template <int TALL, int STEPS, int COUNT, class Load>
    __device__ __forceinline__ void multiply(float (&sum)[COUNT][TALL][4], const float* weights, Load load) const {
        ::multiply<TALL, STEPS, ROUGH_ONES>(sum, weights, load);
    }
    template <int TALL>
    __device__ __forceinline__ void keep(int maps, const Tiles& tiles, const float (&sum)[AT_ONCE][TALL][4]) const {
        ::keep(kept + maps * KEPT_PLANE, tiles, sum);
    }
};

__device__ __forceinline__ void shift_roughly(const PixelForwardArguments& p) {
    DYNAMIC_SHARED(memory);
    float *narrow = memory + WIDE * WIDE_PLANE, *x = narrow + NARROW * NARROW_PLANE;
    RoughWay way{p.kept + static_cast<long>(blockIdx.x) * KEPT_MAPS * KEPT_PLANE};
    walk(way, Maps<float>{memory, narrow, x, reinterpret_cast<int*>(x + CHANNELS * X_PLANE)}, p);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) pixel_learn(const PixelForwardArguments p) {
#if ROUGH
    shift_roughly(p);
#else
    shift_exactly<LEARN>(p);
#endif
}
