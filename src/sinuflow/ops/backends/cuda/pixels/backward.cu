// The chain rule through pixel_learn: from the gradient of what is told to that of x, and for every image what it
// contributes to the gradients of the weights and biases.

struct PixelBackwardArguments {
    const float* grad;     // of what is told, [OUTPUTS][NUMBERS][batch]
    const float* x;        // [NUMBERS][batch]
    const Kept* kept;      // [batch][KEPT_MAPS][KEPT_PLANE]
    const float* weights;  // of the transposed layers, from the last to the first
    float* grad_x;         // [NUMBERS][batch]
    float* parts;          // [batch][TURNS][PARTS]
    int batch, reverse;
};

// If they may be rough, gradients are rounded when they are stored; what was kept has been.
constexpr Products GRADIENTS = ROUGH ? ROUGH_ONES : FINE_ONES;
__device__ __forceinline__ float stored(float x) { return ROUGH ? rounded(x) : x; }

// Of the first convolution's transpose, one kernel row at a time: [column][channel], and back to the pixels that see it.
constexpr int SEEN = FAR_SIDE * CHANNELS, STRIPE = padded(SEEN, 16), STRIPE_ROW = WIDTH + 2 * FAR;
constexpr int ROW_TILES = (WIDTH + 7) / 8;
// Every warp has a stripe of its own, where the gradients of narrow maps were.
constexpr int ALL_NARROW = NARROW * NARROW_PLANE, ALL_STRIPES = WARPS * padded(SEEN * STRIPE_ROW, 2);
constexpr int NARROW_ROOM = ALL_NARROW > ALL_STRIPES ? ALL_NARROW : ALL_STRIPES;
// Gradients of narrow maps look down and to the right, so that there the zeros are needed.
__device__ __forceinline__ int mirrored_place(int pixel) { return pixel / WIDTH * NARROW_ROW + pixel % WIDTH + 1; }

// An image's contribution: a matrix for every layer (first, bottlenecks, head), then a sum for every bias.
constexpr int FIRST_PART = WIDE * 8 * FIRST_STEPS, SHRINK_PART = NARROW * WIDE, LOOK_PART = NARROW * NEAR_PLACES * NARROW, GROW_PART = WIDE * NARROW;
constexpr int BLOCK_PART = SHRINK_PART + LOOK_PART + GROW_PART, HEAD_PART = HEAD * WIDE;
constexpr int WEIGHT_PARTS = FIRST_PART + BLOCKS * BLOCK_PART + HEAD_PART;
constexpr int BIAS_BLOCK = 2 * NARROW + WIDE, PARTS = WEIGHT_PARTS + WIDE + BLOCKS * BIAS_BLOCK + HEAD;

// Sums over pixels: four groups of warps take some columns of the result each, and in each group the warps take turns
// with the sets of tiles. What they find lies side by side, and is added up later.
constexpr int TURNS = 4, GROUPS = WARPS / TURNS;

// The sum of products of pixels' rows and columns, for the pixels of a tile.
template <int TALL>
__device__ __forceinline__ void add_products(float (&sum)[TALL][4], const float (&rows)[TALL][4], float2 columns) {
    const float all[2] = {columns.x, columns.y};
    float high[2] = {all[0], all[1]}, low[2];
    if (!ROUGH) {
        split(all[0], high[0], low[0]);
        split(all[1], high[1], low[1]);
    }
#pragma unroll
    for (int m = 0; m < TALL; m++) {
        if (ROUGH) {
            mma_tf32(sum[m], rows[m], high);
        } else {
            float above[4], below[4];
#pragma unroll
            for (int c = 0; c < 4; c++) split(rows[m][c], above[c], below[c]);
            mma_tf32(sum[m], above, low);
            mma_tf32(sum[m], below, high);
            mma_tf32(sum[m], above, high);
        }
    }
}

// `left` gives a row's numbers at two pixels. Sums of rows by themselves are those of biases.
template <int TALL>
struct Rows {
    float value[TALL][4], sum[TALL][2];

    __device__ __forceinline__ Rows() : sum{} {}
    template <class Left>
    __device__ __forceinline__ void load(Left left, int pixel) {
        const int row = threadIdx.x % 32 / 4;
#pragma unroll
        for (int m = 0; m < TALL; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float2 pair = left(16 * m + 8 * h + row, pixel);
                value[m][h] = pair.x, value[m][2 + h] = pair.y;
            }
    }
    __device__ __forceinline__ void add() {
#pragma unroll
        for (int m = 0; m < TALL; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) sum[m][h] += value[m][h] + value[m][2 + h];
    }
    __device__ __forceinline__ void store(float* to) {
#pragma unroll
        for (int m = 0; m < TALL; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float all = sum[m][h];
                all += __shfl_xor_sync(~0u, all, 1);
                all += __shfl_xor_sync(~0u, all, 2);
                if (threadIdx.x % 4 == 0) to[16 * m + 8 * h + threadIdx.x % 32 / 4] = all;
            }
    }
};

