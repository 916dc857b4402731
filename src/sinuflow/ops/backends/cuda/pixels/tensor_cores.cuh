// The network by tensor cores, layer by layer. An `Arithmetic` defines products, rounding and what is saved:
//
//     using Number = ...;                            // dtype of pixels and sums
//     static constexpr int LOOK_ONCE = ...;          // tiles that share the 3x3 weights of one load
//     Number seen(Number pixel);                     // the network's input
//     float unit(Number sum, bool exists);           // a hidden unit, of a pixel that may not exist
//     float active(Number sum);                      // the same rectified, of a pixel that exists
//     void multiply<TALL, STEPS>(sum, weights, load);
//     void keep(maps, tiles, sum);                   // save the units of a layer, after so many maps

constexpr int ALL = CHUNKS * AT_ONCE;  // tiles of a warp

// Sums of [TALL * 16] rows and the tiles of a chunk. Callbacks name this type: NVRTC compiles no generic lambdas here.
template <class Number, int TALL>
using Sums = Number[AT_ONCE][TALL][4];

// Compute a layer of [TALL * 16] rows in chunks of tiles: call `use` with the tiles and the sums plus `more`, such as
// biases; `load` returns the input (column, tiles, tile).
template <int TALL, int STEPS, class Arithmetic, class More, class Load, class Use>
INLINE void each_chunk(Arithmetic& arithmetic, const float* weights, More more, Load load, Use use) {
    const int member = static_cast<int>(threadIdx.x) % 4;
    NO_UNROLL for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const Tiles tiles(chunk);
        const OfRows<TALL> rows(more);
        Sums<typename Arithmetic::Number, TALL> sum = {};
        arithmetic.template multiply<TALL, STEPS>(sum, weights, [&](int step, int half, int i) { return load(8 * step + half + member, tiles, i); });
        rows.add_to(sum);
        use(tiles, sum);
    }
}

