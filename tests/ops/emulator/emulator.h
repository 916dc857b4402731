// Runs CUDA C++ on a CPU, one thread of a block after the other, so that kernels can be tested without a GPU.
//
// Every CUDA thread is a fiber: it runs until it waits for the others (a barrier, a shuffle, a matrix
// product of its warp), and the next one goes on. Slow and exact, for small shapes.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))

struct Dim3 { int x = 1, y = 1, z = 1; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };

namespace emulator {
constexpr std::size_t STACK = 1 << 18, GUARD = 1 << 14;

struct Barrier { int arrived = 0; long generation = 0; };
struct Warp { Barrier barrier; float values[32]; uint32_t words[32]; float a[32][4], b[32][2]; double fine_a[32][4], fine_b[32][2]; };
struct Copy { float* to; const void* from; int bytes; };
struct Fiber {
    ucontext_t context;  // for its beginning
    jmp_buf place;       // and for going on: unlike swapcontext, no call to the system
    std::unique_ptr<char[]> stack{new char[STACK]};  // kept for the next block
    bool begun = false, done = false;
    std::vector<Copy> open;                 // copies that no group has yet
    std::deque<std::vector<Copy>> groups;   // and those that travel
};

inline std::vector<Fiber> fibers;
inline std::vector<Warp> warps;
inline Barrier block, partners[16];
inline jmp_buf scheduler;
inline int current = 0, threads = 0;
inline std::minstd_rand random{1};
inline void (*entry)(const void*);
inline const void* arguments;
inline char* dynamic_shared = nullptr;

inline void yield() {
    if (!_setjmp(fibers[current].place)) _longjmp(scheduler, 1);
}
__attribute__((noinline)) inline void go_on() {  // with the current fiber, until it yields
    if (_setjmp(scheduler)) return;
    Fiber& fiber = fibers[current];
    if (fiber.begun) _longjmp(fiber.place, 1);
    fiber.begun = true;
    setcontext(&fiber.context);
}

inline void wait(Barrier& barrier, int size) {
    const long mine = barrier.generation;
    if (++barrier.arrived == size) {
        barrier.arrived = 0;
        barrier.generation++;
    }
    while (barrier.generation == mine) yield();
}

inline Warp& my_warp() { return warps[current / 32]; }
inline int my_lane() { return current % 32; }
inline void warp_wait() { wait(my_warp().barrier, std::min(32, threads - current / 32 * 32)); }
inline void run_fiber() {
    entry(arguments);
    fibers[current].done = true;
    yield();
}

inline Dim3 block_index, block_size, grid_size;

inline void launch(void (*kernel)(const void*), const void* args, Dim3 grid, int size, std::size_t shared) {
    entry = kernel;
    arguments = args;
    threads = size;
    block_size = {size, 1, 1};
    grid_size = grid;
    for (int z = 0; z < grid.z; z++)
        for (int y = 0; y < grid.y; y++)
            for (int x = 0; x < grid.x; x++) {
                block_index = {x, y, z};
                // No numbers: nobody may rely on them. Behind what was asked for, nothing may change.
                std::free(dynamic_shared);
                if (posix_memalign(reinterpret_cast<void**>(&dynamic_shared), 128, shared + GUARD)) std::abort();
                std::memset(dynamic_shared, 0xff, shared + GUARD);
                block = {};
                for (auto& barrier : partners) barrier = {};
                warps.assign((size + 31) / 32, Warp{});
                fibers.resize(size);
                for (auto& fiber : fibers) {
                    fiber.begun = fiber.done = false;
                    fiber.open.clear();
                    fiber.groups.clear();
                    getcontext(&fiber.context);
                    fiber.context.uc_stack.ss_sp = fiber.stack.get();
                    fiber.context.uc_stack.ss_size = STACK;
                    fiber.context.uc_link = nullptr;
                    makecontext(&fiber.context, run_fiber, 0);
                }
                std::vector<int> order(size);
                for (int i = 0; i < size; i++) order[i] = i;
                std::vector<bool> asleep(warps.size());
                int rounds = 0;  // until other warps fall asleep
                for (bool left = true; left;) {
                    left = false;
                    // In another order every time, and warps ahead of others: who forgets a barrier shall notice.
                    std::shuffle(order.begin(), order.end(), random);
                    if (--rounds < 0) {
                        rounds = random() % 40;
                        const bool some = random() % 4 == 0;
                        for (std::size_t w = 0; w < asleep.size(); w++) asleep[w] = some && random() % 2;
                    }
                    for (int thread : order) {
                        current = thread;
                        if (asleep[thread / 32]) {
                            left = left || !fibers[current].done;
                            continue;
                        }
                        if (!fibers[current].done) {
                            left = true;
                            go_on();
                        }
                    }
                }
                for (std::size_t i = shared; i < shared + GUARD; i++)
                    if (dynamic_shared[i] != static_cast<char>(0xff)) {
                        std::fprintf(stderr, "a kernel wrote behind its %zu bytes of shared memory\n", shared);
                        std::abort();
                    }
            }
}

inline float truncated(double x) {  // sums of tensor cores are not rounded
    const float near = static_cast<float>(x);
    return std::fabs(near) > std::fabs(x) ? std::nextafter(near, 0.0f) : near;
}

inline float tf32(float x) {  // what the hardware does with the low bits: it drops them
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    bits &= 0xffffe000u;
    std::memcpy(&x, &bits, 4);
    return x;
}
}  // namespace emulator