template <int TALL>
__device__ __forceinline__ void store_tile(float* to, int columns, int first, const float (&sum)[TALL][4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < TALL; m++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *reinterpret_cast<float2*>(to + (16 * m + 8 * h + lane / 4) * columns + first + 2 * (lane % 4)) = make_float2(sum[m][2 * h], sum[m][2 * h + 1]);
}

// All sets of a warp's turn, AHEAD at a time: `use` gets the set and its number among them.
template <int AHEAD, class Use>
__device__ __forceinline__ void each_of_turn(int turn, Use use) {
    static_assert(SETS % (TURNS * AHEAD) == 0, "no set is left over");
#pragma unroll 1
    for (int set = turn; set < SETS; set += TURNS * AHEAD)
#pragma unroll
        for (int d = 0; d < AHEAD; d++) use(set + TURNS * d, d);
}

// The tiles of a set that exist: `use` gets the first of a lane's two pixels, and the tile's number in the set.
template <class Use>
__device__ __forceinline__ void each_tile(int set, Use use) {
    const int first = set / WARPS * (WARPS * AT_ONCE) + set % WARPS;
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
        if (REGULAR || first + WARPS * i < TILES) use(8 * (first + WARPS * i) + 2 * (static_cast<int>(threadIdx.x) % 4), i);
}

// A matrix of [TALL * 16] by [COLUMNS8 * 8], and the sums of its rows. `begin` gets a column, and what it says goes to
// `ask`, AHEAD sets early; of the answer, `pair` takes the numbers of two pixels: (answer, tile, first pixel).
template <int TALL, int COLUMNS8, int AHEAD, class Left, class Begin, class Ask, class Pair>
__device__ __forceinline__ void add_up(float* to, float* sums, Left left, Begin begin, Ask ask, Pair pair) {
    constexpr int EACH = (COLUMNS8 + GROUPS - 1) / GROUPS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, turn = warp / GROUPS, group = warp % GROUPS;
    float sum[EACH][TALL][4] = {};
    Rows<TALL> rows;
    decltype(begin(0)) column[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) column[e] = begin(8 * min(group + GROUPS * e, COLUMNS8 - 1) + lane / 4);
    decltype(ask(begin(0), 0)) ahead[AHEAD][EACH];
#pragma unroll
    for (int d = 0; d < AHEAD; d++)
#pragma unroll
        for (int e = 0; e < EACH; e++) ahead[d][e] = ask(column[e], turn + TURNS * d);
    each_of_turn<AHEAD>(turn, [&](int set, int d) {
        each_tile(set, [&](int pixel, int i) {
            rows.load(left, pixel);
            rows.add();
#pragma unroll
            for (int e = 0; e < EACH; e++) add_products(sum[e], rows.value, pair(ahead[d][e], i, pixel));
        });
#pragma unroll
        for (int e = 0; e < EACH; e++) ahead[d][e] = ask(column[e], min(set + TURNS * AHEAD, SETS - 1));
    });
#pragma unroll
    for (int e = 0; e < EACH; e++)
        if (group + GROUPS * e < COLUMNS8) store_tile(to, 8 * COLUMNS8, 8 * (group + GROUPS * e), sum[e]);
    if (group == 0) rows.store(sums);
}

// The same with columns that were kept, from the map `first` on.
template <int TALL, int COLUMNS8, class Left>
__device__ __forceinline__ void add_up_kept(float* to, float* sums, Left left, const Kept* first) {
    add_up<TALL, COLUMNS8, 2>(
        to, sums, left, [&](int map) { return first + map * KEPT_PLANE; }, [](const Kept* map, int set) { return kept_at(map, set); },
        [](const Kept& part, int i, int) { return part.pair(i); });
}

// The same for a look, with columns [place][map]: rows are seen from every place, beyond the image as zeros. Groups take
// some maps, and the ODD or the even places. The centre is the last of the even ones: its sums of rows are those of biases.
template <int ODD, class Left>
__device__ __forceinline__ void add_up_looks(float* to, float* sums, Left left, const Kept* seen) {
    constexpr int TALL = NARROW / 16, HALF = (NEAR_PLACES + 1 - ODD) / 2, MAPS8 = NARROW / 8, AHEAD = 2;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, turn = warp / GROUPS;
#pragma unroll 1
    for (int maps = warp % 2; maps < MAPS8; maps += 2) {
        float sum[HALF][TALL][4] = {};
        Rows<TALL> rows;
        const Kept* map = seen + (8 * maps + lane / 4) * KEPT_PLANE;
        Kept ahead[AHEAD];
#pragma unroll
        for (int d = 0; d < AHEAD; d++) ahead[d] = kept_at(map, turn + TURNS * d);
        each_of_turn<AHEAD>(turn, [&](int set, int d) {
            each_tile(set, [&](int pixel, int i) {
                const float2 column = ahead[d].pair(i);
#pragma unroll
                for (int k = 0; k < HALF; k++) {
                    rows.load([&](int row, int pixel) { return left(2 * k + ODD, row, pixel); }, pixel);
                    add_products(sum[k], rows.value, column);
                }
                if (!ODD) rows.add();
            });
            ahead[d] = kept_at(map, min(set + TURNS * AHEAD, SETS - 1));
        });
#pragma unroll
        for (int k = 0; k < HALF; k++) store_tile(to, NEAR_PLACES * NARROW, (2 * k + ODD) * NARROW + 8 * maps, sum[k]);
        if (!ODD && maps == 0) rows.store(sums);
    }
}

// Which units passed anything on is told from what was kept of them: of a warp's tiles, asked for before it is needed.
template <int TALL>
struct Activity {
    Kept kept[TALL][2];

    __device__ __forceinline__ Activity(const Tiles& tiles, const Kept* maps) {
#pragma unroll
        for (int m = 0; m < TALL; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) kept[m][h] = kept_at(maps + (16 * m + 8 * h + static_cast<int>(threadIdx.x) % 32 / 4) * KEPT_PLANE, tiles.set);
    }
    __device__ __forceinline__ void apply(float (&sum)[AT_ONCE][TALL][4]) const {
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
            for (int m = 0; m < TALL; m++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    if (!kept[m][c / 2].active(i, c % 2)) sum[i][m][c] = 0.0f;
    }
};

// A map's numbers at two neighbouring pixels, of which the first is even: they lie side by side, or the second may begin
// a row. Beyond the last pixel there are zeros.
template <class Place>
__device__ __forceinline__ float2 pair_at(const float* map, int pixel, Place place) {
    if (WIDTH % 2 == 0) {
        const float* at = map + place(PIXELS % 8 ? min(pixel, PIXELS - 2) : pixel);
        return PIXELS % 8 == 0 || pixel < PIXELS ? make_float2(at[0], at[1]) : make_float2(0.0f, 0.0f);
    }
    return make_float2(pixel < PIXELS ? map[place(pixel)] : 0.0f, pixel + 1 < PIXELS ? map[place(pixel + 1)] : 0.0f);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) pixel_backward(const PixelBackwardArguments p) {
    DYNAMIC_SHARED(memory);
    float* wide = memory;  // gradients of the wide maps, before their activation
    float* narrow = wide + WIDE * WIDE_PLANE;
    float* x = narrow + NARROW_ROOM;  // at first, the gradient of what the head says
    int* far = reinterpret_cast<int*>(x + HEADS * X_PLANE);
    const int image = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, member = lane % 4;
    const Kept* kept = p.kept + static_cast<long>(image) * KEPT_MAPS * KEPT_PLANE;
    float* parts = p.parts + (static_cast<long>(image) * TURNS + warp / GROUPS) * PARTS;  // of this warp's turn
    float* of_biases = parts + WEIGHT_PARTS;

    // What was kept is far away: so it is called nearer before it is needed.
    auto call = [&](int map, int maps) {
        constexpr int NEARER = 128 / sizeof(Kept);
        for (int e = threadIdx.x; e < maps * KEPT_PLANE / NEARER; e += THREADS) call_nearer(kept + map * KEPT_PLANE + NEARER * e);
    };
    const int last = BLOCKS * KEPT_BLOCK;
    call(last, WIDE);
    for (int e = threadIdx.x; e < NARROW * NARROW_PLANE; e += THREADS) narrow[e] = 0.0f;
    for (int e = threadIdx.x; e < HEADS * X_PLANE; e += THREADS) x[e] = 0.0f;
    note_columns(far);
    __syncthreads();
    each_number<HEADS>(p.grad, p.batch, image, p.reverse, [&](int place, const float* from) { x[place] = stored(*from); });
    __syncthreads();

    auto store_narrow = [&](int map, int pixel, float one, float two) {
        float* to = narrow + map * NARROW_PLANE;
        if (PIXELS % 8 == 0 || pixel < PIXELS) to[mirrored_place(pixel)] = stored(one);
        if (PIXELS % 8 == 0 || pixel + 1 < PIXELS) to[mirrored_place(pixel + 1)] = stored(two);
    };
    auto of_output = [&](int head, int pixel) {
        return head < HEADS && pixel < PIXELS ? x[head * X_PLANE + x_place(pixel)] : 0.0f;
    };
    auto of_wide = [&](int map, int pixel) { return wide[map * WIDE_PLANE + pixel]; };
    auto outputs = [&](int head, int pixel) { return head < HEADS ? pair_at(x + head * X_PLANE, pixel, x_place) : make_float2(0.0f, 0.0f); };
    auto wides = [&](int map, int pixel) { return *reinterpret_cast<const float2*>(wide + map * WIDE_PLANE + pixel); };
    auto narrows = [&](int map, int pixel) { return pair_at(narrow + map * NARROW_PLANE, pixel, mirrored_place); };

    // The head.
    const float* weights = p.weights;
    if (BLOCKS) call(last - KEPT_BLOCK, KEPT_BLOCK);
    add_up_kept<HEAD / 16, WIDE / 8>(parts + WEIGHT_PARTS - HEAD_PART, of_biases + WIDE + BLOCKS * BIAS_BLOCK, outputs, kept + last * KEPT_PLANE);
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const Tiles tiles(chunk);
        const Activity<WIDE / 16> active(tiles, kept + last * KEPT_PLANE);
        float sum[AT_ONCE][WIDE / 16][4] = {};
        multiply<WIDE / 16, padded(HEADS, 8) / 8, GRADIENTS>(sum, weights, [&](int step, int half, int i) { return of_output(8 * step + half + member, tiles.loaded(i)); });
        active.apply(sum);
        each_pair(tiles, sum, [&](int map, int pixel, float one, float two) {
            *reinterpret_cast<float2*>(wide + map * WIDE_PLANE + pixel) = make_float2(stored(one), stored(two));
        });
    }
    weights += padded(HEADS, 8) * WIDE;
    __syncthreads();
    // The image takes the place of the head's gradient, and has a long way to go.
    each_number(p.x, p.batch, image, p.reverse, [&](int place, const float* from) { copy_async(x + place, from); });
    end_group();

#pragma unroll 1
    for (int block = BLOCKS - 1; block >= 0; block--) {
        const int first = block * KEPT_BLOCK;  // of what was kept: wide, small, inner
        float* matrices = parts + FIRST_PART + block * BLOCK_PART;
        float* sums = of_biases + WIDE + block * BIAS_BLOCK;
        if (block) call(first - KEPT_BLOCK, KEPT_BLOCK);

        // Back to the narrow maps.
        add_up_kept<WIDE / 16, NARROW / 8>(matrices + SHRINK_PART + LOOK_PART, sums + 2 * NARROW, wides, kept + (first + WIDE + NARROW) * KEPT_PLANE);
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const Tiles tiles(chunk);
            const Activity<NARROW / 16> active(tiles, kept + (first + WIDE + NARROW) * KEPT_PLANE);
            float sum[AT_ONCE][NARROW / 16][4] = {};
            multiply<NARROW / 16, WIDE / 8, GRADIENTS>(sum, weights, [&](int step, int half, int i) { return of_wide(8 * step + half + member, tiles.loaded(i)); });
            active.apply(sum);
            each_pair(tiles, sum, store_narrow);
        }
        weights += NARROW * WIDE;
        __syncthreads();

        // Back to whatever was looked at.
        auto seen_from = [&](int place, int map, int pixel) { return pair_at(narrow + map * NARROW_PLANE - near_offset(place), pixel, mirrored_place); };
        const Kept* looked_at = kept + (first + WIDE) * KEPT_PLANE;
        if (warp % GROUPS < 2)
            add_up_looks<0>(matrices + SHRINK_PART, sums + NARROW, seen_from, looked_at);
        else
            add_up_looks<1>(matrices + SHRINK_PART, sums + NARROW, seen_from, looked_at);
        float seen[CHUNKS][AT_ONCE][NARROW / 16][4] = {};
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const Tiles tiles(chunk);
            const Activity<NARROW / 16> active(tiles, looked_at);
            int place[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) place[i] = tiles.at(i, NARROW_ROW, mirrored_place) + member * NARROW_PLANE;
            multiply<NARROW / 16, LOOK_STEPS, GRADIENTS>(seen[chunk], weights, [&](int step, int half, int i) {
                return narrow[(8 * step % NARROW + half) * NARROW_PLANE - near_offset(8 * step / NARROW) + place[i]];
            });
            active.apply(seen[chunk]);
        }
        weights += LOOK_STEPS * NARROW * 8;
        __syncthreads();
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) each_pair(Tiles(chunk), seen[chunk], store_narrow);
        __syncwarp();

        // Back to the wide maps; what went past the bottleneck is there already.
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const Tiles tiles(chunk);
            const Activity<WIDE / 16> active(tiles, kept + first * KEPT_PLANE);
            float sum[AT_ONCE][WIDE / 16][4] = {};
            multiply<WIDE / 16, NARROW / 8, GRADIENTS>(sum, weights, [&](int step, int half, int i) {
                return narrow[(8 * step + half + member) * NARROW_PLANE + tiles.at(i, NARROW_ROW, mirrored_place)];
            });
            active.apply(sum);
            each_pair(tiles, sum, [&](int map, int pixel, float one, float two) {
                float2* at = reinterpret_cast<float2*>(wide + map * WIDE_PLANE + pixel);
                *at = make_float2(stored(at->x + one), stored(at->y + two));
            });
        }
        weights += NARROW * WIDE;
        __syncthreads();
        add_up_kept<NARROW / 16, WIDE / 8>(matrices, sums, narrows, kept + first * KEPT_PLANE);
        __syncthreads();
    }

    // The first convolution.
    wait_for_groups<0>();
    each_number(p.x, p.batch, image, p.reverse, [&](int place, const float*) { x[place] = stored(x[place]); });
    __syncthreads();
    add_up<WIDE / 16, FIRST_STEPS, 1>(
        parts, of_biases, wides, [&](int column) { return x + far[column]; }, [](const float* from, int) { return from; },
        [](const float* from, int, int pixel) { return pair_at(from, pixel, x_place); });
    // Its transpose, by rows of the image, a warp for each: what the pixels of a row pass on to every column and
    // channel of one row of the kernel; then every pixel gathers what is meant for it.
    float* stripe = narrow + warp * padded(SEEN * STRIPE_ROW, 2);
    for (int e = lane; e < SEEN * STRIPE_ROW; e += 32) stripe[e] = 0.0f;
    __syncwarp();
