// x from z = x + c(x), or from z = exp(s(x)) (x + c(x)), by substitution: one thread block takes one image.
//
// The pixels of a front, those of equal 4 row + column, are independent of each other. Front by front, all maps first
// accumulate the pixels before; then, channel by channel, the units of the front's pixels follow layer by layer, and
// finally the channel itself.
//
// Sums have the dtype of the pixels; hidden units are float32, as in the forward pass of the same dtype: a float64 sum
// is rounded only when complete.

template <class Number>
struct InverseArguments {
    const Number* z;        // [FEATURES][batch]
    const float* matrices;  // of the layers, row by row
    const float* biases;
    const float* added;     // by the context, [batch][ADDED]; or null
    Number* x;              // [FEATURES][batch]
    int batch;
};

constexpr int SKEW = 4, FRONTS = WIDTH + SKEW * (HEIGHT - 1), FRONT = padded((WIDTH + SKEW - 1) / SKEW, 8);

// Padded row length of a matrix in shared memory, such that four rows can be read at once as float4 without bank
// conflicts.
__host__ __device__ constexpr int stride_of(int columns) { return padded(columns, 4) % 16 ? padded(columns, 4) : padded(columns, 4) + 4; }
constexpr int BEFORE = (FAR_PLACES - 1) * CHANNELS, FIRST_COLUMNS = 8 * FIRST_STEPS, LOOK_COLUMNS = NEAR_PLACES * NARROW;
constexpr int FIRST_STRIDE = stride_of(FIRST_COLUMNS), WIDE_STRIDE = stride_of(WIDE), LOOK_STRIDE = stride_of(LOOK_COLUMNS), NARROW_STRIDE = stride_of(NARROW);
constexpr int BLOCK_MATRICES = NARROW * WIDE_STRIDE + NARROW * LOOK_STRIDE + WIDE * NARROW_STRIDE;
constexpr int MATRICES = WIDE * FIRST_STRIDE + BLOCKS * BLOCK_MATRICES + HEADS * WIDE_STRIDE;
constexpr int BIASES = WIDE + BLOCKS * (2 * NARROW + WIDE) + HEAD;

// The first of a channel's maps.
INLINE int first_of(int channel, int maps) { return (channel * maps + CHANNELS - 1) / CHANNELS; }

INLINE float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
INLINE double multiply_add(double a, double b, double c) { return fma(a, b, c); }

// z without its scale, given the free log-scale: s = 2 tanh(r / 2), as in ops/pixel_affine.py.
INLINE float unscaled(float z, float free) { return z * expf(-float(LOG_SCALE_MAX) * tanhf(free / float(LOG_SCALE_MAX))); }
INLINE double unscaled(double z, double free) { return z * exp(-LOG_SCALE_MAX * tanh(free / LOG_SCALE_MAX)); }

// The product of a row with one column per pixel of the front.
template <class Number, class Other> INLINE Number dot(const float* row, const Other* column, int count) {
    Number even = 0, odd = 0;
    int k = 0;
    for (; k + 1 < count; k += 2) {
        even = multiply_add(Number(row[k]), Number(column[k * FRONT]), even);
        odd = multiply_add(Number(row[k + 1]), Number(column[(k + 1) * FRONT]), odd);
    }
    if (k < count) even = multiply_add(Number(row[k]), Number(column[k * FRONT]), even);
    return even + odd;
}

