// The chain rule through pixel_forward: from the gradient of z to that of x, and for every image what it contributes to
// the gradients of the weights and biases.

struct PixelBackwardArguments {
    const float* grad_z;   // [NUMBERS][batch]
    const float* x;        // [NUMBERS][batch]
    const float* kept;     // [batch][KEPT_MAPS][KEPT_PLANE]
    const float* weights;  // of the transposed layers, from the last to the first
    float* grad_x;         // [NUMBERS][batch]
    float* parts;          // [batch][PARTS]
    int batch, reverse;
};

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
constexpr int LARGEST_PART = FIRST_PART > LOOK_PART ? FIRST_PART : LOOK_PART;

// Sums over pixels of products of two maps, [TALL * 16] by [COLUMNS8 * 8]. Four groups of warps take a quarter of the
// tiles of the result each, and in each group four warps a quarter of the pixels, which are then added up in turn.
// `left` gives a number of a row at a pixel; `begin` gets a column and says what `right` will get beside the pixel.
template <int TALL, int COLUMNS8, class Left, class Begin, class Right>
__device__ __forceinline__ void add_up(float* scratch, float* to, Left left, Begin begin, Right right) {
    constexpr int QUARTER = (COLUMNS8 + 3) / 4;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, turn = warp / 4, group = warp % 4;
    float sum[TALL][QUARTER][4] = {};
    decltype(begin(0)) column[QUARTER];
#pragma unroll
    for (int i = 0; i < QUARTER; i++) column[i] = begin(8 * min(group + 4 * i, COLUMNS8 - 1) + lane / 4);
    float next[QUARTER][2];  // from memory far away, so they are asked for early
    auto ask = [&](int tile) {
        const int pixel = 8 * min(tile, TILES - 1) + 2 * (lane % 4);
#pragma unroll
        for (int i = 0; i < QUARTER; i++) next[i][0] = right(column[i], pixel), next[i][1] = right(column[i], pixel + 1);
    };
    ask(turn);
#pragma unroll 1
    for (int tile = turn; tile < TILES; tile += 4) {
        const int pixel = 8 * tile + 2 * (lane % 4);
        float here[QUARTER][2];
#pragma unroll
        for (int i = 0; i < QUARTER; i++) here[i][0] = next[i][0], here[i][1] = next[i][1];
        ask(tile + 4);
        float above[TALL][4], below[TALL][4];
#pragma unroll
        for (int m = 0; m < TALL; m++)
#pragma unroll
            for (int c = 0; c < 4; c++) split(left(16 * m + lane / 4 + c % 2 * 8, pixel + c / 2), above[m][c], below[m][c]);
#pragma unroll
        for (int i = 0; i < QUARTER; i++) {
            float high[2], low[2];
            split(here[i][0], high[0], low[0]);
            split(here[i][1], high[1], low[1]);
#pragma unroll
            for (int m = 0; m < TALL; m++) {
                mma_tf32(sum[m][i], above[m], low);
                mma_tf32(sum[m][i], below[m], high);
                mma_tf32(sum[m][i], above[m], high);
            }
        }
    }
#pragma unroll 1
    for (int now = 0; now < 4; now++) {
        if (turn == now)
#pragma unroll
            for (int i = 0; i < QUARTER; i++) {
                if (group + 4 * i >= COLUMNS8) continue;
#pragma unroll
                for (int m = 0; m < TALL; m++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        const int at = (16 * m + 8 * h + lane / 4) * 8 * COLUMNS8 + 8 * (group + 4 * i) + 2 * (lane % 4);
                        float2 total = make_float2(sum[m][i][2 * h], sum[m][i][2 * h + 1]);
                        if (now) {
                            const float2 before = *reinterpret_cast<const float2*>(scratch + at);
                            total.x += before.x, total.y += before.y;
                        }
                        *reinterpret_cast<float2*>((now < 3 ? scratch : to) + at) = total;
                    }
            }
        __syncthreads();
    }
}

