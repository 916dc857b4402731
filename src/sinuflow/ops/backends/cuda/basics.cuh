// What all kernels share: tensor cores, asynchronous copies, splitting of float32 into TF32.
#define INLINE __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#ifndef EMULATED
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) float name[]
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)

// max(x, 0) that propagates NaN.
INLINE float rectified(float x) {
    float result;
    asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(result) : "f"(x));
    return result;
}
INLINE void mma_tf32(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
                   "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}
// The same in float64, rounded to nearest.
INLINE void mma_f64(double (&c)[4], const double (&a)[4], const double (&b)[2]) {
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else  // by halves of the rows and columns
    UNROLL for (int part = 0; part < 4; part++)
        asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1},{%2},{%3},{%0,%1};"
            : "+d"(c[part % 2 * 2]), "+d"(c[part % 2 * 2 + 1]) : "d"(a[part]), "d"(b[part / 2]));
#endif
}
// Asynchronous copies into shared memory; groups complete in order.
INLINE void copy_async(float* to, const float4* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}
INLINE void copy_async(float* to, const float* from) {  // a single float
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}
INLINE void copy_or_zero(float* to, const float4* from, bool copies) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from),
                 "r"(copies ? 16 : 0) : "memory");
}
INLINE void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Barrier for a pair of neighbouring warps.
INLINE void wait_for_partner() {
    asm volatile("bar.sync %0, 64;" ::"r"(1 + static_cast<int>(threadIdx.x) / 64) : "memory");
}
// Prefetch into the L2 cache.
INLINE void prefetch(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }
// Streaming loads and stores, past the L1 cache, of as many words as travel together.
template <int WORDS> INLINE void read_once(unsigned (&to)[WORDS], const unsigned* from) {
    static_assert(WORDS == 1 || WORDS == 2 || WORDS % 4 == 0, "no vector type");
    if constexpr (WORDS % 4 == 0)
        UNROLL for (int w = 0; w < WORDS; w += 4) reinterpret_cast<uint4&>(to[w]) = __ldcg(reinterpret_cast<const uint4*>(from + w));
    else if constexpr (WORDS == 2)
        reinterpret_cast<uint2&>(to) = __ldcg(reinterpret_cast<const uint2*>(from));
    else
        to[0] = __ldcg(from);
}
template <int WORDS> INLINE void write_once(unsigned* to, const unsigned (&from)[WORDS]) {
    if constexpr (WORDS % 4 == 0)
        UNROLL for (int w = 0; w < WORDS; w += 4) __stcs(reinterpret_cast<uint4*>(to + w), reinterpret_cast<const uint4&>(from[w]));
    else if constexpr (WORDS == 2)
        __stcs(reinterpret_cast<uint2*>(to), reinterpret_cast<const uint2&>(from));
    else
        __stcs(to, from[0]);
}
// Two non-negative numbers in half precision, saturated; and back.
INLINE unsigned in_halves(float one, float two) {
    unsigned both;
    asm("{.reg .f32 a, b; min.NaN.f32 a, %1, 0f477FE000; min.NaN.f32 b, %2, 0f477FE000; cvt.rn.f16x2.f32 %0, b, a;}" : "=r"(both) : "f"(one), "f"(two));
    return both;
}
INLINE float2 of_halves(unsigned both) {
    float2 pair;
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}" : "=f"(pair.x), "=f"(pair.y) : "r"(both));
    return pair;
}
template <int LATEST>  // until at most LATEST groups are pending
INLINE void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LATEST) : "memory");
}
#endif
INLINE void new_mma_tf32(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
    c[0] = c[1] = c[2] = c[3] = 0.0f;
    mma_tf32(c, a, b);
}
__host__ __device__ constexpr int padded(int n, int m) { return (n + m - 1) / m * m; }

INLINE void wait_for_all() {
    end_group();
    wait_for_groups<0>();
}

INLINE void split(float x, float& high, float& low) {
    high = __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
    low = x - high;
}

// Rounds to the 11 bits of TF32; NaN, which has all bits set on GPUs, must not overflow to zero.
INLINE float to_tf32(float x) { return x == x ? __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u) : x; }

// The bits that tensor cores truncate.
INLINE float tf32_remainder(float x) { return x - __uint_as_float(__float_as_uint(x) & 0xffffe000u); }

// Reductions over groups of LANES neighbouring lanes; all lanes receive the result.
template <int LANES> INLINE float lane_sum(float value) {
    UNROLL for (int distance = LANES / 2; distance; distance /= 2) value += __shfl_xor_sync(~0u, value, distance);
    return value;
}
template <int LANES> INLINE float lane_max(float value) {
    UNROLL for (int distance = LANES / 2; distance; distance /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, distance));
    return value;
}