// In shared memory: `wide` maps before activation, and in `far` the offsets of the first convolution's columns.
template <class Arithmetic, class Number = typename Arithmetic::Number>
INLINE void forward_tensor_cores(Arithmetic& arithmetic, float* wide, float* narrow, Number* x, int* far, const ForwardArguments<Number>& p) {
    const int image = blockIdx.x, member = static_cast<int>(threadIdx.x) % 4;
    const float *weights = p.weights, *bias = p.biases;
    const float* added = p.added ? p.added + static_cast<long>(image) * ADDED : nullptr;

    for (int e = threadIdx.x; e < NARROW * NARROW_PLANE; e += THREADS) narrow[e] = 0.0f;
    for (int e = threadIdx.x; e < CHANNELS * X_PLANE; e += THREADS) x[e] = 0;
    store_columns(far);
    __syncthreads();
    each_feature(p.x, p.batch, image, p.reverse, [&](int place, const Number* from) { x[place] = *from; });
    __syncthreads();

    auto exists = [](int pixel) { return PIXELS % 8 == 0 || pixel < PIXELS; };
    // Store the wide maps at two pixels; there is room for a second pixel beyond the last.
    auto store_wide = [&](int map, int pixel, Number one, Number two) {
        *reinterpret_cast<float2*>(wide + map * WIDE_PLANE + pixel) = make_float2(arithmetic.unit(one, exists(pixel)), arithmetic.unit(two, exists(pixel + 1)));
    };
    auto store_narrow = [&](int map, int pixel, Number one, Number two) {
        float* to = narrow + map * NARROW_PLANE;
        if (exists(pixel)) to[narrow_place(pixel)] = arithmetic.active(one);
        if (exists(pixel + 1)) to[narrow_place(pixel + 1)] = arithmetic.active(two);
    };
    auto active = [&](int map, const Tiles& tiles, int i) { return rectified(wide[map * WIDE_PLANE + tiles.loaded(i)]); };
    auto of_bias = [&](int map) { return bias[map]; };

    each_chunk<WIDE / 16, FIRST_STEPS>(
        arithmetic, weights, [&](int map) { return bias[map] + (added ? added[map] : 0.0f); },
        [&](int column, const Tiles& tiles, int i) { return arithmetic.seen(x[far[column] + tiles.at(i, X_ROW, x_place)]); },
        [&](const Tiles& tiles, Sums<Number, WIDE / 16>& sum) {
            each_pair(tiles, sum, store_wide);
            arithmetic.keep(0, tiles, sum);
        });
    weights += FIRST_STEPS * WIDE * 8, bias += WIDE;
    __syncwarp();

    NO_UNROLL for (int block = 0; block < BLOCKS; block++) {
        const int maps = block * SAVED_BLOCK + WIDE;  // saved maps before those of this block
        each_chunk<NARROW / 16, SHRINK_STEPS>(arithmetic, weights, of_bias, active, [&](const Tiles& tiles, Sums<Number, NARROW / 16>& sum) {
            each_pair(tiles, sum, store_narrow);
            arithmetic.keep(maps, tiles, sum);
        });
        weights += SHRINK_STEPS * NARROW * 8, bias += NARROW;
        __syncthreads();

        // Every warp has read its neighbourhood before any writes.
        constexpr int ONCE = Arithmetic::LOOK_ONCE, PARTS = ALL / ONCE;
        const OfRows<NARROW / 16> more([&](int map) { return bias[map] + (added ? added[WIDE + block * NARROW + map] : 0.0f); });
        Number looked[PARTS][ONCE][NARROW / 16][4] = {};
        UNROLL for (int part = 0; part < PARTS; part++) {
            const Tiles tiles(part * ONCE / AT_ONCE);
            int place[ONCE];
            UNROLL for (int i = 0; i < ONCE; i++) place[i] = tiles.at(i, NARROW_ROW, narrow_place) + member * NARROW_PLANE;
            arithmetic.template multiply<NARROW / 16, LOOK_STEPS>(looked[part], weights, [&](int step, int half, int i) {
                return narrow[(8 * step % NARROW + half) * NARROW_PLANE + near_offset(8 * step / NARROW) + place[i]];
            });
        }
        __syncthreads();
        UNROLL for (int part = 0; part < PARTS; part++) {
            const Tiles tiles(part * ONCE / AT_ONCE);
            more.add_to(looked[part]);
            each_pair(tiles, looked[part], store_narrow);
            arithmetic.keep(maps + NARROW, tiles, looked[part]);
        }
        weights += LOOK_STEPS * NARROW * 8, bias += NARROW;
        __syncwarp();

        each_chunk<WIDE / 16, GROW_STEPS>(
            arithmetic, weights, of_bias,
            [&](int map, const Tiles& tiles, int i) { return narrow[map * NARROW_PLANE + tiles.at(i, NARROW_ROW, narrow_place)]; },
            [&](const Tiles& tiles, Sums<Number, WIDE / 16>& sum) {
                each_pair(tiles, sum, [&](int map, int pixel, Number& one, Number& two) {
                    const float2 before = *reinterpret_cast<const float2*>(wide + map * WIDE_PLANE + pixel);
                    one += before.x, two += before.y;
                    store_wide(map, pixel, one, two);
                });
                arithmetic.keep(maps + 2 * NARROW, tiles, sum);
            });
        weights += GROW_STEPS * WIDE * 8, bias += WIDE;
        __syncwarp();
    }

    each_chunk<HEAD / 16, HEAD_STEPS>(arithmetic, weights, of_bias, active, [&](const Tiles& tiles, Sums<Number, HEAD / 16>& sum) {
        each_pair(tiles, sum, [&](int head, int pixel, Number one, Number two) {
            if (head >= HEADS) return;
            auto own = [&](int pixel) { return head < CHANNELS ? x[head * X_PLANE + x_place(pixel)] : Number(0); };
            if (pixel < PIXELS) p.outputs[output_index(head, pixel, p.reverse) * p.batch + image] = own(pixel) + one;
            if (pixel + 1 < PIXELS) p.outputs[output_index(head, pixel + 1, p.reverse) * p.batch + image] = own(pixel + 1) + two;
        });
    });
}
