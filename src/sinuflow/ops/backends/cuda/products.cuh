// Masked matrix products by tensor cores, for ROWS rows of the batch.
//
// Matrices are cut into tiles of 16 by 16; tiles that the mask empties are omitted, the others assigned to warps. A
// warp reads its tiles as one stream, in order of use through the whole flow, and prefetches them asynchronously (see
// streams.py).
//
// The other operand, activations, is in shared memory. Each value is split into two TF32 numbers, and three of the four
// products are summed, which keeps the precision of float32.
//
// If there are many rows of tiles, each belongs to one warp. Otherwise several warps share a row, and the consumer adds
// their partial sums.

// ---------------------------------------------------------------- activations

// Operand layout: for every eight units and every eight rows of the batch, lane 4 r + c holds units c and c + 4 of row
// r; with SPLIT, each as its high and low part. Lanes are swizzled to avoid bank conflicts.
constexpr int PAIR = SPLIT ? 4 : 2;
constexpr int STEP = COLUMNS * 32 * PAIR;  // from eight units to the next eight
__host__ __device__ constexpr int operand_size(int numbers) { return numbers / 8 * STEP; }
INLINE int place_of(int lane) { return lane ^ (lane >> 1 & 4); }

// Where a unit of a row is stored; its parts follow each other.
INLINE int operand_place(unsigned number, unsigned n) {
    return (number / 8 * COLUMNS + n / 8) * (32 * PAIR) + place_of(n % 8 * 4 + number % 4) * PAIR + number % 8 / 4 * (PAIR / 2);
}
INLINE void store_one(float* operand, unsigned number, unsigned n, float value) {
    float* at = operand + operand_place(number, n);
    if (SPLIT) {
        float2 parts;
        split(value, parts.x, parts.y);
        *reinterpret_cast<float2*>(at) = parts;
    } else {
        *at = value;
    }
}
// The stored value; the sum of its parts is exact.
INLINE float load_one(const float* operand, unsigned number, unsigned n) {
    const float* at = operand + operand_place(number, n);
    return SPLIT ? at[0] + at[1] : at[0];
}

// A lane's fragment of the operand for a product of eight units, optionally rectified; `at` points to its first pair.
template <bool RECTIFY>
struct Fragment {
    float high[COLUMNS][2], low[COLUMNS][2];

    INLINE void load(const float* at) {
        UNROLL for (int j = 0; j < COLUMNS; j++) {
            if (SPLIT) {
                const float4 parts = *reinterpret_cast<const float4*>(at + j * 32 * PAIR);
                high[j][0] = parts.x, low[j][0] = parts.y, high[j][1] = parts.z, low[j][1] = parts.w;
                UNROLL for (int h = 0; h < (RECTIFY ? 2 : 0); h++) {
                    if (high[j][h] < 0.0f) low[j][h] = 0.0f;
                    high[j][h] = rectified(high[j][h]);
                }
            } else {
                const float2 pair = *reinterpret_cast<const float2*>(at + j * 32 * PAIR);
                split(RECTIFY ? rectified(pair.x) : pair.x, high[j][0], low[j][0]);
                split(RECTIFY ? rectified(pair.y) : pair.y, high[j][1], low[j][1]);
            }
        }
    }
};

// ---------------------------------------------------------------- weights

constexpr int TILE_SIZE = 256;

// Sums of one row of tiles. Tensor cores truncate when they accumulate, which long sums would show: so the sum over
// each tile is added to the total in float32, while the next tile is computed. The smaller products with low parts are
// accumulated by the tensor cores, in separate sums for parallelism.
struct Sums {
    static constexpr int KINDS = COLUMNS == 1 ? 2 : 1;
    float sum[COLUMNS][4] = {}, fresh[COLUMNS][4] = {}, cross[KINDS][COLUMNS][4] = {};

    // Half of a tile, eight columns.
    template <bool FIRST, class Operand> INLINE void add(const float4& weight, const Operand& of) {
        const float above[4] = {weight.x, weight.y, weight.z, weight.w};
        const float below[4] = {tf32_remainder(weight.x), tf32_remainder(weight.y), tf32_remainder(weight.z), tf32_remainder(weight.w)};
        UNROLL for (int j = 0; j < COLUMNS; j++) {
            if (FIRST) {
                UNROLL for (int c = 0; c < 4; c++) sum[j][c] += fresh[j][c];
                new_mma_tf32(fresh[j], above, of.high[j]);
            } else {
                mma_tf32(fresh[j], above, of.high[j]);
            }
        }
        UNROLL for (int j = 0; j < COLUMNS; j++) mma_tf32(cross[0][j], above, of.low[j]);
        UNROLL for (int j = 0; j < COLUMNS; j++) mma_tf32(cross[KINDS - 1][j], below, of.high[j]);
    }
    // Call `use` for every element of the result, if the sums are complete.
    template <class Use> INLINE void each(int matrix, int tile, Use use) const {
        const int lane = threadIdx.x % 32;
        UNROLL for (int j = 0; j < COLUMNS; j++)
            UNROLL for (int c = 0; c < 4; c++) use(matrix, tile * 16 + lane / 4 + 8 * (c / 2), 8 * j + 2 * (lane % 4) + c % 2, 4 * j + c, total(j, c));
    }
    INLINE float total(int j, int c) const {
        return sum[j][c] + fresh[j][c] + (KINDS == 1 ? cross[0][j][c] : cross[0][j][c] + cross[KINDS - 1][j][c]);
    }
};

