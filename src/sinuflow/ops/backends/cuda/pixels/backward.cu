// Backward pass through pixel_learn: the gradient of x, and every image's contribution to the gradients of weights and
// biases.

struct PixelBackwardArguments {
    const float* grad;        // of the outputs, [OUTPUTS][FEATURES][batch]
    const float* x;           // [FEATURES][batch]
    const Activation* saved;  // [batch][SAVED_MAPS][SAVED_PLANE]
    const float* weights;     // of the transposed layers, from the last to the first
    float* grad_x;            // [FEATURES][batch]
    float* parts;             // [batch][TURNS][PARTS]
    int batch, reverse;
};

// With TF32, gradients are rounded when stored, as activations are.
constexpr Precision GRADIENTS = TF32 ? TF32_PRODUCTS : FLOAT32_PRODUCTS;
INLINE float stored(float x) { return TF32 ? to_tf32(x) : x; }

// Transpose of the first convolution, one kernel row at a time: [column][channel], then gathered by pixel.
constexpr int SEEN = FAR_SIDE * CHANNELS, STRIPE = padded(SEEN, 16), STRIPE_ROW = WIDTH + 2 * FAR;
constexpr int ROW_TILES = (WIDTH + 7) / 8;
// Every warp has a stripe of its own, in the memory of the narrow maps' gradients.
constexpr int ALL_NARROW = NARROW * NARROW_PLANE, ALL_STRIPES = WARPS * padded(SEEN * STRIPE_ROW, 2);
constexpr int NARROW_ROOM = ALL_NARROW > ALL_STRIPES ? ALL_NARROW : ALL_STRIPES;
// The transposed 3x3 convolution looks down and to the right, where the zero padding is needed.
INLINE int mirrored_place(int pixel) { return pixel / WIDTH * NARROW_ROW + pixel % WIDTH + 1; }

// An image's contribution: a matrix per layer (first, residual blocks, head), then the sums of the biases.
constexpr int FIRST_PART = WIDE * 8 * FIRST_STEPS, SHRINK_PART = NARROW * WIDE, LOOK_PART = NARROW * NEAR_PLACES * NARROW, GROW_PART = WIDE * NARROW;
constexpr int BLOCK_PART = SHRINK_PART + LOOK_PART + GROW_PART, HEAD_PART = HEAD * WIDE;
constexpr int WEIGHT_PARTS = FIRST_PART + BLOCKS * BLOCK_PART + HEAD_PART;
constexpr int BIAS_BLOCK = 2 * NARROW + WIDE, PARTS = WEIGHT_PARTS + WIDE + BLOCKS * BIAS_BLOCK + HEAD;

// Sums over pixels: four groups of warps take some columns each, and the warps of a group take the sets of tiles in
// turn. Their partial sums are stored separately.
constexpr int TURNS = 4, GROUPS = WARPS / TURNS;

// Add the products of rows and columns over the pixels of a tile.
template <int TALL> INLINE void add_products(float (&sum)[TALL][4], const float (&rows)[TALL][4], float2 columns) {
    const float all[2] = {columns.x, columns.y};
    float high[2] = {all[0], all[1]}, low[2];
    if (!TF32) {
        split(all[0], high[0], low[0]);
        split(all[1], high[1], low[1]);
    }
    UNROLL for (int m = 0; m < TALL; m++) {
        if (TF32) {
            mma_tf32(sum[m], rows[m], high);
        } else {
            float above[4], below[4];
            UNROLL for (int c = 0; c < 4; c++) split(rows[m][c], above[c], below[c]);
            mma_tf32(sum[m], above, low);
            mma_tf32(sum[m], below, high);
            mma_tf32(sum[m], above, high);
        }
    }
}

// Rows of the left operand; `left` returns a row's values at two pixels. The sums of rows are gradients of biases.
template <int TALL>
struct Rows {
    float value[TALL][4], sum[TALL][2];

    INLINE Rows() : sum{} {}
    template <class Left> INLINE void load(Left left, int pixel) {
        each_row<TALL>([&](int m, int h, int row) {
            const float2 pair = left(row, pixel);
            value[m][h] = pair.x, value[m][2 + h] = pair.y;
        });
    }
    INLINE void add() {
        each_row<TALL>([&](int m, int h, int) { sum[m][h] += value[m][h] + value[m][2 + h]; });
    }
    INLINE void store(float* to) {
        each_row<TALL>([&](int m, int h, int row) {
            float all = sum[m][h];
            all += __shfl_xor_sync(~0u, all, 1);
            all += __shfl_xor_sync(~0u, all, 2);
            if (threadIdx.x % 4 == 0) to[row] = all;
        });
    }
};

