// Products with masked matrices, by tensor cores, for ROWS rows of the batch.
//
// A matrix is cut into tiles of 16 by 16, and the tiles that the mask empties are left out. The
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
__host__ __device__ constexpr int pairs_of(int numbers) { return numbers / 8 * COLUMNS * 32; }
template <int NUMBERS, class Use>
__device__ __forceinline__ void each_pair(Use use) {
#pragma unroll 2
    for (int e = threadIdx.x; e < pairs_of(NUMBERS); e += THREADS) use(e, e / 32 / COLUMNS * 8 + e % 4, e / 32 % COLUMNS * 8 + e % 32 / 4);
}

// A lane's share of the operand for one product of eight numbers.
struct Fragment {
    float high[COLUMNS][2], low[COLUMNS][2];

    __device__ __forceinline__ void load(const float* at) {
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            if (SPLIT) {
                const float4 parts = *reinterpret_cast<const float4*>(at + j * 32 * PAIR);
                high[j][0] = parts.x, high[j][1] = parts.y, low[j][0] = parts.z, low[j][1] = parts.w;
            } else {
                const float2 pair = *reinterpret_cast<const float2*>(at + j * 32 * PAIR);
                split(pair.x, high[j][0], low[j][0]);
                split(pair.y, high[j][1], low[j][1]);
            }
        }
    }
};

// ---------------------------------------------------------------- weights

constexpr int TILE_NUMBERS = 256;
constexpr int RING = WARPS * SLOTS * TILE_NUMBERS;
static_assert((SLOTS & (SLOTS - 1)) == 0, "places in the ring are found by a mask");

// A warp's tiles, one after the other; every lane fetches what it needs itself. It runs ahead of what is taken,
// also beyond the end: what comes after the last warp's stream must be memory, and is never used.
struct Stream {
    const float4* next;
    float* ring;
    int slot;

    __device__ __forceinline__ void begin(const float* weights, const int* starts, float* rings) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        next = reinterpret_cast<const float4*>(weights) + static_cast<long>(__ldg(starts + warp)) * (TILE_NUMBERS / 4) + lane;
        ring = rings + warp * SLOTS * TILE_NUMBERS + lane * 4;
        slot = 0;
        for (int i = 0; i < SLOTS - 1; i++) fetch(i * TILE_NUMBERS);
    }
    __device__ __forceinline__ void take(float4& left, float4& right) {
        constexpr int MASK = SLOTS * TILE_NUMBERS - 1;
        wait_for_groups<SLOTS - 2>();
        left = *reinterpret_cast<const float4*>(ring + slot);
        right = *reinterpret_cast<const float4*>(ring + slot + 128);
        fetch((slot + (SLOTS - 1) * TILE_NUMBERS) & MASK);  // where the tile was that was taken before this one
        slot = (slot + TILE_NUMBERS) & MASK;
    }

   private:
    __device__ __forceinline__ void fetch(int to) {
        copy_async(ring + to, next);
        copy_async(ring + to + 128, next + 32);
        next += TILE_NUMBERS / 4;
        end_group();
    }
};

// What the tensor cores drop of a number: they take 11 bits.
__device__ __forceinline__ float dropped(float x) { return x - __uint_as_float(__float_as_uint(x) & 0xffffe000u); }

// Sums of one row of tiles by all rows of the batch. Separate ones keep the tensor cores from waiting.
struct Sums {
    static constexpr int KINDS = COLUMNS == 1 ? 2 : 1;
    float sum[COLUMNS][4], cross[KINDS][COLUMNS][4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) sum[j][c] = cross[0][j][c] = cross[KINDS - 1][j][c] = 0.0f;
    }
    // Eight columns of a tile.
    __device__ __forceinline__ void add(const float4& weight, const Fragment& of) {
        const float above[4] = {weight.x, weight.y, weight.z, weight.w};
        const float below[4] = {dropped(weight.x), dropped(weight.y), dropped(weight.z), dropped(weight.w)};
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) mma_tf32(sum[j], above, of.high[j]);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) mma_tf32(cross[0][j], above, of.low[j]);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) mma_tf32(cross[KINDS - 1][j], below, of.high[j]);
    }
    __device__ __forceinline__ float total(int j, int c) const {
        return sum[j][c] + (KINDS == 1 ? cross[0][j][c] : cross[0][j][c] + cross[KINDS - 1][j][c]);
    }
};

// ---------------------------------------------------------------- who does what

// Tables in shared memory. A stage is one product: {its first row of tiles, its first part, tiles to a warp,
// tiles in all}; a row of tiles: {tiles before it, and with it, its first column of tiles, first part << 16 | parts};
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
        const float* from = operand + (row.z + at - row.x) * (2 * COLUMNS * 32 * PAIR) + lane * PAIR;
        Sums sums;
        sums.clear();
#pragma unroll 1
        for (; at < upto; at++) {
            float4 left, right;
            stream.take(left, right);
            Fragment fragment;
            fragment.load(from);
            sums.add(left, fragment);
            fragment.load(from + COLUMNS * 32 * PAIR);
            sums.add(right, fragment);
            from += 2 * COLUMNS * 32 * PAIR;
        }
        float* to = parts + (all.y + tile - all.x + warp) * COLUMNS * 128 + lane / 4 * 8 + 2 * (lane % 4);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            *reinterpret_cast<float2*>(to + j * 128) = make_float2(sums.total(j, 0), sums.total(j, 1));
            *reinterpret_cast<float2*>(to + j * 128 + 64) = make_float2(sums.total(j, 2), sums.total(j, 3));
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
    __device__ __forceinline__ float total() const {
        float sum = 0.0f;
#pragma unroll 4
        for (int i = 0; i < count; i++) sum += at[i * COLUMNS * 128];
        return sum;
    }
    // This number, and the one four rows further on.
    __device__ __forceinline__ float2 totals() const {
        float2 sum = count ? make_float2(at[0], at[32]) : make_float2(0.0f, 0.0f);
#pragma unroll 1
        for (int i = 1; i < count; i++) {
            sum.x += at[i * COLUMNS * 128];
            sum.y += at[i * COLUMNS * 128 + 32];
        }
        return sum;
    }
};