constexpr int RING = WARPS * SLOTS * TILE_SIZE;

// A warp's stream of tiles; every lane fetches its own values. It runs ahead of their use, also beyond the end: memory
// after the last stream must exist, and is not used.
struct Stream {
    const float4* next;
    float* ring;
    int slot, last;  // offsets of the next tile, and of the one before

    // Begins after `skipped` networks.
    INLINE void begin(const float* weights, const int* starts, float* rings, int skipped = 0) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, start = __ldg(starts + warp);
        const long before = start + static_cast<long>(skipped) * ((__ldg(starts + warp + 1) - start) / NETWORKS);
        next = reinterpret_cast<const float4*>(weights) + before * (TILE_SIZE / 4) + lane;
        ring = rings + warp * SLOTS * TILE_SIZE + lane * 4;
        slot = 0, last = (SLOTS - 1) * TILE_SIZE;
        for (int i = 0; i < SLOTS - 1; i++) fetch(i * TILE_SIZE);
    }
    // Add `count` tiles to the sums; `from` is the lane's part of the operand.
    template <bool RECTIFY> INLINE void add(int count, const float* from, Sums& sums) {
        NO_UNROLL for (; count > 0; count--) {
            wait_for_groups<SLOTS - 2>();
            const float4 left = *reinterpret_cast<const float4*>(ring + slot);
            const float4 right = *reinterpret_cast<const float4*>(ring + slot + 128);
            fetch(last);
            last = slot;
            slot = slot == (SLOTS - 1) * TILE_SIZE ? 0 : slot + TILE_SIZE;
            Fragment<RECTIFY> fragment;
            fragment.load(from);
            sums.add<true>(left, fragment);
            fragment.load(from + STEP);
            sums.add<false>(right, fragment);
            from += 2 * STEP;
        }
    }

   private:
    INLINE void fetch(int to) {
        copy_async(ring + to, next);
        copy_async(ring + to + 128, next + 32);
        next += TILE_SIZE / 4;
        end_group();
    }
};

// ---------------------------------------------------------------- execution plan

// Tables in shared memory. A stage multiplies one matrix or several. Rows of tiles, in order of assignment: {tiles
// before it, tiles including it, first column of tiles, matrix << 16 | row of tiles}. For every stage and warp, a run:
// {row of tiles where it begins, first part, first tile, end}; or for whole rows of tiles, {first, last + 1}. For every
// matrix, its first row of tiles; and for every row of tiles, its partial sums: first << 16 | count.
struct __align__(16) Run {
    int tile, part, at, stop;
};

struct Plan {
    const int4* tiles;
    const Run* runs;
    const int *matrices, *places;

    INLINE Run run(int stage) const { return runs[stage * WARPS + threadIdx.x / 32]; }
};

INLINE Plan load_plan(const int* __restrict__ tables, int stages, int matrices, int tiles, float* room) {
    int* to = reinterpret_cast<int*>(room);
    for (int e = threadIdx.x; e < 5 * tiles + 4 * WARPS * stages + matrices; e += THREADS) to[e] = __ldg(tables + e);
    const int* rest = to + 4 * tiles + 4 * WARPS * stages;
    return {reinterpret_cast<const int4*>(to), reinterpret_cast<const Run*>(to + 4 * tiles), rest, rest + matrices};
}

// Whole rows of tiles. `operand` returns a matrix's operand. `prepare` is called with the matrix and the row of tiles;
// `use` with the matrix, the unit, the row of the batch, the index of the lane's element, and its value.
template <bool RECTIFY, class Operand, class Prepare, class Use>
INLINE void multiply_rows(const Plan& plan, Run run, Stream& stream, Operand operand, Prepare prepare, Use use) {
    const int lane = threadIdx.x % 32;
    __syncwarp();  // reconverge before warp-wide operations
    NO_UNROLL for (int tile = run.tile; tile < run.part; tile++) {
        const int4 row = plan.tiles[tile];
        const int matrix = row.w >> 16, number = row.w & 0xffff;
        prepare(matrix, number);
        Sums sums;
        stream.add<RECTIFY>(row.y - row.x, operand(matrix) + row.z * (2 * STEP) + place_of(lane) * PAIR, sums);
        sums.each(matrix, number, use);
    }
}

