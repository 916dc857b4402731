// The chain rule through the whole flow, from the gradients of the noise to those of the data: one block
// takes ROWS rows through all layers. It leaves behind what the gradients of the parameters are made of.

struct BackwardArguments {
    const float* z;             // [FEATURES][batch]
    const float* grad_z;        // [FEATURES][batch]; null for the negative log-likelihood, times nll_scale
    const float* grad_ladj;     // [batch]; null likewise
    const float* weights;       // packed transposed, from the head down
    const Span* spans;
    const float* waves;
    const float* affine;
    const float* kept_inputs;
    const float* kept_hidden;
    const float* kept_outputs;
    const float* kept_x;
    float* grad_x;              // [FEATURES][batch], or null
    float* grad_context;        // [CONTEXT][batch], or null
    float* grad_outputs;        // [NETWORKS][batch][HEAD16]
    float* grad_hidden;         // before the rectifier, [NETWORKS][DEPTH][batch][UNITS]
    float* grad_values;         // of every transformer, [blocks][SCALES][FEATURES][batch]
    float nll_scale;
    int batch, network_size;
};

constexpr int BACKWARD_SHARED =
    ROWS * (FEATURES + CONTEXT + 1 + HEAD_STRIDE + 2 * UNIT_STRIDE) + parts_size(INPUT_TILES);

// The slope of what a network sees of a feature, told from what it sees.
__device__ __forceinline__ float slope_of_seen(float seen) {
    if (SQUASH == 0) return 1.0f;
    const float share = seen * (1.0f / (SQUASH ? SQUASH : 1)), rest = fmaxf(fmaf(-share, share, 1.0f), 0.0f);
    return rest * sqrtf(rest);
}