// The sum of every map over all pixels, by one warp each.
template <class At>
__device__ __forceinline__ void add_maps(float* to, int maps, At at) {
    for (int map = threadIdx.x / 32; map < maps; map += WARPS) {
        float sum = 0.0f;
        for (int pixel = threadIdx.x % 32; pixel < PIXELS; pixel += 32) sum += at(map, pixel);
#pragma unroll
        for (int distance = 16; distance; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
        if (threadIdx.x % 32 == 0) to[map] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) pixel_backward(const PixelBackwardArguments p) {
    DYNAMIC_SHARED(memory);
    float* wide = memory;  // gradients of the wide maps, before their activation
    float* narrow = wide + WIDE * WIDE_PLANE;
    float* scratch = narrow + NARROW_ROOM;
    float* x = scratch + LARGEST_PART;  // at first, the gradient of the head's output
    int* far = reinterpret_cast<int*>(x + CHANNELS * X_PLANE);
    const int image = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, member = lane % 4;
    const float* kept = p.kept + static_cast<long>(image) * KEPT_MAPS * KEPT_PLANE;
    float* parts = p.parts + static_cast<long>(image) * PARTS;
    float* of_biases = parts + WEIGHT_PARTS;

    auto load_image = [&](const float* from) {
        for (int e = threadIdx.x; e < NUMBERS; e += THREADS)
            x[e / PIXELS * X_PLANE + x_place(e % PIXELS)] = from[number_of(e / PIXELS, e % PIXELS, p.reverse) * p.batch + image];
    };
    for (int e = threadIdx.x; e < NARROW * NARROW_PLANE; e += THREADS) narrow[e] = 0.0f;
    for (int e = threadIdx.x; e < CHANNELS * X_PLANE; e += THREADS) x[e] = 0.0f;
    for (int k = threadIdx.x; k < 8 * FIRST_STEPS; k += THREADS) {
        const int place = min(k / CHANNELS, FAR_PLACES - 1);
        far[k] = k % CHANNELS * X_PLANE + far_offset(place);
    }
    __syncthreads();
    load_image(p.grad_z);
    __syncthreads();

    // Which units passed anything on is told from what was kept of them.
    auto was_active = [&](int map, int pixel, float& one, float& two) {
        const float2 pair = __ldg(reinterpret_cast<const float2*>(kept + map * KEPT_PLANE + pixel));
        if (!(pair.x > 0.0f)) one = 0.0f;
        if (!(pair.y > 0.0f)) two = 0.0f;
    };
    auto store_narrow = [&](int map, int pixel, float one, float two) {
        float* to = narrow + map * NARROW_PLANE;
        if (pixel < PIXELS) to[mirrored_place(pixel)] = one;
        if (pixel + 1 < PIXELS) to[mirrored_place(pixel + 1)] = two;
    };
    auto of_output = [&](int channel, int pixel) {
        return channel < CHANNELS && pixel < PIXELS ? x[channel * X_PLANE + x_place(pixel)] : 0.0f;
    };
    auto of_wide = [&](int map, int pixel) { return wide[map * WIDE_PLANE + pixel]; };
    auto of_narrow = [&](int map, int pixel) { return pixel < PIXELS ? narrow[map * NARROW_PLANE + mirrored_place(pixel)] : 0.0f; };
    auto kept_from = [&](int first) { return [=](int map) { return kept + (first + map) * KEPT_PLANE; }; };
    auto kept_at = [](const float* map, int pixel) { return __ldg(map + pixel); };

    // What was kept is far away: so it is called nearer before it is needed.
    auto call = [&](int map, int maps) {
        for (int e = threadIdx.x; e < maps * KEPT_PLANE / 32; e += THREADS) call_nearer(kept + map * KEPT_PLANE + 32 * e);
    };

    // The head.
    const float* weights = p.weights;
    const int last = BLOCKS * KEPT_BLOCK;
    if (BLOCKS) call(last - KEPT_BLOCK, KEPT_BLOCK);
    add_maps(of_biases + WIDE + BLOCKS * BIAS_BLOCK, CHANNELS, of_output);
    add_up<HEAD / 16, WIDE / 8>(scratch, parts + WEIGHT_PARTS - HEAD_PART, of_output, kept_from(last), kept_at);
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const Tiles tiles(chunk);
        float sum[AT_ONCE][WIDE / 16][4] = {};
        multiply<WIDE / 16, padded(CHANNELS, 8) / 8, false>(sum, weights, [&](int step, int half, int i) { return of_output(8 * step + half + member, tiles.loaded(i)); });
        each_pair(tiles, sum, [&](int map, int pixel, float one, float two) {
            was_active(last + map, pixel, one, two);
            *reinterpret_cast<float2*>(wide + map * WIDE_PLANE + pixel) = make_float2(one, two);
        });
    }
    weights += padded(CHANNELS, 8) * WIDE;
    __syncthreads();

#pragma unroll 1
    for (int block = BLOCKS - 1; block >= 0; block--) {
        const int first = block * KEPT_BLOCK;  // of what was kept: wide, small, inner
        float* matrices = parts + FIRST_PART + block * BLOCK_PART;
        float* sums = of_biases + WIDE + block * BIAS_BLOCK;
        if (block) call(first - KEPT_BLOCK, KEPT_BLOCK);

        // Back to the narrow maps.
        add_maps(sums + 2 * NARROW, WIDE, of_wide);
        add_up<WIDE / 16, NARROW / 8>(scratch, matrices + SHRINK_PART + LOOK_PART, of_wide, kept_from(first + WIDE + NARROW), kept_at);
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const Tiles tiles(chunk);
            float sum[AT_ONCE][NARROW / 16][4] = {};
            multiply<NARROW / 16, WIDE / 8, false>(sum, weights, [&](int step, int half, int i) { return of_wide(8 * step + half + member, tiles.loaded(i)); });
            each_pair(tiles, sum, [&](int map, int pixel, float one, float two) {
                was_active(first + WIDE + NARROW + map, pixel, one, two);
                store_narrow(map, pixel, one, two);
            });
        }
        weights += NARROW * WIDE;
        __syncthreads();

        // Back to whatever was looked at.
        add_maps(sums + NARROW, NARROW, of_narrow);
        const float* looked = kept + (first + WIDE) * KEPT_PLANE;
        struct Looked {
            const float* map;  // as if it began at the place
            int down, right;
        };
        add_up<NARROW / 16, NEAR_PLACES * NARROW / 8>(
            scratch, matrices + SHRINK_PART, of_narrow,
            [&](int column) {
                const int place = column / NARROW, down = place / 3 - 1, right = place % 3 - 1;
                return Looked{looked + column % NARROW * KEPT_PLANE + down * WIDTH + right, down, right};
            },
            [&](const Looked& at, int pixel) {
                const int row = pixel / WIDTH + at.down, column = pixel % WIDTH + at.right;
                return pixel < PIXELS && row >= 0 && column >= 0 && column < WIDTH ? __ldg(at.map + pixel) : 0.0f;
            });
        float seen[CHUNKS][AT_ONCE][NARROW / 16][4] = {};
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const Tiles tiles(chunk);
            int place[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) place[i] = tiles.at(i, NARROW_ROW, mirrored_place) + member * NARROW_PLANE;
            multiply<NARROW / 16, LOOK_STEPS, false>(seen[chunk], weights, [&](int step, int half, int i) {
                return narrow[(8 * step % NARROW + half) * NARROW_PLANE - near_offset(8 * step / NARROW) + place[i]];
            });
        }
        weights += LOOK_STEPS * NARROW * 8;
        __syncthreads();
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++)
            each_pair(Tiles(chunk), seen[chunk], [&](int map, int pixel, float one, float two) {
                was_active(first + WIDE + map, pixel, one, two);
                store_narrow(map, pixel, one, two);
            });
        __syncwarp();

        // Back to the wide maps; what went past the bottleneck is there already.
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const Tiles tiles(chunk);
            float sum[AT_ONCE][WIDE / 16][4] = {};
            multiply<WIDE / 16, NARROW / 8, false>(sum, weights, [&](int step, int half, int i) {
                return narrow[(8 * step + half + member) * NARROW_PLANE + tiles.at(i, NARROW_ROW, mirrored_place)];
            });
            each_pair(tiles, sum, [&](int map, int pixel, float one, float two) {
                was_active(first + map, pixel, one, two);
                float2* at = reinterpret_cast<float2*>(wide + map * WIDE_PLANE + pixel);
                *at = make_float2(at->x + one, at->y + two);
            });
        }
        weights += NARROW * WIDE;
        __syncthreads();
        add_maps(sums, NARROW, of_narrow);
        add_up<NARROW / 16, WIDE / 8>(scratch, matrices, of_narrow, kept_from(first), kept_at);
    }

    // The first convolution.
    load_image(p.x);
    __syncthreads();
    add_maps(of_biases, WIDE, of_wide);
    add_up<WIDE / 16, FIRST_STEPS>(scratch, parts, of_wide, [&](int column) { return far[column]; },
                                     [&](int offset, int pixel) { return pixel < PIXELS ? x[offset + x_place(pixel)] : 0.0f; });
    // Its transpose, by rows of the image, a warp for each: what the pixels of a row pass on to every column and
    // channel of one row of the kernel; then every pixel gathers what is meant for it.
    float* stripe = narrow + warp * padded(SEEN * STRIPE_ROW, 2);
    for (int e = lane; e < SEEN * STRIPE_ROW; e += 32) stripe[e] = 0.0f;
    __syncwarp();
#pragma unroll 1
    for (int row = warp; row < HEIGHT; row += WARPS) {
        constexpr int WIDTHS = (WIDTH + 31) / 32;
        float gathered[CHANNELS][WIDTHS] = {};
#pragma unroll 1
        for (int down = 0; down <= FAR && row + down < HEIGHT; down++) {
            const int begin = (row + down) * WIDTH;
            float sum[ROW_TILES][STRIPE / 16][4] = {};
            multiply<STRIPE / 16, WIDE / 8, false>(sum, weights + down * STRIPE * WIDE, [&](int step, int half, int tile) {
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
                const long at = number_of(channel, row * WIDTH + column, p.reverse) * p.batch + image;
                p.grad_x[at] = p.grad_z[at] + gathered[channel][w];
            }
        }
    }
}
