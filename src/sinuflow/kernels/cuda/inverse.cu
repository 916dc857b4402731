// The whole flow from noise to data, by ordered substitution: one block takes ROWS rows through all layers.
//
// When the first m features are known, so are the units of degree m, and with them the parameters of the
// next feature. Degrees are taken in groups. What the features before a group contribute to its units is a
// product, shared by all warps; what happens inside the group is done degree by degree by one warp for each
// row, so that warps need not wait for each other.

struct InverseArguments {
    const float* z;          // [FEATURES][batch]
    const float* context;    // [CONTEXT][batch]
    const float* weights;    // packed, for what is known when a group begins
    const Span* spans;       // rows of tiles of all groups; `unused` says whose they are: layer << 20 | first row
    const float* inner;      // weights inside the groups, transposed, one network after the other
    const int* groups;       // for every group: first degree, end, first span, end, offset and size of inner weights
    const int* pieces;       // for every group and layer: first row, first column, columns, stride, offset of inner weights
    const int* ends;         // for every layer and degree, how many rows have at most that degree; [DEPTH + 1][FEATURES]
    const float* biases;
    const float* waves;
    const float* affine;
    float* x;                // [FEATURES][batch]
    float* ladj;             // of the inverse map, [batch]
    int* iterations;         // [LAYERS][batch], in the order of inversion
    float* residual;
    unsigned char* converged;
    int batch, network_size, inner_size, group_count, limit;
};

constexpr int LAYERS = CONDITIONAL ? NETWORKS : NETWORKS / 2 * 3 + 1;

constexpr float EPSILON = 1.1920929e-07f, SLOW = 0.1f;

// A bracketed search for tau(x) = target, with the local parabola; all threads of a group hold the same state.
struct Search {
    float x, target, low, high, lowest, last, residual, slope;
    int used;
    bool done;

    // centre and radius: tau(x) - x is within centre +- radius. tilt: the slope of slow waves at 0.
    __device__ __forceinline__ void begin(float goal, float shift, float centre, float radius, float tilt, float least) {
        target = goal;
        const float middle = goal - centre, slack = 16.0f * EPSILON * (fabsf(middle) + fabsf(goal) + radius);
        low = middle - radius - slack;
        high = middle + radius + slack;
        lowest = least;
        x = (goal - shift) / tilt;
        last = residual = INFINITY;
        slope = 1.0f;
        used = 0;
        done = false;
    }
    // Take in the function at x, and go on; whether there is anything left to do.
    __device__ __forceinline__ bool step(const Value& found, int limit) {
        const float gap = found.value - target;
        used++;
        residual = fabsf(gap);
        slope = found.slope;
        done = residual <= 8.0f * EPSILON * fmaxf(fabsf(x), fabsf(target));
        if (done || residual != residual || used >= limit) return false;
        const float highest = 2.0f - lowest, near = x - gap / highest, far = x - gap / lowest;
        low = fmaxf(low, gap > 0 ? far : near);
        high = fminf(high, gap > 0 ? near : far);
        float divisor = slope + sqrtf(fabsf(slope * slope - 2.0f * gap * found.curvature));
        divisor = fminf(fmaxf(divisor, 2.0f * lowest), 2.0f * highest);
        const float next = x - 2.0f * gap / divisor;
        x = next >= low && next <= high && residual <= 0.5f * last ? next : 0.5f * (low + high);
        last = residual;
        return true;
    }
};

// Invert one transformer by one thread.
__device__ __forceinline__ void search_alone(Search& search, const Waves& waves, float target, int limit) {
    float centre = waves.shift, radius = 0.0f, tilt = 1.0f, spread = 0.0f;
#pragma unroll
    for (int k = 0; k < WAVES; k++) {
        const float size = sqrtf(fmaf(waves.p[k], waves.p[k], waves.q[k] * waves.q[k])), half = 0.5f / waves.a[k];
        const float slowness = waves.a[k] * waves.a[k] / (SLOW * SLOW);
        centre = fmaf(half, waves.q[k], centre);
        radius = fmaf(half, size, radius);
        tilt -= waves.p[k] / fmaf(slowness, slowness, 1.0f);
        spread += size;
    }
    search.begin(target, waves.shift, centre, radius, tilt, 1.0f - fminf(spread, ALPHA_LARGEST));
    while (search.step(waves.at(search.x), limit)) {
    }
}

__host__ __device__ constexpr int lanes_for(int count) { return count <= 1 ? 1 : count <= 2 ? 2 : count <= 4 ? 4 : count <= 8 ? 8 : count <= 16 ? 16 : 32; }