// Conditional waves: from the gradients of value and log-determinant to those of x and of the parameters.
__device__ __forceinline__ float through_waves(const float* __restrict__ mine, float x, float grad, float grad_ladj, float* of) {
    constexpr int COUNT = SCALES * WAVES;
    float out[OUTPUTS], inputs[SCALES];
#pragma unroll
    for (int i = 0; i < OUTPUTS; i++) out[i] = __ldg(mine + i);
    const float half = tanhf(0.5f * out[1]), scale = expf(2.0f * half);
    float y = fmaf(x, scale, out[0]);
#pragma unroll
    for (int j = 0; j < SCALES; j++) {
        inputs[j] = y;
        if (j + 1 < SCALES) y = conditional_waves(out, j).at(y).value;
    }
#pragma unroll
    for (int j = SCALES - 1; j >= 0; j--) {
        FreeWaves free;
        load_conditional(free, out, j);
        const Waves waves = free.constrained(0.0f);
        const Value found = waves.at(inputs[j]);
        const float of_slope = grad_ladj / found.slope;
        WaveGradients gradients;
        gradients.clear();
        gradients.add(waves, inputs[j], grad, of_slope);
        FreeGradients followed;
        followed.follow(free, gradients);
#pragma unroll
        for (int k = 0; k < WAVES; k++) {
            of[2 + j * WAVES + k] = followed.frequency[k];
            of[2 + COUNT + j * WAVES + k] = followed.phase[k];
            of[2 + 2 * COUNT + j * WAVES + k] = followed.weight[k];
        }
        of[2 + 3 * COUNT + j] = followed.strength;
        grad = fmaf(grad, found.slope, of_slope * found.curvature);
    }
    of[0] = grad;
    of[1] = fmaf(grad, x * scale, grad_ladj) * (1.0f - half * half);
    return grad * scale;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) flow_backward(const BackwardArguments p) {
    DYNAMIC_SHARED(memory);
    float* grad = memory;  // [FEATURES][ROWS]
    float* of_context = grad + FEATURES * ROWS;
    float* of_ladj = of_context + CONTEXT * ROWS;
    float* of_output = of_ladj + ROWS;
    float* here = of_output + ROWS * HEAD_STRIDE;
    float* there = here + ROWS * UNIT_STRIDE;
    float* parts = there + ROWS * UNIT_STRIDE;
    const int first = blockIdx.x * ROWS, batch = p.batch;
    const long rows = batch;

    for (int e = threadIdx.x; e < FEATURES * ROWS; e += THREADS) {
        const int n = first + e % ROWS;
        const long at = e / ROWS * rows + n;
        grad[e] = n >= batch ? 0.0f : p.grad_z ? p.grad_z[at] : p.nll_scale * p.z[at];
    }
    for (int n = threadIdx.x; n < ROWS; n += THREADS)
        of_ladj[n] = first + n >= batch ? 0.0f : p.grad_ladj ? p.grad_ladj[first + n] : -p.nll_scale;
    for (int e = threadIdx.x; e < CONTEXT * ROWS; e += THREADS) of_context[e] = 0.0f;
    for (int e = threadIdx.x; e < ROWS * (HEAD16 - HEAD); e += THREADS)
        of_output[e % ROWS * HEAD_STRIDE + HEAD + e / ROWS] = 0.0f;
    __syncthreads();

#pragma unroll 1
    for (int network = NETWORKS - 1; network >= 0; network--) {
        const bool reverse = CONDITIONAL ? network % 2 == 1 : network % 2 == 0;
        const float4* packed = reinterpret_cast<const float4*>(p.weights) + static_cast<long>(network) * p.network_size;

        // What the network's outputs did to the features.
        for (int e = threadIdx.x; e < FEATURES * ROWS; e += THREADS) {
            const int n = e % ROWS, i = e / ROWS, place = reverse ? FEATURES - 1 - i : i;
            float* of = of_output + n * HEAD_STRIDE + place * OUTPUTS;
            const bool inside = first + n < batch;
            if (CONDITIONAL) {
                const long row = inside ? first + n : 0;
                const float* mine = p.kept_outputs + (network * rows + row) * HEAD16 + place * OUTPUTS;
                const float x = p.kept_x[(static_cast<long>(network) * FEATURES + i) * rows + row];
                grad[e] = through_waves(mine, x, grad[e], of_ladj[n], of);
                continue;
            }
            float g = grad[e];
            if (network == NETWORKS - 1) g *= expf(-__ldg(p.affine + FEATURES + i));
            if (network % 2 == 0) {
                const int block = network / 2;
                const float* waves = p.waves + block * SCALES * (3 * WAVES + 1) * FEATURES;
#pragma unroll 1
                for (int scale = SCALES - 1; scale >= 0; scale--) {
                    const long at = ((static_cast<long>(block) * SCALES + scale) * FEATURES + i) * rows + first + n;
                    if (inside) p.grad_values[at] = g;
                    const Value found = shared_waves(waves, scale, i).at(inside ? p.kept_x[at] : 0.0f);
                    g = fmaf(g, found.slope, of_ladj[n] / found.slope * found.curvature);
                }
            }
            grad[e] = of[0] = g;
        }
        __syncthreads();
        for (int e = threadIdx.x; e < ROWS * HEAD16; e += THREADS) {
            const int n = e / HEAD16, i = e % HEAD16;
            if (first + n < batch) p.grad_outputs[(network * rows + first + n) * HEAD16 + i] = of_output[n * HEAD_STRIDE + i];
        }

        // Down through the hidden layers.
        const Span* spans = p.spans;
#pragma unroll 1
        for (int layer = DEPTH - 1; layer >= 0; layer--) {
            float* target = layer % 2 ? there : here;
            const float* source = layer % 2 ? here : there;
            const bool stream = RESIDUAL && layer + 2 < DEPTH && layer % 2 == 0;
            const long base = (static_cast<long>(network) * DEPTH + layer) * rows + first;
            auto use = [&](int unit, int n, float value) {
                const bool inside = first + n < batch;
                const long at = (base + (inside ? n : 0)) * UNITS + unit;
                value = p.kept_hidden[at] > 0.0f ? value : 0.0f;
                if (stream) value += target[n * UNIT_STRIDE + unit];
                target[n * UNIT_STRIDE + unit] = value;
                if (inside) p.grad_hidden[at] = value;
            };
            if (layer == DEPTH - 1)
                multiply<false>(packed, spans, UNIT_TILES, of_output, HEAD_STRIDE, use);
            else
                multiply<false>(packed, spans, UNIT_TILES, source, UNIT_STRIDE, use);
            spans += UNIT_TILES;
            __syncthreads();
        }
        multiply_shared<INPUT_TILES, false>(packed, spans, here, UNIT_STRIDE, parts);
        __syncthreads();
        for (int e = threadIdx.x; e < INPUTS * ROWS; e += THREADS) {
            const int n = e % ROWS, place = e / ROWS;
            const float value = sum_of_parts<INPUT_TILES>(parts, place, n);
            if (place < CONTEXT) {
                of_context[e] += value;
                continue;
            }
            const int i = reverse ? FEATURES - 1 - (place - CONTEXT) : place - CONTEXT;
            const long row = first + n < batch ? first + n : 0;
            const float seen = SQUASH == 0 ? 0.0f : p.kept_inputs[(network * rows + row) * INPUTS8 + place];
            grad[i * ROWS + n] += value * slope_of_seen(seen);
        }
        __syncthreads();
    }

    for (int e = threadIdx.x; e < FEATURES * ROWS; e += THREADS) {
        const int n = first + e % ROWS;
        if (p.grad_x && n < batch) p.grad_x[e / ROWS * rows + n] = grad[e];
    }
    for (int e = threadIdx.x; e < CONTEXT * ROWS; e += THREADS) {
        const int n = first + e % ROWS;
        if (p.grad_context && n < batch) p.grad_context[e / ROWS * rows + n] = of_context[e];
    }
}