template <int TALL> INLINE void store_tile(float* to, int columns, int first, const float (&sum)[TALL][4]) {
    float* mine = to + first + 2 * (threadIdx.x % 4);
    each_row<TALL>([&](int m, int h, int row) { *reinterpret_cast<float2*>(mine + row * columns) = make_float2(sum[m][2 * h], sum[m][2 * h + 1]); });
}

// Call `use` for all sets of a warp's turn with the set and its index among AHEAD that are prefetched.
template <int AHEAD, class Use> INLINE void each_of_turn(int turn, Use use) {
    static_assert(SETS % (TURNS * AHEAD) == 0, "no set is left over");
    NO_UNROLL for (int set = turn; set < SETS; set += TURNS * AHEAD)
        UNROLL for (int d = 0; d < AHEAD; d++) use(set + TURNS * d, d);
}

// Call `use` for the existing tiles of a set with the first of a lane's two pixels, and the index of the tile.
template <class Use> INLINE void each_tile(int set, Use use) {
    const int first = set / WARPS * (WARPS * AT_ONCE) + set % WARPS;
    UNROLL for (int i = 0; i < AT_ONCE; i++)
        if (REGULAR || first + WARPS * i < TILES) use(8 * (first + WARPS * i) + 2 * (static_cast<int>(threadIdx.x) % 4), i);
}

// A matrix of [TALL * 16] by [COLUMNS8 * 8], and the sums of its rows. `begin` returns a column's pointer, `ask`
// prefetches from it AHEAD sets early, and `pair` reads the values at two pixels: (prefetched, tile, first pixel).
template <int TALL, int COLUMNS8, int AHEAD, class Left, class Begin, class Ask, class Pair>
INLINE void add_up(float* to, float* sums, Left left, Begin begin, Ask ask, Pair pair) {
    constexpr int EACH = (COLUMNS8 + GROUPS - 1) / GROUPS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, turn = warp / GROUPS, group = warp % GROUPS;
    float sum[EACH][TALL][4] = {};
    Rows<TALL> rows;
    decltype(begin(0)) column[EACH];
    UNROLL for (int e = 0; e < EACH; e++) column[e] = begin(8 * min(group + GROUPS * e, COLUMNS8 - 1) + lane / 4);
    decltype(ask(begin(0), 0)) ahead[AHEAD][EACH];
    UNROLL for (int d = 0; d < AHEAD; d++)
        UNROLL for (int e = 0; e < EACH; e++) ahead[d][e] = ask(column[e], turn + TURNS * d);
    each_of_turn<AHEAD>(turn, [&](int set, int d) {
        each_tile(set, [&](int pixel, int i) {
            rows.load(left, pixel);
            rows.add();
            UNROLL for (int e = 0; e < EACH; e++) add_products(sum[e], rows.value, pair(ahead[d][e], i, pixel));
        });
        UNROLL for (int e = 0; e < EACH; e++) ahead[d][e] = ask(column[e], min(set + TURNS * AHEAD, SETS - 1));
    });
    UNROLL for (int e = 0; e < EACH; e++)
        if (group + GROUPS * e < COLUMNS8) store_tile(to, 8 * COLUMNS8, 8 * (group + GROUPS * e), sum[e]);
    if (group == 0) rows.store(sums);
}

// The same with columns from saved activations, from the map `first` on.
template <int TALL, int COLUMNS8, class Left> INLINE void add_up_saved(float* to, float* sums, Left left, const Activation* first) {
    add_up<TALL, COLUMNS8, 2>(
        to, sums, left, [&](int map) { return first + map * SAVED_PLANE; }, [](const Activation* map, int set) { return saved_at(map, set); },
        [](const Activation& part, int i, int) { return part.pair(i); });
}