template <class Number> INLINE void solve(const InverseArguments<Number>& p) {
    DYNAMIC_SHARED(memory);
    Number* x = reinterpret_cast<Number*>(memory);
    Number* now = x + padded(CHANNELS * X_PLANE, 2);               // the front's pixels; likewise below
    Number* wide = now + CHANNELS * FRONT;                         // [maps][FRONT]
    Number* seen = wide + WIDE * FRONT;                            // contributions of pixels before, by block
    float* active = reinterpret_cast<float*>(seen + BLOCKS * NARROW * FRONT);  // wide maps after activation, by block and for the head
    float* small = active + (BLOCKS + 1) * WIDE * FRONT;
    float* inner = small + BLOCKS * NARROW * FRONT;
    float* matrices = inner + BLOCKS * NARROW * FRONT;
    float* narrow = matrices + MATRICES;                           // inputs of the 3x3 convolutions, by block, of all pixels
    float* biases = narrow + BLOCKS * NARROW * NARROW_PLANE;       // including what the context adds
    int* far = reinterpret_cast<int*>(biases + BIASES);
    const int image = blockIdx.x;

    // Copy a matrix with padded rows.
    auto load = [&](float*& to, const float*& from, int rows, int columns, int stride) {
        for (int e = threadIdx.x; e < rows * columns; e += THREADS) to[e / columns * stride + e % columns] = from[e];
        to += rows * stride, from += rows * columns;
    };
    {
        float* to = matrices;
        const float* from = p.matrices;
        load(to, from, WIDE, FIRST_COLUMNS, FIRST_STRIDE);
        for (int block = 0; block < BLOCKS; block++) {
            load(to, from, NARROW, WIDE, WIDE_STRIDE);
            load(to, from, NARROW, LOOK_COLUMNS, LOOK_STRIDE);
            load(to, from, WIDE, NARROW, NARROW_STRIDE);
        }
        load(to, from, HEADS, WIDE, WIDE_STRIDE);
    }
    for (int e = threadIdx.x; e < BIASES; e += THREADS) {
        const int i = e - WIDE, block = i / (2 * NARROW + WIDE), map = i % (2 * NARROW + WIDE) - NARROW;
        float value = p.biases[e];
        if (p.added && e < WIDE) value += p.added[static_cast<long>(image) * ADDED + e];
        if (p.added && e >= WIDE && block < BLOCKS && map >= 0 && map < NARROW)
            value += p.added[static_cast<long>(image) * ADDED + WIDE + block * NARROW + map];
        biases[e] = value;
    }
    for (int e = threadIdx.x; e < BLOCKS * NARROW * NARROW_PLANE; e += THREADS) narrow[e] = 0.0f;
    for (int e = threadIdx.x; e < CHANNELS * X_PLANE; e += THREADS) x[e] = 0;
    for (int k = threadIdx.x; k < BEFORE; k += THREADS) far[k] = k % CHANNELS * X_PLANE + far_offset(k / CHANNELS);
    __syncthreads();

    const float* of_blocks = matrices + WIDE * FIRST_STRIDE;
    const float* of_head = of_blocks + BLOCKS * BLOCK_MATRICES;
    NO_UNROLL for (int front = 0; front < FRONTS; front++) {
        // The front's pixels, one in each of consecutive rows.
        const int first = max(0, (front - WIDTH + SKEW) / SKEW), last = min(HEIGHT - 1, front / SKEW);
        if (last < first) continue;  // narrow images have fronts without pixels
        auto exists = [&](int q) { return first + q <= last; };
        auto pixel_of = [&](int q) {
            const int row = min(first + q, last);
            return row * WIDTH + front - SKEW * row;
        };

        // Contributions of the pixels before.
        for (int e = threadIdx.x; e < (WIDE + BLOCKS * NARROW) * FRONT; e += THREADS) {
            const int map = e / FRONT, q = e % FRONT, pixel = pixel_of(q);
            Number even = 0, odd = 0;
            if (map < WIDE) {
                const float* row = matrices + map * FIRST_STRIDE;
                const Number* at = x + x_place(pixel);
#pragma unroll 4
                for (int k = 0; k + 1 < BEFORE; k += 2) {
                    even = multiply_add(Number(row[k]), at[far[k]], even);
                    odd = multiply_add(Number(row[k + 1]), at[far[k + 1]], odd);
                }
                const Number value = biases[map] + (even + odd);
                const float unit = value;  // complete for the first channel
                wide[e] = map < first_of(1, 2 * MAPS) ? unit : value;
                active[e] = rectified(unit);
            } else {
                const int block = (map - WIDE) / NARROW, mine = (map - WIDE) % NARROW;
                const float* row = of_blocks + block * BLOCK_MATRICES + NARROW * WIDE_STRIDE + mine * LOOK_STRIDE;
                const float* at = narrow + block * NARROW * NARROW_PLANE + narrow_place(pixel);
                UNROLL for (int place = 0; place < NEAR_PLACES - 1; place++)
                    UNROLL for (int k = 0; k < NARROW; k += 2) {
                        even = multiply_add(Number(row[place * NARROW + k]), Number(at[k * NARROW_PLANE + near_offset(place)]), even);
                        odd = multiply_add(Number(row[place * NARROW + k + 1]), Number(at[(k + 1) * NARROW_PLANE + near_offset(place)]), odd);
                    }
                seen[e - WIDE * FRONT] = biases[WIDE + block * (2 * NARROW + WIDE) + NARROW + mine] + (even + odd);
            }
        }
        __syncthreads();

        NO_UNROLL for (int channel = 0; channel < CHANNELS; channel++) {
            const int w = first_of(channel, 2 * MAPS), known = first_of(channel + 1, 2 * MAPS);  // the channel's wide maps
            const int n = first_of(channel, MAPS), few = first_of(channel + 1, MAPS);
            if (channel) {
                for (int e = w * FRONT + threadIdx.x; e < known * FRONT; e += THREADS) {
                    const float unit = wide[e] + dot<Number>(matrices + e / FRONT * FIRST_STRIDE + BEFORE, now + e % FRONT, channel);
                    wide[e] = unit;
                    active[e] = rectified(unit);
                }
                __syncthreads();
            }
            NO_UNROLL for (int block = 0; block < BLOCKS; block++) {
                const float *shrink = of_blocks + block * BLOCK_MATRICES, *look = shrink + NARROW * WIDE_STRIDE, *grow = look + NARROW * LOOK_STRIDE;
                const float* bias = biases + WIDE + block * (2 * NARROW + WIDE);
                const float* before = active + block * WIDE * FRONT;
                float *mine = small + block * NARROW * FRONT, *after = inner + block * NARROW * FRONT;
                for (int e = n * FRONT + threadIdx.x; e < few * FRONT; e += THREADS) {
                    const int map = e / FRONT, q = e % FRONT;
                    mine[e] = rectified(bias[map] + dot<Number>(shrink + map * WIDE_STRIDE, before + q, known));
                    if (exists(q)) narrow[(block * NARROW + map) * NARROW_PLANE + narrow_place(pixel_of(q))] = mine[e];
                }
                __syncthreads();
                for (int e = n * FRONT + threadIdx.x; e < few * FRONT; e += THREADS)
                    after[e] = rectified(seen[block * NARROW * FRONT + e] + dot<Number>(look + e / FRONT * LOOK_STRIDE + (NEAR_PLACES - 1) * NARROW, mine + e % FRONT, few));
                __syncthreads();
                for (int e = w * FRONT + threadIdx.x; e < known * FRONT; e += THREADS) {
                    const float unit = wide[e] + (bias[2 * NARROW + e / FRONT] + dot<Number>(grow + e / FRONT * NARROW_STRIDE, after + e % FRONT, few));
                    wide[e] = unit;
                    active[(block + 1) * WIDE * FRONT + e] = rectified(unit);
                }
                __syncthreads();
            }
            for (int q = threadIdx.x; q < FRONT; q += THREADS) {
                const int pixel = pixel_of(q);
                const long at = feature_index(channel, pixel, false) * p.batch + image;
                auto output = [&](int head) { return biases[BIASES - HEAD + head] + dot<Number>(of_head + head * WIDE_STRIDE, active + BLOCKS * WIDE * FRONT + q, known); };
                const Number shift = output(channel);
                const Number value = (OUTPUTS > 1 ? unscaled(p.z[at], output(CHANNELS + channel)) : p.z[at]) - shift;
                now[channel * FRONT + q] = value;
                if (!exists(q)) continue;
                x[channel * X_PLANE + x_place(pixel)] = value;
                p.x[at] = value;
            }
            __syncthreads();
        }
    }
}
