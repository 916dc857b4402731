// Products with masked matrices, by tensor cores, for ROWS rows of the batch.
//
// A matrix is cut into tiles of 16 by 16, and the tiles that the mask empties are left out. The
// tiles that are left, row by row, are shared out to the warps in equal runs. So every warp has a stream of
// tiles of its own, in the order in which it needs them through the whole flow, and asks for them well ahead:
// they travel while the warp computes, waits for others or does something else (see streams.py). As every lane
// needs other numbers of a tile, they go to registers directly.
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
__device__ __forceinline__ void copy_or_zero(float* to, const float4* from, bool copies) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from),
                 "r"(copies ? 16 : 0) : "memory");
}
// Numbers that nobody else needs: they must not drive others out of the cache.
__device__ __forceinline__ float4 load_once(const float4* from) {
    float4 found;
    asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(found.x), "=f"(found.y), "=f"(found.z), "=f"(found.w) : "l"(from));
    return found;
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

// A warp's tiles, one after the other; every lane asks for what it needs itself. The queue runs ahead of what is
// used, also beyond the end: what comes after the last warp's stream must be memory, and is never used.
struct Stream {
    struct Tile {
        float4 left, right;
    };
    const float4* next;
    Tile queue[SLOTS];
    int first;  // of the queue

    __device__ __forceinline__ void begin(const float* weights, const int* starts) {
        const long before = static_cast<long>(__ldg(starts + threadIdx.x / 32)) * (TILE_NUMBERS / 4);
        next = reinterpret_cast<const float4*>(weights) + before + threadIdx.x % 32;
        first = 0;
#pragma unroll
        for (int i = 0; i < SLOTS; i++) fetch(queue[i]);
    }
    // Add `count` tiles to the sums; `from` is the lane's share of the operand.
    __device__ __forceinline__ void add(int count, const float* from, Sums& sums) {
        // The places in the queue are registers, so each has its own code.
#pragma unroll 1
        for (;;) {
#pragma unroll
            for (int i = 0; i < SLOTS; i++) {
                if (first != i) continue;
                first = (i + 1) % SLOTS;
                Fragment fragment;
                fragment.load(from);
                sums.add(queue[i].left, fragment);
                fragment.load(from + COLUMNS * 32 * PAIR);
                sums.add(queue[i].right, fragment);
                fetch(queue[i]);
                from += 2 * COLUMNS * 32 * PAIR;
                if (--count == 0) return;
            }
        }
    }

   private:
    __device__ __forceinline__ void fetch(Tile& tile) {
        tile.left = load_once(next);
        tile.right = load_once(next + 32);
        next += TILE_NUMBERS / 4;
    }
};

// ---------------------------------------------------------------- who does what

// Tables in shared memory. Rows of tiles, in the order in which they are shared out: {tiles before it, and with
// it, its first column of tiles, unused}. For every stage, which is one product, and every warp, its run: {the
// row of tiles where it begins, its first part, the first tile, the end}. For every stage, its first row of tiles;
// and for every row of tiles, in their natural order, where the parts of its sums are: first << 16 | how many.
struct __align__(16) Run {
    int tile, part, at, stop;
};

struct Plan {
    const int4* tiles;
    const Run* runs;
    const int *stages, *places;

    __device__ __forceinline__ Run run(int stage) const { return runs[stage * WARPS + threadIdx.x / 32]; }
    __device__ __forceinline__ const int* places_of(int stage) const { return places + stages[stage]; }
};

__device__ __forceinline__ Plan load_plan(const int* __restrict__ tables, int stages, int tiles, float* room) {
    int* to = reinterpret_cast<int*>(room);
    for (int e = threadIdx.x; e < 5 * tiles + (4 * WARPS + 1) * stages; e += THREADS) to[e] = __ldg(tables + e);
    const int* rest = to + 4 * tiles + 4 * WARPS * stages;
    return {reinterpret_cast<const int4*>(to), reinterpret_cast<const Run*>(to + 4 * tiles), rest, rest + stages};
}

// Parts are stored as [part][COLUMNS][16][8].
__device__ __forceinline__ void multiply(const Plan& plan, Run run, Stream& stream, const float* operand, float* parts) {
    const int lane = threadIdx.x % 32;
    float* to = parts + run.part * COLUMNS * 128 + lane / 4 * 8 + 2 * (lane % 4);
#pragma unroll 1
    for (; run.at < run.stop; run.tile++) {
        const int4 row = plan.tiles[run.tile];
        const int upto = min(run.stop, row.y);
        Sums sums;
        sums.clear();
        stream.add(upto - run.at, operand + (row.z + run.at - row.x) * (2 * COLUMNS * 32 * PAIR) + lane * PAIR, sums);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            *reinterpret_cast<float2*>(to + j * 128) = make_float2(sums.total(j, 0), sums.total(j, 1));
            *reinterpret_cast<float2*>(to + j * 128 + 64) = make_float2(sums.total(j, 2), sums.total(j, 3));
        }
        to += COLUMNS * 128;
        run.at = upto;
    }
}

// Where the parts of a number of the result are: `row` is counted from the first row of tiles of the stage.
struct Parts {
    float* at;
    int count;

    __device__ __forceinline__ Parts(int place, float* parts, int row, int n) {
        at = parts + ((place >> 16) * COLUMNS + n / 8) * 128 + row % 16 * 8 + n % 8;
        count = place & 0xffff;
    }
    __device__ __forceinline__ Parts(const Plan& plan, int stage, float* parts, int row, int n)
        : Parts(plan.places_of(stage)[row / 16], parts, row, n) {}

    __device__ __forceinline__ float total() const {
        float sum = 0.0f;
#pragma unroll 4
        for (int i = 0; i < count; i++) sum += at[i * COLUMNS * 128];
        return sum;
    }
    // The same by all lanes of a group together.
    template <int LANES>
    __device__ __forceinline__ float shared_total() const {
        float sum = 0.0f;
#pragma unroll 4
        for (int i = threadIdx.x % LANES; i < count; i += LANES) sum += at[i * COLUMNS * 128];
        return lane_sum<LANES>(sum);
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