// The same for a 3x3 convolution, with columns [place][map] and zero padding. Groups take half of the maps, and the ODD
// or even places; the last even place is the centre, whose row sums are gradients of biases.
template <int ODD, class Left> INLINE void add_up_looks(float* to, float* sums, Left left, const Activation* seen) {
    constexpr int TALL = NARROW / 16, HALF = (NEAR_PLACES + 1 - ODD) / 2, MAPS8 = NARROW / 8, AHEAD = 2;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, turn = warp / GROUPS;
    NO_UNROLL for (int maps = warp % 2; maps < MAPS8; maps += 2) {
        float sum[HALF][TALL][4] = {};
        Rows<TALL> rows;
        const Activation* map = seen + (8 * maps + lane / 4) * SAVED_PLANE;
        Activation ahead[AHEAD];
        UNROLL for (int d = 0; d < AHEAD; d++) ahead[d] = saved_at(map, turn + TURNS * d);
        each_of_turn<AHEAD>(turn, [&](int set, int d) {
            each_tile(set, [&](int pixel, int i) {
                const float2 column = ahead[d].pair(i);
                UNROLL for (int k = 0; k < HALF; k++) {
                    rows.load([&](int row, int pixel) { return left(2 * k + ODD, row, pixel); }, pixel);
                    add_products(sum[k], rows.value, column);
                }
                if (!ODD) rows.add();
            });
            ahead[d] = saved_at(map, min(set + TURNS * AHEAD, SETS - 1));
        });
        UNROLL for (int k = 0; k < HALF; k++) store_tile(to, NEAR_PLACES * NARROW, (2 * k + ODD) * NARROW + 8 * maps, sum[k]);
        if (!ODD && maps == 0) rows.store(sums);
    }
}

// Prefetched activations of a warp's tiles, which tell which units were active.
template <int TALL>
struct Activity {
    Activation saved[TALL][2];

    INLINE Activity(const Tiles& tiles, const Activation* maps) {
        each_row<TALL>([&](int m, int h, int row) { saved[m][h] = saved_at(maps + row * SAVED_PLANE, tiles.set); });
    }
    INLINE void apply(float (&sum)[AT_ONCE][TALL][4]) const {
        UNROLL for (int i = 0; i < AT_ONCE; i++)
            UNROLL for (int m = 0; m < TALL; m++)
                UNROLL for (int c = 0; c < 4; c++)
                    if (!saved[m][c / 2].active(i, c % 2)) sum[i][m][c] = 0.0f;
    }
};

// The gradient of the maps before a layer in chunks of tiles: call `use` as each_pair does; `load` returns the gradient
// of the layer (row, tiles, tile).
template <int TALL, int STEPS, class Load, class Use>
INLINE void each_chunk_back(const float* weights, const Activation* maps, Load load, Use use) {
    const int member = static_cast<int>(threadIdx.x) % 4;
    NO_UNROLL for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const Tiles tiles(chunk);
        const Activity<TALL> active(tiles, maps);
        float sum[AT_ONCE][TALL][4] = {};
        multiply<TALL, STEPS, GRADIENTS>(sum, weights, [&](int step, int half, int i) { return load(8 * step + half + member, tiles, i); });
        active.apply(sum);
        each_pair(tiles, sum, use);
    }
}