template <int LANES>
__device__ __forceinline__ float lane_sum(float value) {
#pragma unroll
    for (int distance = LANES / 2; distance; distance /= 2) value += __shfl_xor_sync(~0u, value, distance);
    return value;
}

// Invert one transformer by a warp, a lane for every wave: `out` are the parameters of the feature.
__device__ __forceinline__ void search_together(Search& search, const float* out, int scale, float target, int limit) {
    constexpr int COUNT = SCALES * WAVES, LANES = lanes_for(WAVES);
    static_assert(WAVES <= 32, "a lane for every wave");
    const int k = threadIdx.x % LANES;
    const bool mine = k < WAVES;
    const float* frequencies = out + 2 + scale * WAVES + (mine ? k : 0);
    const float weight = mine ? frequencies[2 * COUNT] : -INFINITY;
    float largest = weight;
#pragma unroll
    for (int distance = LANES / 2; distance; distance /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
    const float e = expf(weight - largest), share = e / lane_sum<LANES>(e);
    const float alpha = ALPHA_LARGEST * tanhf(out[2 + 3 * COUNT + scale]);
    float sine, cosine;
    sin_cos(2.0f * frequencies[COUNT], sine, cosine);
    const float a = softplus(frequencies[0]) + LEAST_FREQUENCY, p = alpha * share * cosine, q = alpha * share * sine;
    const float half = 0.5f / a, slowness = a * a / (SLOW * SLOW);
    const float centre = lane_sum<LANES>(half * q), radius = lane_sum<LANES>(half * fabsf(alpha) * share);
    const float tilt = 1.0f - lane_sum<LANES>(p / fmaf(slowness, slowness, 1.0f));
    search.begin(target, 0.0f, centre, radius, tilt, 1.0f - fabsf(alpha));
    for (bool more = true; more;) {
        float s, c;
        sin_cos(a * search.x, s, c);
        const float square = s * s, product = s * c, turn = fmaf(-2.0f, square, 1.0f);
        Value found;
        found.value = search.x + lane_sum<LANES>((q * square - p * product) / a);
        found.slope = 1.0f - lane_sum<LANES>(fmaf(p, turn, -2.0f * q * product));
        found.curvature = lane_sum<LANES>(2.0f * a * fmaf(q, turn, 2.0f * p * product));
        more = search.step(found, limit);  // the same for all lanes
    }
}

// Rows of a layer inside a group, for one row of the batch and one degree: the numbers of `count` rows, of which
// `known` holds what earlier groups contributed, plus the products with `terms` numbers of the layer below.
// `use` gets the row, counted from the first one, and its number; every lane calls it for rows of its own.
template <bool RECTIFY, class Use>
__device__ __forceinline__ void finish_rows(int count, const float* inner, int stride, const float* below, int terms, Use use) {
    const int lane = threadIdx.x % 32;
    int width = 1;
    while (width < count && width < 32) width *= 2;
    const int across = lane % width, along = lane / width, step = 32 / width;
    for (int base = 0; base < count; base += width) {
        const int row = base + across;
        float total = 0.0f;
        if (row < count)
            for (int v = along; v < terms; v += step) {
                const float h = below[v];
                total = fmaf(inner[v * stride + row], RECTIFY ? rectified(h) : h, total);
            }
        for (int distance = width; distance < 32; distance *= 2) total += __shfl_xor_sync(~0u, total, distance);
        if (row < count && along == 0) use(row, total);
    }
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) flow_inverse(const InverseArguments p) {
    DYNAMIC_SHARED(memory);
    float* x = memory;  // [FEATURES][ROWS]
    float* ladj = x + FEATURES * ROWS;
    float* worst = ladj + FEATURES * ROWS;  // of this layer, by element
    float* most = worst + FEATURES * ROWS;
    float* seen = most + FEATURES * ROWS;
    float* hidden = seen + ROWS * INPUT_STRIDE;           // [DEPTH][ROWS][UNIT_STRIDE], not rectified
    float* out = hidden + DEPTH * ROWS * UNIT_STRIDE;     // [ROWS][HEAD_STRIDE]
    float* inner = out + ROWS * HEAD_STRIDE;
    const int first = blockIdx.x * ROWS, batch = p.batch, warp = threadIdx.x / 32;
    const long rows = batch;

    for (int e = threadIdx.x; e < FEATURES * ROWS; e += THREADS) {
        const int n = first + e % ROWS;
        x[e] = n < batch ? p.z[e / ROWS * rows + n] : 0.0f;
        ladj[e] = 0.0f;
    }
    // Products run over whole groups of eight, with weights of zero for what is not known yet: it must be a number.
    for (int e = threadIdx.x; e < ROWS * INPUT_STRIDE + DEPTH * ROWS * UNIT_STRIDE; e += THREADS) seen[e] = 0.0f;
    __syncthreads();
    for (int e = threadIdx.x; e < ROWS * CONTEXT; e += THREADS) {
        const int i = e / ROWS, n = e % ROWS;
        seen[n * INPUT_STRIDE + i] = first + n < batch ? p.context[i * rows + first + n] : 0.0f;
    }
    __syncthreads();
    int layer_index = 0;

    // A layer's certificate: the worst of its features, row by row.
    auto certify = [&]() {
        __syncthreads();
        for (int n = threadIdx.x; n < ROWS; n += THREADS) {
            float residual = 0.0f, evaluations = 0.0f;
            bool good = true;
            for (int i = 0; i < FEATURES; i++) {
                const float mine = worst[i * ROWS + n];
                good = good && mine >= 0.0f;  // negative or not a number: it did not converge
                residual = fmaxf(residual, mine != mine ? INFINITY : fabsf(mine));
                evaluations = fmaxf(evaluations, most[i * ROWS + n]);
            }
            if (first + n < batch) {
                const long at = layer_index * rows + first + n;
                p.iterations[at] = static_cast<int>(evaluations);
                p.residual[at] = residual;
                p.converged[at] = good;
            }
        }
        layer_index++;
        __syncthreads();
    };
    auto exactly = [&](int e) {  // a number that follows from others fails only if it is none
        worst[e] = x[e] * 0.0f == 0.0f ? 0.0f : NAN;
        most[e] = 1.0f;
    };

    if (!CONDITIONAL) {
        for (int e = threadIdx.x; e < FEATURES * ROWS; e += THREADS) {
            const int i = e / ROWS;
            const float log_scale = __ldg(p.affine + FEATURES + i);
            x[e] = fmaf(x[e], expf(log_scale), __ldg(p.affine + i));
            ladj[e] += log_scale;
            exactly(e);
        }
        certify();
    }

#pragma unroll 1
    for (int network = NETWORKS - 1; network >= 0; network--) {
        const bool reverse = CONDITIONAL ? network % 2 == 1 : network % 2 == 0;
        const float4* packed = reinterpret_cast<const float4*>(p.weights) + static_cast<long>(network) * p.network_size;
        const float* biases = p.biases + network * BIASES;
#pragma unroll 1
        for (int group = 0; group < p.group_count; group++) {
            const int* at = p.groups + 6 * group;
            const int begin = __ldg(at), end = __ldg(at + 1), last_span = __ldg(at + 3);
            const float4* from = reinterpret_cast<const float4*>(p.inner + static_cast<long>(network) * p.inner_size + __ldg(at + 4));
            for (int e = threadIdx.x; e < __ldg(at + 5) / 4; e += THREADS) reinterpret_cast<float4*>(inner)[e] = __ldg(from + e);
            // What is known contributes to all layers of the group at once.
            for (int job = __ldg(at + 2) + warp; job < last_span; job += WARPS) {
                const int* words = reinterpret_cast<const int*>(p.spans + job);
                const Span span[1] = {Span{__ldg(words), __ldg(words + 1), __ldg(words + 2), 0}};
                const int layer = __ldg(words + 3) >> 20, row = __ldg(words + 3) & 0xfffff;
                const int stop = __ldg(p.ends + layer * FEATURES + end - 1);
                const float* bias = biases + layer * UNITS + row;
                float* to = layer < DEPTH ? hidden + layer * ROWS * UNIT_STRIDE + row : out + row;
                const int stride = layer < DEPTH ? UNIT_STRIDE : HEAD_STRIDE;
                auto use = [&](int, int r, int n, float value) {
                    if (row + r < stop) to[n * stride + r] = value + __ldg(bias + r);
                };
                if (layer == 0) {
                    Product<1, false> product;
                    product.clear();
                    product.add(packed, span, span[0].first, span[0].end, seen, INPUT_STRIDE);
                    product.each(use);
                } else {
                    Product<1, true> product;
                    product.clear();
                    product.add(packed, span, span[0].first, span[0].end, hidden + (layer - 1) * ROWS * UNIT_STRIDE, UNIT_STRIDE);
                    product.each(use);
                }
            }
            __syncthreads();

            const int* pieces = p.pieces + 5 * (DEPTH + 1) * group;
#pragma unroll 1
            for (int m = begin; m < end; m++) {
                const int i = reverse ? FEATURES - 1 - m : m;
#pragma unroll 1
                for (int n = warp; n < ROWS; n += WARPS) {
#pragma unroll 1
                    for (int layer = 0; layer < DEPTH; layer++) {
                        const int* piece = pieces + 5 * layer;
                        const int* ends = p.ends + layer * FEATURES;
                        const int row = m ? __ldg(ends + m - 1) : 0, count = __ldg(ends + m) - row;
                        if (count == 0) continue;
                        float* mine = hidden + (layer * ROWS + n) * UNIT_STRIDE;
                        const float* weights = inner + __ldg(piece + 4) + row - __ldg(piece);
                        const bool skips = RESIDUAL && layer >= 2 && layer % 2 == 0;
                        auto use = [&](int r, float value) {
                            value += mine[row + r];
                            if (skips) value += mine[row + r - 2 * ROWS * UNIT_STRIDE];
                            mine[row + r] = value;
                        };
                        if (layer == 0)
                            finish_rows<false>(count, weights, __ldg(piece + 3), seen + n * INPUT_STRIDE + __ldg(piece + 1), m - begin, use);
                        else {
                            const int column = __ldg(piece + 1), terms = __ldg(ends - FEATURES + m) - column;
                            finish_rows<true>(count, weights, __ldg(piece + 3), mine - ROWS * UNIT_STRIDE + column, terms, use);
                        }
                    }
                    const int* piece = pieces + 5 * DEPTH;
                    const int column = __ldg(piece + 1), terms = __ldg(p.ends + (DEPTH - 1) * FEATURES + m) - column;
                    float* mine = out + n * HEAD_STRIDE + m * OUTPUTS;
                    const float* weights = inner + __ldg(piece + 4) + m * OUTPUTS - __ldg(piece);
                    finish_rows<true>(OUTPUTS, weights, __ldg(piece + 3), hidden + ((DEPTH - 1) * ROWS + n) * UNIT_STRIDE + column, terms,
                                      [&](int r, float value) { mine[r] += value; });
                    const int e = i * ROWS + n;
                    if (CONDITIONAL) {
                        float y = x[e], residual = 0.0f, change = log_scale_of(mine);
                        int evaluations = 0;
                        bool good = true;
                        const float scale = expf(-change);
#pragma unroll 1
                        for (int j = SCALES - 1; j >= 0; j--) {
                            Search search;
                            search_together(search, mine, j, y, p.limit);
                            y = search.x;
                            change += logf(search.slope);
                            residual = fmaxf(residual, search.residual);
                            evaluations = max(evaluations, search.used);
                            good = good && search.done;
                        }
                        __syncwarp();
                        if (threadIdx.x % 32 == 0) {
                            x[e] = (y - mine[0]) * scale;
                            ladj[e] -= change;
                            worst[e] = !(x[e] * 0.0f == 0.0f) ? NAN : good ? residual : -fmaxf(residual, 1e-30f);
                            most[e] = evaluations;
                        }
                    } else if (threadIdx.x % 32 == 0) {
                        x[e] -= mine[0];
                        exactly(e);
                    }
                    if (threadIdx.x % 32 == 0) seen[n * INPUT_STRIDE + CONTEXT + m] = squashed(x[e]);
                    __syncwarp();
                }
            }
            __syncthreads();
        }
        certify();
        if (!CONDITIONAL && network % 2 == 1) {
            const float* waves = p.waves + network / 2 * SCALES * (3 * WAVES + 1) * FEATURES;
            for (int e = threadIdx.x; e < FEATURES * ROWS; e += THREADS) {
                float y = x[e], residual = 0.0f, slope = 1.0f;
                int evaluations = 0;
                bool good = true;
#pragma unroll 1
                for (int j = SCALES - 1; j >= 0; j--) {
                    Search search;
                    search_alone(search, shared_waves(waves, j, e / ROWS), y, p.limit);
                    y = search.x;
                    slope *= search.slope;
                    if (j % 8 == 0) {  // before the product can vanish
                        ladj[e] -= logf(slope);
                        slope = 1.0f;
                    }
                    residual = fmaxf(residual, search.residual);
                    evaluations = max(evaluations, search.used);
                    good = good && search.done;
                }
                x[e] = y;
                worst[e] = !(y * 0.0f == 0.0f) ? NAN : good ? residual : -fmaxf(residual, 1e-30f);
                most[e] = evaluations;
            }
            certify();
        }
    }

    for (int e = threadIdx.x; e < FEATURES * ROWS; e += THREADS) {
        const int n = first + e % ROWS;
        if (n < batch) p.x[e / ROWS * rows + n] = x[e];
    }
    for (int n = threadIdx.x; n < ROWS; n += THREADS) {
        float total = 0.0f;
        for (int i = 0; i < FEATURES; i++) total += ladj[i * ROWS + n];
        if (first + n < batch) p.ladj[first + n] = total;
    }
}
