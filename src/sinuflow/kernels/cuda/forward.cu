// The whole flow, from data to noise: one block takes ROWS rows through all layers.

struct ForwardArguments {
    const float* x;        // [FEATURES][batch]
    const float* context;  // [CONTEXT][batch]
    const float* weights;  // packed, one network after the other
    const Span* spans;     // hidden layers, then the head
    const float* biases;   // [NETWORKS][BIASES]
    const float* waves;    // [blocks][SCALES][3 WAVES + 1][FEATURES], unless they are conditional
    const float* affine;   // mean and log-scale, [2][FEATURES], unless the waves are conditional
    float* z;              // [FEATURES][batch]
    float* ladj;           // [batch]
    float* log_density;    // [batch], or null
    float* kept_inputs;    // of the networks, [NETWORKS][batch][INPUTS8]; null: nothing is kept
    float* kept_hidden;    // [NETWORKS][DEPTH][batch][UNITS], rectified
    float* kept_outputs;   // [NETWORKS][batch][HEAD16], if the waves are conditional
    float* kept_x;         // what the waves see, [blocks][SCALES or 1][FEATURES][batch]
    int batch, network_size;  // the latter in groups of four numbers
};

constexpr int FORWARD_SHARED = ROWS * (2 * FEATURES + INPUT_STRIDE + 2 * UNIT_STRIDE) +
                               (CONDITIONAL ? ROWS * HEAD_STRIDE : parts_size(HEAD_TILES));