struct ThreadIndex {
    struct { operator int() const { return emulator::current; } } x;
    int y = 0, z = 0;
};
inline ThreadIndex threadIdx;
#define blockIdx emulator::block_index
#define blockDim emulator::block_size
#define gridDim emulator::grid_size

inline void __syncthreads() { emulator::wait(emulator::block, emulator::threads); }
inline void wait_for_partner() { emulator::wait(emulator::partners[emulator::current / 64], 64); }
inline void __syncwarp(unsigned = ~0u) { emulator::warp_wait(); }

template <class T>
inline T __shfl_sync(unsigned, T value, int source, int width = 32) {
    auto& warp = emulator::my_warp();
    const int lane = emulator::my_lane();
    warp.values[lane] = value;
    emulator::warp_wait();
    const T found = warp.values[lane - lane % width + (source & (width - 1))];
    emulator::warp_wait();
    return found;
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int distance) {
    return __shfl_sync(mask, value, emulator::my_lane() ^ distance);
}
inline int __any_sync(unsigned, int predicate) {
    auto& warp = emulator::my_warp();
    warp.words[emulator::my_lane()] = predicate != 0;
    emulator::warp_wait();
    int any = 0;
    for (uint32_t word : warp.words) any |= word;
    emulator::warp_wait();
    return any;
}