// The same for pairs of rows of tiles and pairs of warps: both warps multiply half of either row, first the half of the
// other warp's row, and then exchange sums, so that each has one complete row.
constexpr int EXCHANGE = PAIRED ? 2 * WARPS * COLUMNS * 128 : 0;

template <bool RECTIFY, class Prepare, class Use>
INLINE void multiply_pairs(const Plan& plan, Run run, Stream& stream, const float* operand, float* exchange, Prepare prepare, Use use) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, second = warp % 2;
    float* room = exchange + lane * 4;
    NO_UNROLL for (int tile = run.tile; tile < run.part; tile += 2) {
        const int4 mine = plan.tiles[tile + second], other = plan.tiles[tile + 1 - second];
        auto share = [&](const int4& row, bool first_of_two, Sums& sums) {
            // If the number of tiles is odd, the first row leaves the larger half to the first warp, the second row to
            // the second.
            const int count = row.y - row.x, cut = (count + (first_of_two ? 1 : 0)) / 2;
            sums = Sums{};
            stream.add<RECTIFY>(second ? count - cut : cut, operand + (row.z + (second ? cut : 0)) * (2 * STEP) + place_of(lane) * PAIR, sums);
        };
        const int matrix = mine.w >> 16, number = mine.w & 0xffff;
        const bool exists = number != 0xffff;
        if (exists) prepare(matrix, number);
        Sums sums;
        share(other, second, sums);
        UNROLL for (int j = 0; j < COLUMNS; j++)
            *reinterpret_cast<float4*>(room + ((warp ^ 1) * COLUMNS + j) * 128) =
                make_float4(sums.total(j, 0), sums.total(j, 1), sums.total(j, 2), sums.total(j, 3));
        share(mine, !second, sums);
        wait_for_partner();
        if (exists) {
            UNROLL for (int j = 0; j < COLUMNS; j++) {
                const float4 rest = *reinterpret_cast<const float4*>(room + (warp * COLUMNS + j) * 128);
                sums.sum[j][0] += rest.x, sums.sum[j][1] += rest.y, sums.sum[j][2] += rest.z, sums.sum[j][3] += rest.w;
            }
            sums.each(matrix, number, use);
        }
        room = exchange + lane * 4 + (room - exchange < WARPS * COLUMNS * 128 ? WARPS * COLUMNS * 128 : 0);  // double-buffered
    }
}

// The variant for hidden layers.
template <bool RECTIFY, class Prepare, class Use>
INLINE void multiply_hidden(const Plan& plan, Run run, Stream& stream, const float* operand, float* exchange, Prepare prepare, Use use) {
    if (PAIRED)
        multiply_pairs<RECTIFY>(plan, run, stream, operand, exchange, prepare, use);
    else
        multiply_rows<RECTIFY>(plan, run, stream, [&](int) { return operand; }, prepare, use);
}

// Partial sums, stored as [part][COLUMNS][16][8]; `operand` returns a matrix's operand.
template <bool RECTIFY, class Operand>
INLINE void multiply_parts(const Plan& plan, Run run, Stream& stream, float* parts, Operand operand) {
    const int lane = threadIdx.x % 32;
    float* to = parts + run.part * COLUMNS * 128 + lane / 4 * 8 + 2 * (lane % 4);
    __syncwarp();
    NO_UNROLL for (; run.at < run.stop; run.tile++) {
        const int4 row = plan.tiles[run.tile];
        const int upto = min(run.stop, row.y);
        Sums sums;
        stream.add<RECTIFY>(upto - run.at, operand(row.w >> 16) + (row.z + run.at - row.x) * (2 * STEP) + place_of(lane) * PAIR, sums);
        UNROLL for (int j = 0; j < COLUMNS; j++) {
            *reinterpret_cast<float2*>(to + j * 128) = make_float2(sums.total(j, 0), sums.total(j, 1));
            *reinterpret_cast<float2*>(to + j * 128 + 64) = make_float2(sums.total(j, 2), sums.total(j, 3));
        }
        to += COLUMNS * 128;
        run.at = upto;
    }
}

// The partial sums of one element.
struct Parts {
    float* at;
    int count;

    INLINE Parts(const Plan& plan, int matrix, float* parts, int row, int n) {
        const int place = plan.places[plan.matrices[matrix] + row / 16];
        at = parts + ((place >> 16) * COLUMNS + n / 8) * 128 + row % 16 * 8 + n % 8;
        count = place & 0xffff;
    }
    // Their total, by a group of lanes.
    template <int LANES = 1> INLINE float total() const {
        float sum = 0.0f;
#pragma unroll 4
        for (int i = threadIdx.x % LANES; i < count; i += LANES) sum += at[i * COLUMNS * 128];
        return lane_sum<LANES>(sum);
    }
};