// One network: from `seen` by way of `here` and `there` to its head, which `head` computes from what the
// last hidden layer holds. Hidden layers hold numbers that have not been rectified yet.
template <class Keep>
__device__ __forceinline__ float* run_hidden(const ForwardArguments& p, int network, const float* seen, float* here,
                                             float* there, Keep keep) {
    const float4* packed = reinterpret_cast<const float4*>(p.weights) + static_cast<long>(network) * p.network_size;
    const float* biases = p.biases + network * BIASES;
#pragma unroll 1
    for (int layer = 0; layer < DEPTH; layer++) {
        const bool skips = RESIDUAL && layer >= 2 && layer % 2 == 0;
        const Span* spans = p.spans + layer * UNIT_TILES;
        float* target = layer % 2 ? there : here;
        const float* source = layer % 2 ? here : there;
        const float* bias = biases + layer * UNITS;
        auto use = [&](int unit, int n, float value) {
            value += __ldg(bias + unit);
            if (skips) value += target[n * UNIT_STRIDE + unit];
            target[n * UNIT_STRIDE + unit] = value;
            keep(layer, unit, n, value);
        };
        if (layer == 0)
            multiply<false>(packed, spans, UNIT_TILES, seen, INPUT_STRIDE, use);
        else
            multiply<true>(packed, spans, UNIT_TILES, source, UNIT_STRIDE, use);
        __syncthreads();
    }
    return (DEPTH - 1) % 2 ? there : here;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) flow_forward(const ForwardArguments p) {
    DYNAMIC_SHARED(memory);
    float* x = memory;  // [FEATURES][ROWS]
    float* ladj = x + FEATURES * ROWS;
    float* seen = ladj + FEATURES * ROWS;
    float* here = seen + ROWS * INPUT_STRIDE;
    float* there = here + ROWS * UNIT_STRIDE;
    float* out = there + ROWS * UNIT_STRIDE;
    const int first = blockIdx.x * ROWS, batch = p.batch;
    const long rows = batch;
    const bool keeps = p.kept_inputs != nullptr;

    for (int e = threadIdx.x; e < FEATURES * ROWS; e += THREADS) {
        const int n = first + e % ROWS;
        x[e] = n < batch ? p.x[e / ROWS * rows + n] : 0.0f;
        ladj[e] = 0.0f;
    }
    for (int e = threadIdx.x; e < ROWS * INPUTS8; e += THREADS) {
        const int i = e / ROWS, n = e % ROWS;
        if (i < CONTEXT)
            seen[n * INPUT_STRIDE + i] = first + n < batch ? p.context[i * rows + first + n] : 0.0f;
        else if (i >= INPUTS)
            seen[n * INPUT_STRIDE + i] = 0.0f;
    }

#pragma unroll 1
    for (int network = 0; network < NETWORKS; network++) {
        // Without conditional waves, a block is an upper shift, its scales, and a lower shift.
        const bool reverse = CONDITIONAL ? network % 2 == 1 : network % 2 == 0;
        for (int e = threadIdx.x; e < FEATURES * ROWS; e += THREADS) {
            const int n = e % ROWS, i = e / ROWS, place = reverse ? FEATURES - 1 - i : i;
            seen[n * INPUT_STRIDE + CONTEXT + place] = squashed(x[e]);
            if (CONDITIONAL && keeps && first + n < batch) p.kept_x[(static_cast<long>(network) * FEATURES + i) * rows + first + n] = x[e];
        }
        __syncthreads();
        if (keeps)
            for (int e = threadIdx.x; e < ROWS * INPUTS8; e += THREADS) {
                const int n = e / INPUTS8, i = e % INPUTS8;
                if (first + n < batch) p.kept_inputs[(network * rows + first + n) * INPUTS8 + i] = seen[n * INPUT_STRIDE + i];
            }
        const float* last = run_hidden(p, network, seen, here, there, [&](int layer, int unit, int n, float value) {
            if (keeps && first + n < batch)
                p.kept_hidden[((static_cast<long>(network) * DEPTH + layer) * rows + first + n) * UNITS + unit] = rectified(value);
        });
        const float4* packed = reinterpret_cast<const float4*>(p.weights) + static_cast<long>(network) * p.network_size;
        const Span* spans = p.spans + DEPTH * UNIT_TILES;
        const float* bias = p.biases + network * BIASES + DEPTH * UNITS;
        if (CONDITIONAL) {
            multiply<true>(packed, spans, HEAD_TILES, last, UNIT_STRIDE, [&](int row, int n, float value) {
                value += __ldg(bias + row);
                out[n * HEAD_STRIDE + row] = value;
                if (keeps && first + n < batch) p.kept_outputs[(network * rows + first + n) * HEAD16 + row] = value;
            });
            __syncthreads();
            for (int e = threadIdx.x; e < FEATURES * ROWS; e += THREADS) {
                const int n = e % ROWS, i = e / ROWS, place = reverse ? FEATURES - 1 - i : i;
                const float* mine = out + n * HEAD_STRIDE + place * OUTPUTS;
                const float log_scale = log_scale_of(mine);
                float y = fmaf(x[e], expf(log_scale), mine[0]), change = log_scale;
#pragma unroll 1
                for (int scale = 0; scale < SCALES; scale++) {
                    const Value found = conditional_waves(mine, scale).at(y);
                    y = found.value;
                    change += logf(found.slope);
                }
                x[e] = y;
                ladj[e] += change;
            }
        } else {
            multiply_shared<HEAD_TILES, true>(packed, spans, last, UNIT_STRIDE, out);
            __syncthreads();
            const int block = network / 2;
            const float* waves = p.waves + block * SCALES * (3 * WAVES + 1) * FEATURES;
            for (int e = threadIdx.x; e < FEATURES * ROWS; e += THREADS) {
                const int n = e % ROWS, i = e / ROWS, place = reverse ? FEATURES - 1 - i : i;
                float y = x[e] + sum_of_parts<HEAD_TILES>(out, place, n) + __ldg(bias + place);
                if (network % 2 == 0) {
                    float slope = 1.0f;
#pragma unroll 1
                    for (int scale = 0; scale < SCALES; scale++) {
                        if (keeps && first + n < batch)
                            p.kept_x[((static_cast<long>(block) * SCALES + scale) * FEATURES + i) * rows + first + n] = y;
                        const Value found = shared_waves(waves, scale, i).at(y);
                        y = found.value;
                        slope *= found.slope;
                        if (scale % 8 == 7 || scale == SCALES - 1) {  // before the product can vanish
                            ladj[e] += logf(slope);
                            slope = 1.0f;
                        }
                    }
                } else if (network == NETWORKS - 1) {
                    const float log_scale = __ldg(p.affine + FEATURES + i);
                    y = (y - __ldg(p.affine + i)) * expf(-log_scale);
                    ladj[e] -= log_scale;
                }
                x[e] = y;
            }
        }
        __syncthreads();
    }

    for (int e = threadIdx.x; e < FEATURES * ROWS; e += THREADS) {
        const int n = first + e % ROWS;
        if (n < batch) p.z[e / ROWS * rows + n] = x[e];
    }
    for (int n = threadIdx.x; n < ROWS; n += THREADS) {
        float total = 0.0f, squares = 0.0f;
        for (int i = 0; i < FEATURES; i++) {
            total += ladj[i * ROWS + n];
            squares = fmaf(x[i * ROWS + n], x[i * ROWS + n], squares);
        }
        if (first + n < batch) {
            p.ladj[first + n] = total;
            if (p.log_density) p.log_density[first + n] = total - 0.5f * squares - 0.9189385332046727f * FEATURES;
        }
    }
}
