// Products with masked matrices, by tensor cores, for ROWS rows of the batch.
//
// A matrix is cut into tiles of 16 rows by 8 columns, and the tiles that the mask empties are left out. The
// tiles that are left, row by row, are shared out to the warps in equal runs. So every warp has a stream of
// tiles of its own, in the order in which it needs them through the whole flow, and asks for them well ahead:
// they travel while the warp computes, waits for others or does something else (see streams.py).
//
// The other operand, activations, lies in shared memory. Each number is the sum of two tf32 numbers, and
// three of the four products of the parts are added: that keeps the precision of float32.
//
// As a run may begin and end inside a row of tiles, sums come in parts; who uses them adds the parts up.

#ifndef EMULATED
__device__ __forceinline__ void mma_tf32(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
                   "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}
// Copies of 16 bytes into shared memory that go on while the thread does; they end in the order of their groups.
__device__ __forceinline__ void copy_async(float* to, const float4* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}
__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LATEST>  // all but so many groups have arrived
__device__ __forceinline__ void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LATEST) : "memory");
}
#endif
__device__ __forceinline__ void wait_for_all() {
    end_group();
    wait_for_groups<0>();
}

__device__ __forceinline__ void split(float x, float& high, float& low) {
    high = __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
    low = x - high;
}

// ---------------------------------------------------------------- activations

// An operand is stored as the warps want it: for every eight numbers of a layer and every eight rows of the
// batch, lane 4 r + c has numbers c and c + 4 of row r; with SPLIT, both high parts and then both low parts.
constexpr int PAIR = SPLIT ? 4 : 2;
__host__ __device__ constexpr int operand_size(int numbers) { return numbers / 8 * COLUMNS * 32 * PAIR; }

__device__ __forceinline__ void store_pair(float* operand, int place, float first, float second) {
    if (SPLIT) {
        float4 parts;
        split(first, parts.x, parts.z);
        split(second, parts.y, parts.w);
        reinterpret_cast<float4*>(operand)[place] = parts;
    } else {
        reinterpret_cast<float2*>(operand)[place] = make_float2(first, second);
    }
}

__device__ __forceinline__ void store_one(float* operand, int number, int n, float value) {
    float* at = operand + ((number / 8 * COLUMNS + n / 8) * 32 + n % 8 * 4 + number % 4) * PAIR + number % 8 / 4;
    if (SPLIT)
        split(value, at[0], at[2]);
    else
        at[0] = value;
}

// Every thread its pairs of numbers: `use` gets the place of a pair, its first number, and the row of the batch.
template <class Use>
__device__ __forceinline__ void each_pair(int numbers, Use use) {
    for (int e = threadIdx.x; e < numbers / 8 * COLUMNS * 32; e += THREADS)
        use(e, e / 32 / COLUMNS * 8 + e % 4, e / 32 % COLUMNS * 8 + e % 32 / 4);
}

// A lane's share of the operand for one product.
struct Fragment {
    float high[COLUMNS][2], low[COLUMNS][2];

    __device__ __forceinline__ void load(const float* operand, int k) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            const int place = (k * COLUMNS + j) * 32 + lane;
            if (SPLIT) {
                const float4 parts = reinterpret_cast<const float4*>(operand)[place];
                high[j][0] = parts.x, high[j][1] = parts.y, low[j][0] = parts.z, low[j][1] = parts.w;
            } else {
                const float2 pair = reinterpret_cast<const float2*>(operand)[place];
                high[j][0] = pair.x, high[j][1] = pair.y;
            }
        }
    }
    __device__ __forceinline__ void prepare() {
        if (SPLIT) return;
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            split(high[j][0], high[j][0], low[j][0]);
            split(high[j][1], high[j][1], low[j][1]);
        }
    }
};

// ---------------------------------------------------------------- weights

constexpr int RING = WARPS * SLOTS * 128;

// A warp's tiles, one after the other; every lane fetches what it needs itself.
struct Stream {
    const float4 *next, *end;
    float* ring;
    int used;
    float4 ready;

