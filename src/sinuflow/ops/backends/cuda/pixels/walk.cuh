// What is told of an image by tensor cores, layer by layer. How numbers are multiplied, rounded and kept is told by a `Way`:
//
//     using Number = ...;                            // of pixels and sums
//     static constexpr int LOOK_ONCE = ...;          // tiles for which the looks' weights are fetched once
//     Number seen(Number pixel);                     // what a network sees of it
//     float unit(Number sum, bool exists);           // of a layer that is done, at a pixel that may be one too many
//     float active(Number sum);                      // the same rectified, at a pixel that exists
//     void multiply<TALL, STEPS>(sum, weights, load);
//     void keep(maps, tiles, sum);                   // the units of a layer, after so many maps

// Where the numbers of an image are in shared memory.
template <class Number>
struct Maps {
    float* wide;  // before its activation
    float* narrow;
    Number* x;
    int* far;  // where the columns of the first convolution are, from a pixel
};

constexpr int ALL = CHUNKS * AT_ONCE;  // tiles of a warp

template <class Way, class Number = typename Way::Number>
__device__ __forceinline__ void walk(Way& way, const Maps<Number>& at, const ForwardArguments<Number>& p) {
    const int image = blockIdx.x, member = static_cast<int>(threadIdx.x) % 4;
    const float *weights = p.weights, *bias = p.biases;
    const float* added = p.added ? p.added + static_cast<long>(image) * ADDED : nullptr;

    for (int e = threadIdx.x; e < NARROW * NARROW_PLANE; e += THREADS) at.narrow[e] = 0.0f;
    for (int e = threadIdx.x; e < CHANNELS * X_PLANE; e += THREADS) at.x[e] = 0;
    note_columns(at.far);
    __syncthreads();
    each_number(p.x, p.batch, image, p.reverse, [&](int place, const Number* from) { at.x[place] = *from; });
    __syncthreads();

    auto exists = [](int pixel) { return PIXELS % 8 == 0 || pixel < PIXELS; };
    // The wide maps at two pixels, of which the second may be one too many: there is room for it.
    auto store_wide = [&](int map, int pixel, Number one, Number two) {
        *reinterpret_cast<float2*>(at.wide + map * WIDE_PLANE + pixel) = make_float2(way.unit(one, exists(pixel)), way.unit(two, exists(pixel + 1)));
    };
    auto store_narrow = [&](int map, int pixel, Number one, Number two) {
        float* to = at.narrow + map * NARROW_PLANE;
        if (exists(pixel)) to[narrow_place(pixel)] = way.active(one);
        if (exists(pixel + 1)) to[narrow_place(pixel + 1)] = way.active(two);
    };
    auto active = [&](int map, int pixel) { return rectified(at.wide[map * WIDE_PLANE + pixel]); };

#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const Tiles tiles(chunk);
        Number sum[AT_ONCE][WIDE / 16][4] = {};
        const OfRows<WIDE / 16> more([&](int map) { return bias[map] + (added ? added[map] : 0.0f); });
        int place[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) place[i] = tiles.at(i, X_ROW, x_place);
        way.template multiply<WIDE / 16, FIRST_STEPS>(sum, weights, [&](int step, int half, int i) { return way.seen(at.x[at.far[8 * step + half + member] + place[i]]); });
        more.add_to(sum);
        each_pair(tiles, sum, store_wide);
        way.keep(0, tiles, sum);
    }
    weights += FIRST_STEPS * WIDE * 8, bias += WIDE;
    __syncwarp();

#pragma unroll 1
    for (int block = 0; block < BLOCKS; block++) {
        const int maps = block * KEPT_BLOCK + WIDE;  // before those of this bottleneck
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const Tiles tiles(chunk);
            const OfRows<NARROW / 16> more([&](int map) { return bias[map]; });
            Number sum[AT_ONCE][NARROW / 16][4] = {};
            way.template multiply<NARROW / 16, SHRINK_STEPS>(sum, weights, [&](int step, int half, int i) { return active(8 * step + half + member, tiles.loaded(i)); });
            more.add_to(sum);
            each_pair(tiles, sum, store_narrow);
            way.keep(maps, tiles, sum);
        }
        weights += SHRINK_STEPS * NARROW * 8, bias += NARROW;
        __syncthreads();

        // All warps have looked before anybody writes to where they look.
        constexpr int ONCE = Way::LOOK_ONCE, PARTS = ALL / ONCE;
        const OfRows<NARROW / 16> more([&](int map) { return bias[map] + (added ? added[WIDE + block * NARROW + map] : 0.0f); });
        Number looked[PARTS][ONCE][NARROW / 16][4] = {};
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const Tiles tiles(part * ONCE / AT_ONCE);
            int place[ONCE];
#pragma unroll
            for (int i = 0; i < ONCE; i++) place[i] = tiles.at(i, NARROW_ROW, narrow_place) + member * NARROW_PLANE;
            way.template multiply<NARROW / 16, LOOK_STEPS>(looked[part], weights, [&](int step, int half, int i) {
                return at.narrow[(8 * step % NARROW + half) * NARROW_PLANE + near_offset(8 * step / NARROW) + place[i]];
            });
        }
        __syncthreads();
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const Tiles tiles(part * ONCE / AT_ONCE);
            more.add_to(looked[part]);
            each_pair(tiles, looked[part], store_narrow);
            way.keep(maps + NARROW, tiles, looked[part]);
        }
        weights += LOOK_STEPS * NARROW * 8, bias += NARROW;
        __syncwarp();

#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const Tiles tiles(chunk);
            const OfRows<WIDE / 16> more([&](int map) { return bias[map]; });
            Number sum[AT_ONCE][WIDE / 16][4] = {};
            way.template multiply<WIDE / 16, GROW_STEPS>(sum, weights, [&](int step, int half, int i) {
                return at.narrow[(8 * step + half + member) * NARROW_PLANE + tiles.at(i, NARROW_ROW, narrow_place)];
            });
            more.add_to(sum);
            each_pair(tiles, sum, [&](int map, int pixel, Number& one, Number& two) {
                const float2 before = *reinterpret_cast<const float2*>(at.wide + map * WIDE_PLANE + pixel);
                one += before.x, two += before.y;
                store_wide(map, pixel, one, two);
            });
            way.keep(maps + 2 * NARROW, tiles, sum);
        }
        weights += GROW_STEPS * WIDE * 8, bias += WIDE;
        __syncwarp();
    }

#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const Tiles tiles(chunk);
        const OfRows<HEAD / 16> more([&](int head) { return bias[head]; });
        Number sum[AT_ONCE][HEAD / 16][4] = {};
        way.template multiply<HEAD / 16, HEAD_STEPS>(sum, weights, [&](int step, int half, int i) { return active(8 * step + half + member, tiles.loaded(i)); });
        more.add_to(sum);
        each_pair(tiles, sum, [&](int head, int pixel, Number one, Number two) {
            if (head >= HEADS) return;
            auto own = [&](int pixel) { return head < CHANNELS ? at.x[head * X_PLANE + x_place(pixel)] : Number(0); };
            if (pixel < PIXELS) p.told[told_of(head, pixel, p.reverse) * p.batch + image] = own(pixel) + one;
            if (pixel + 1 < PIXELS) p.told[told_of(head, pixel + 1, p.reverse) * p.batch + image] = own(pixel + 1) + two;
        });
    }
}