#pragma unroll 1
    for (int row = warp; row < HEIGHT; row += WARPS) {
        constexpr int WIDTHS = (WIDTH + 31) / 32;
        // What is there already, asked for early.
        float gathered[CHANNELS][WIDTHS];
#pragma unroll
        for (int w = 0; w < WIDTHS; w++)
#pragma unroll
            for (int channel = 0; channel < CHANNELS; channel++)
                gathered[channel][w] = lane + 32 * w < WIDTH ? p.grad[number_of(channel, row * WIDTH + lane + 32 * w, p.reverse) * p.batch + image] : 0.0f;
#pragma unroll 1
        for (int down = 0; down <= FAR && row + down < HEIGHT; down++) {
            const int begin = (row + down) * WIDTH;
            float sum[ROW_TILES][STRIPE / 16][4] = {};
            multiply<STRIPE / 16, WIDE / 8, GRADIENTS>(sum, weights + down * STRIPE * WIDE, [&](int step, int half, int tile) {
                return of_wide(8 * step + half + member, begin + (WIDTH % 8 ? min(8 * tile + lane / 4, WIDTH - 1) : 8 * tile + lane / 4));
            });
#pragma unroll
            for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
                for (int m = 0; m < STRIPE / 16; m++)
#pragma unroll
                    for (int c = 0; c < 4; c++) {
                        const int i = 16 * m + 8 * (c / 2) + lane / 4, j = 8 * tile + 2 * member + c % 2;
                        if (i < SEEN && j < WIDTH) stripe[i * STRIPE_ROW + FAR + j] = sum[tile][m][c];
                    }
            __syncwarp();
#pragma unroll
            for (int w = 0; w < WIDTHS; w++) {
                const int column = lane + 32 * w;
                if (column >= WIDTH) continue;
#pragma unroll
                for (int side = 0; side < FAR_SIDE; side++)  // seen from a pixel as far on the other side
#pragma unroll
                    for (int channel = 0; channel < CHANNELS; channel++)
                        gathered[channel][w] += stripe[(side * CHANNELS + channel) * STRIPE_ROW + column + 2 * FAR - side];
            }
            __syncwarp();
        }
#pragma unroll
        for (int w = 0; w < WIDTHS; w++) {
            const int column = lane + 32 * w;
            if (column >= WIDTH) continue;
#pragma unroll
            for (int channel = 0; channel < CHANNELS; channel++) {
                p.grad_x[number_of(channel, row * WIDTH + column, p.reverse) * p.batch + image] = gathered[channel][w];
            }
        }
    }
}