    __device__ __forceinline__ void begin(const float* weights, const int* starts, float* rings) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        next = reinterpret_cast<const float4*>(weights) + static_cast<long>(__ldg(starts + warp)) * 32 + lane;
        end = reinterpret_cast<const float4*>(weights) + static_cast<long>(__ldg(starts + warp + 1)) * 32 + lane;
        ring = rings + warp * SLOTS * 128 + lane * 4;
        for (used = 0; used < SLOTS - 1; used++) fetch(used);
        used = 0;
        take();
    }
    __device__ __forceinline__ float4 take() {
        const float4 now = ready;
        wait_for_groups<SLOTS - 2>();
        ready = *reinterpret_cast<const float4*>(ring + used % SLOTS * 128);
        fetch(used + SLOTS - 1);  // where the tile was that was taken before this one
        used++;
        return now;
    }

   private:
    __device__ __forceinline__ void fetch(int slot) {
        if (next < end) copy_async(ring + slot % SLOTS * 128, next);
        next += 32;
        end_group();
    }
};

// ---------------------------------------------------------------- who does what

// Tables in shared memory. A stage is one product: {its first row of tiles, how many, tiles to a warp, tiles
// in all}; a row of tiles: {tiles before it, and with it, its first column of tiles, first part << 16 | parts};
// and for every stage and warp the row of tiles where its run begins.
struct Plan {
    const int4 *stages, *tiles;
    const int* starts;
};

__device__ __forceinline__ Plan load_plan(const int* __restrict__ tables, int stages, int tiles, float* room) {
    int* to = reinterpret_cast<int*>(room);
    for (int e = threadIdx.x; e < 4 * (stages + tiles) + stages * WARPS; e += THREADS) to[e] = __ldg(tables + e);
    const int4* at = reinterpret_cast<const int4*>(room);
    return {at, at + stages, reinterpret_cast<const int*>(at + stages + tiles)};
}

// This warp's share of a product. Parts are stored as [part][COLUMNS][16][8].
__device__ __forceinline__ void multiply(const Plan& plan, int stage, Stream& stream, const float* operand, float* parts) {
    const int4 all = plan.stages[stage];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int at = warp * all.z;
    const int stop = min(at + all.z, all.w);
    if (at >= stop) return;
    for (int tile = plan.starts[stage * WARPS + warp]; at < stop; tile++) {
        const int4 row = plan.tiles[tile];
        const int upto = min(stop, row.y);
        int k = row.z + at - row.x;
        float sum[COLUMNS][4] = {}, cross[COLUMNS][4] = {};
        Fragment next;
        next.load(operand, k);
#pragma unroll 1
        for (; at < upto; at++, k++) {
            Fragment now = next;
            const float4 weight = stream.take();
            if (at + 1 < upto) next.load(operand, k + 1);
            now.prepare();
            float above[4], below[4];
            split(weight.x, above[0], below[0]);
            split(weight.y, above[1], below[1]);
            split(weight.z, above[2], below[2]);
            split(weight.w, above[3], below[3]);
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) mma_tf32(sum[j], above, now.high[j]);
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) mma_tf32(cross[j], above, now.low[j]);
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) mma_tf32(cross[j], below, now.high[j]);
        }
        float* to = parts + (tile - all.x + warp) * COLUMNS * 128 + lane / 4 * 8 + 2 * (lane % 4);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            *reinterpret_cast<float2*>(to + j * 128) = make_float2(sum[j][0] + cross[j][0], sum[j][1] + cross[j][1]);
            *reinterpret_cast<float2*>(to + j * 128 + 64) = make_float2(sum[j][2] + cross[j][2], sum[j][3] + cross[j][3]);
        }
    }
}

// Where the parts of a number of the result are: `row` is counted from the stage's first row of tiles.
struct Parts {
    float* at;
    int count;

    __device__ __forceinline__ Parts(const Plan& plan, int stage, float* parts, int row, int n) {
        const int where = plan.tiles[plan.stages[stage].x + row / 16].w;
        at = parts + ((where >> 16) * COLUMNS + n / 8) * 128 + row % 16 * 8 + n % 8;
        count = where & 0xffff;
    }
    // The sum of the parts of the number that is so many rows further on, in the same row of tiles.
    __device__ __forceinline__ float total(int further = 0) const {
        float sum = 0.0f;
        for (int i = 0; i < count; i++) sum += at[i * COLUMNS * 128 + 8 * further];
        return sum;
    }
};