// A map's values at two neighbouring pixels, of which the first is even; zeros beyond the last pixel.
template <class Place> INLINE float2 pair_at(const float* map, int pixel, Place place) {
    if (WIDTH % 2 == 0) {
        const float* at = map + place(PIXELS % 8 ? min(pixel, PIXELS - 2) : pixel);
        return PIXELS % 8 == 0 || pixel < PIXELS ? make_float2(at[0], at[1]) : make_float2(0.0f, 0.0f);
    }
    return make_float2(pixel < PIXELS ? map[place(pixel)] : 0.0f, pixel + 1 < PIXELS ? map[place(pixel + 1)] : 0.0f);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) pixel_backward(const PixelBackwardArguments p) {
    DYNAMIC_SHARED(wide);  // gradients of the wide maps before activation
    float* narrow = wide + WIDE * WIDE_PLANE;
    float* x = narrow + NARROW_ROOM;  // first the gradient of the outputs, later the image
    int* far = reinterpret_cast<int*>(x + HEADS * X_PLANE);
    const int image = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, member = lane % 4;
    const Activation* saved = p.saved + static_cast<long>(image) * SAVED_MAPS * SAVED_PLANE;
    float* parts = p.parts + (static_cast<long>(image) * TURNS + warp / GROUPS) * PARTS;  // of this warp's turn
    float* of_biases = parts + WEIGHT_PARTS;

    // Prefetch saved activations into the L2 cache.
    auto call = [&](int map, int maps) {
        constexpr int NEARER = 128 / sizeof(Activation);
        for (int e = threadIdx.x; e < maps * SAVED_PLANE / NEARER; e += THREADS) prefetch(saved + map * SAVED_PLANE + NEARER * e);
    };
    const int last = BLOCKS * SAVED_BLOCK;
    call(last, WIDE);
    for (int e = threadIdx.x; e < NARROW * NARROW_PLANE; e += THREADS) narrow[e] = 0.0f;
    for (int e = threadIdx.x; e < HEADS * X_PLANE; e += THREADS) x[e] = 0.0f;
    store_columns(far);
    __syncthreads();
    each_feature<HEADS>(p.grad, p.batch, image, p.reverse, [&](int place, const float* from) { x[place] = stored(*from); });
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
    if (BLOCKS) call(last - SAVED_BLOCK, SAVED_BLOCK);
    add_up_saved<HEAD / 16, WIDE / 8>(parts + WEIGHT_PARTS - HEAD_PART, of_biases + WIDE + BLOCKS * BIAS_BLOCK, outputs, saved + last * SAVED_PLANE);
    each_chunk_back<WIDE / 16, padded(HEADS, 8) / 8>(
        weights, saved + last * SAVED_PLANE, [&](int head, const Tiles& tiles, int i) { return of_output(head, tiles.loaded(i)); },
        [&](int map, int pixel, float one, float two) {
            *reinterpret_cast<float2*>(wide + map * WIDE_PLANE + pixel) = make_float2(stored(one), stored(two));
        });
    weights += padded(HEADS, 8) * WIDE;
    __syncthreads();
    // The image replaces the head's gradient, loaded asynchronously.
    each_feature(p.x, p.batch, image, p.reverse, [&](int place, const float* from) { copy_async(x + place, from); });
    end_group();

    NO_UNROLL for (int block = BLOCKS - 1; block >= 0; block--) {
        const int first = block * SAVED_BLOCK;  // saved maps of this block: wide, small, inner
        float* matrices = parts + FIRST_PART + block * BLOCK_PART;
        float* sums = of_biases + WIDE + block * BIAS_BLOCK;
        if (block) call(first - SAVED_BLOCK, SAVED_BLOCK);

        // Through the 1x1 convolution back to the inner narrow maps.
        add_up_saved<WIDE / 16, NARROW / 8>(matrices + SHRINK_PART + LOOK_PART, sums + 2 * NARROW, wides, saved + (first + WIDE + NARROW) * SAVED_PLANE);
        each_chunk_back<NARROW / 16, WIDE / 8>(
            weights, saved + (first + WIDE + NARROW) * SAVED_PLANE,
            [&](int map, const Tiles& tiles, int i) { return of_wide(map, tiles.loaded(i)); }, store_narrow);
        weights += NARROW * WIDE;
        __syncthreads();

        // Through the 3x3 convolution.
        auto seen_from = [&](int place, int map, int pixel) { return pair_at(narrow + map * NARROW_PLANE - near_offset(place), pixel, mirrored_place); };
        const Activation* looked_at = saved + (first + WIDE) * SAVED_PLANE;
        if (warp % GROUPS < 2)
            add_up_looks<0>(matrices + SHRINK_PART, sums + NARROW, seen_from, looked_at);
        else
            add_up_looks<1>(matrices + SHRINK_PART, sums + NARROW, seen_from, looked_at);
        float seen[CHUNKS][AT_ONCE][NARROW / 16][4] = {};
        UNROLL for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const Tiles tiles(chunk);
            const Activity<NARROW / 16> active(tiles, looked_at);
            int place[AT_ONCE];
            UNROLL for (int i = 0; i < AT_ONCE; i++) place[i] = tiles.at(i, NARROW_ROW, mirrored_place) + member * NARROW_PLANE;
            multiply<NARROW / 16, LOOK_STEPS, GRADIENTS>(seen[chunk], weights, [&](int step, int half, int i) {
                return narrow[(8 * step % NARROW + half) * NARROW_PLANE - near_offset(8 * step / NARROW) + place[i]];
            });
            active.apply(seen[chunk]);
        }
        weights += LOOK_STEPS * NARROW * 8;
        __syncthreads();
        UNROLL for (int chunk = 0; chunk < CHUNKS; chunk++) each_pair(Tiles(chunk), seen[chunk], store_narrow);
        __syncwarp();

        // Through the 1x1 convolution back to the wide maps, added to the skip connection's gradient.
        each_chunk_back<WIDE / 16, NARROW / 8>(
            weights, saved + first * SAVED_PLANE,
            [&](int map, const Tiles& tiles, int i) { return narrow[map * NARROW_PLANE + tiles.at(i, NARROW_ROW, mirrored_place)]; },
            [&](int map, int pixel, float one, float two) {
                float2* at = reinterpret_cast<float2*>(wide + map * WIDE_PLANE + pixel);
                *at = make_float2(stored(at->x + one), stored(at->y + two));
            });
        weights += NARROW * WIDE;
        __syncthreads();
        add_up_saved<NARROW / 16, WIDE / 8>(matrices, sums, narrows, saved + first * SAVED_PLANE);
        __syncthreads();
    }

    // The first convolution.
    wait_for_groups<0>();
    each_feature(p.x, p.batch, image, p.reverse, [&](int place, const float*) { x[place] = stored(x[place]); });
    __syncthreads();
    add_up<WIDE / 16, FIRST_STEPS, 1>(
        parts, of_biases, wides, [&](int column) { return x + far[column]; }, [](const float* from, int) { return from; },
        [](const float* from, int, int pixel) { return pair_at(from, pixel, x_place); });
    // Its transpose, one warp per image row: contributions of the row's pixels to every column and channel of one
    // kernel row, then gathered by pixel.
    float* stripe = narrow + warp * padded(SEEN * STRIPE_ROW, 2);
    for (int e = lane; e < SEEN * STRIPE_ROW; e += 32) stripe[e] = 0.0f;
    __syncwarp();
    NO_UNROLL for (int row = warp; row < HEIGHT; row += WARPS) {
        constexpr int WIDTHS = (WIDTH + 31) / 32;
        // Prefetch the direct gradient.
        float gathered[CHANNELS][WIDTHS];
        UNROLL for (int w = 0; w < WIDTHS; w++)
            UNROLL for (int channel = 0; channel < CHANNELS; channel++)
                gathered[channel][w] = lane + 32 * w < WIDTH ? p.grad[feature_index(channel, row * WIDTH + lane + 32 * w, p.reverse) * p.batch + image] : 0.0f;
        NO_UNROLL for (int down = 0; down <= FAR && row + down < HEIGHT; down++) {
            const int begin = (row + down) * WIDTH;
            float sum[ROW_TILES][STRIPE / 16][4] = {};
            multiply<STRIPE / 16, WIDE / 8, GRADIENTS>(sum, weights + down * STRIPE * WIDE, [&](int step, int half, int tile) {
                return of_wide(8 * step + half + member, begin + (WIDTH % 8 ? min(8 * tile + lane / 4, WIDTH - 1) : 8 * tile + lane / 4));
            });
            UNROLL for (int tile = 0; tile < ROW_TILES; tile++)
                UNROLL for (int m = 0; m < STRIPE / 16; m++)
                    UNROLL for (int c = 0; c < 4; c++) {
                        const int i = 16 * m + 8 * (c / 2) + lane / 4, j = 8 * tile + 2 * member + c % 2;
                        if (i < SEEN && j < WIDTH) stripe[i * STRIPE_ROW + FAR + j] = sum[tile][m][c];
                    }
            __syncwarp();
            UNROLL for (int w = 0; w < WIDTHS; w++) {
                const int column = lane + 32 * w;
                if (column >= WIDTH) continue;
                UNROLL for (int side = 0; side < FAR_SIDE; side++)  // mirrored
                    UNROLL for (int channel = 0; channel < CHANNELS; channel++)
                        gathered[channel][w] += stripe[(side * CHANNELS + channel) * STRIPE_ROW + column + 2 * FAR - side];
            }
            __syncwarp();
        }
        UNROLL for (int w = 0; w < WIDTHS; w++) {
            const int column = lane + 32 * w;
            if (column >= WIDTH) continue;
            UNROLL for (int channel = 0; channel < CHANNELS; channel++)
                p.grad_x[feature_index(channel, row * WIDTH + column, p.reverse) * p.batch + image] = gathered[channel][w];
        }
    }
}