inline float __uint_as_float(uint32_t bits) { float x; std::memcpy(&x, &bits, 4); return x; }
inline uint32_t __float_as_uint(float x) { uint32_t bits; std::memcpy(&bits, &x, 4); return bits; }
inline float __ldg(const float* p) { return *p; }
inline float2 __ldg(const float2* p) { return *p; }
inline float4 __ldg(const float4* p) { return *p; }
inline int __ldg(const int* p) { return *p; }
inline unsigned __ldg(const unsigned* p) { return *p; }
inline void prefetch(const void*) {}
template <int WORDS>
inline void must_be_aligned(const unsigned* at) {
    if (reinterpret_cast<uintptr_t>(at) % (4 * std::min(WORDS, 4))) std::abort();
}
template <int WORDS>
inline void read_once(unsigned (&to)[WORDS], const unsigned* from) {
    must_be_aligned<WORDS>(from);
    std::memcpy(to, from, sizeof to);
}
template <int WORDS>
inline void write_once(unsigned* to, const unsigned (&from)[WORDS]) {
    must_be_aligned<WORDS>(to);
    std::memcpy(to, from, sizeof from);
}
inline unsigned in_half(float x) {  // what is not negative, rounded to nearest
    if (x != x) return 0x7fff;
    x = std::min(x, 65504.0f);
    if (x < 0x1p-14f) return static_cast<unsigned>(std::nearbyint(x * 0x1p24f));
    const int exponent = std::ilogb(x);
    return ((exponent + 15) << 10) + static_cast<unsigned>(std::nearbyint(std::ldexp(x, 10 - exponent))) - 1024;
}
inline float of_half(unsigned bits) {
    const int exponent = bits >> 10, fraction = bits & 1023;
    if (exponent == 31) return std::nanf("");
    return exponent ? std::ldexp(1024.0f + fraction, exponent - 25) : std::ldexp(static_cast<float>(fraction), -24);
}
inline unsigned in_halves(float one, float two) { return in_half(one) | in_half(two) << 16; }
inline float2 of_halves(unsigned both) { return {of_half(both & 0xffff), of_half(both >> 16)}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
using std::max;
using std::min;

inline float rectified(float x) { return x < 0.0f ? 0.0f : x; }

// Asynchronous copies arrive as late as they may.
inline void copy_async(float* to, const float4* from) {
    if (reinterpret_cast<uintptr_t>(to) % 16 || reinterpret_cast<uintptr_t>(from) % 16) std::abort();
    emulator::fibers[emulator::current].open.push_back({to, from, 16});
}
inline void copy_async(float* to, const float* from) { emulator::fibers[emulator::current].open.push_back({to, from, 4}); }
inline void copy_or_zero(float* to, const float4* from, bool copies) {
    static const float4 zeros{};
    copy_async(to, copies ? from : &zeros);
}
inline void end_group() {
    auto& fiber = emulator::fibers[emulator::current];
    fiber.groups.push_back(std::move(fiber.open));
    fiber.open.clear();
}
template <int LATEST>
inline void wait_for_groups() {
    auto& fiber = emulator::fibers[emulator::current];
    for (; fiber.groups.size() > LATEST; fiber.groups.pop_front())
        for (const auto& copy : fiber.groups.front()) std::memcpy(copy.to, copy.from, copy.bytes);
}

// A warp's product of a 16 x 8 by an 8 x 8 matrix of tf32 numbers, in the layout of the PTX manual.
inline void mma_tf32(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
    auto& warp = emulator::my_warp();
    const int lane = emulator::my_lane(), group = lane / 4, member = lane % 4;
    for (int i = 0; i < 4; i++) warp.a[lane][i] = emulator::tf32(a[i]);
    for (int i = 0; i < 2; i++) warp.b[lane][i] = emulator::tf32(b[i]);
    emulator::warp_wait();
    auto left = [&](int row, int k) { return warp.a[row % 8 * 4 + k % 4][row / 8 + 2 * (k / 4)]; };
    auto right = [&](int k, int column) { return warp.b[column * 4 + k % 4][k / 4]; };
    for (int i = 0; i < 4; i++) {
        const int row = group + 8 * (i / 2), column = 2 * member + i % 2;
        double sum = c[i];
        for (int k = 0; k < 8; k++) sum += static_cast<double>(left(row, k)) * right(k, column);
        c[i] = emulator::truncated(sum);
    }
    emulator::warp_wait();
}

// The same in double precision.
inline void mma_f64(double (&c)[4], const double (&a)[4], const double (&b)[2]) {
    auto& warp = emulator::my_warp();
    const int lane = emulator::my_lane(), group = lane / 4, member = lane % 4;
    for (int i = 0; i < 4; i++) warp.fine_a[lane][i] = a[i];
    for (int i = 0; i < 2; i++) warp.fine_b[lane][i] = b[i];
    emulator::warp_wait();
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 8; k++)
            c[i] = std::fma(warp.fine_a[group * 4 + k % 4][i / 2 + 2 * (k / 4)], warp.fine_b[(2 * member + i % 2) * 4 + k % 4][k / 4], c[i]);
    emulator::warp_wait();
}

#define EMULATED 1
#define DYNAMIC_SHARED(name) float* name = reinterpret_cast<float*>(emulator::dynamic_shared)
