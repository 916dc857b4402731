// Backward pass of the flow, from the gradients of z to those of x: one thread block takes ROWS rows through all
// layers. It stores the gradients of all activations, as much as the forward pass saved; with many rows, networks
// `lower` to `upper` go first, and another launch continues with the others.

struct BackwardArguments {
    const float* z;          // [FEATURES][batch]
    const float* grad_z;     // [FEATURES][batch]; null for the negative log-likelihood, times nll_scale
    const float* grad_ladj;  // [batch]; null likewise
    const float* weights;    // streams of tiles of the transposed matrices, from the last network to the first
    const int* starts;       // of the streams, [WARPS + 1]
    const int* tables;       // a stage for every hidden layer, from the last to the first, and one for the inputs
    const float* waves;
    const float* affine;
    const float* saved_inputs;
    const float* saved_hidden;
    const float* saved_outputs;
    const float* saved_x;
    float* grad_x;           // [FEATURES][batch]
    float* grad_context;     // [CONTEXT][batch]
    float* grad_outputs;     // [upper - lower][batch][HEAD16]
    float* grad_hidden;      // of pre-activations, [upper - lower][DEPTH][batch][UNITS]
    float* grad_values;      // of every transformer, [blocks][SCALES][FEATURES][batch]
    float nll_scale;
    float keep_scale;        // of dropout: the scale of units that were kept
    int batch, tiles, parts, lower, upper;
};

// The derivative of `squashed`, as a function of its value.
INLINE float slope_of_seen(float seen) {
    if (SQUASH == 0) return 1.0f;
    const float share = seen * (1.0f / (SQUASH ? SQUASH : 1)), rest = fmaxf(fmaf(-share, share, 1.0f), 0.0f);
    return rest * sqrtf(rest);
}

// Conditional waves: from the gradients of value and log-determinant to those of x and of the parameters. `get` reads a
// parameter; `put` takes its gradient, from one lane each.
template <int LANES, class Get, class Put> INLINE float through_waves(float x, float grad, float grad_ladj, Get get, Put put) {
    const bool leads = threadIdx.x % LANES == 0;
    float inputs[SCALES];
    const float half = tanhf(0.5f * get(1)), scale = expf(2.0f * half);
    float y = fmaf(x, scale, get(0));
    UNROLL for (int j = 0; j < SCALES; j++) {
        inputs[j] = y;
        if (j + 1 < SCALES) y = conditional_waves<LANES>(j, get).template at<false>(y).value;
    }
    UNROLL for (int j = SCALES - 1; j >= 0; j--) {
        const FreeWaves<LANES> free = conditional_free<LANES>(j, get);
        const Waves<LANES> waves = free.constrained(0.0f);
        const Value result = waves.at(inputs[j]);
        const float of_slope = grad_ladj / result.slope;
        WaveGradients<LANES> gradients;
        gradients.add(waves, inputs[j], grad, of_slope);
        FreeGradients<LANES> followed;
        followed.follow(free, gradients);
        UNROLL for (int i = 0; i < waves.COUNT; i++) {
            if (!waves.exists(i)) continue;
            const int k = waves.number(i);
            put(output_of(0, j, k), followed.frequency[i]);
            put(output_of(1, j, k), followed.phase[i]);
            put(output_of(2, j, k), followed.weight[i]);
        }
        if (leads) put(strength_of(j), followed.strength);
        grad = fmaf(grad, result.slope, of_slope * result.curvature);
    }
    if (leads) {
        put(0, grad);
        put(1, fmaf(grad, x * scale, grad_ladj) * (1.0f - half * half));
    }
    return grad * scale;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) flow_backward(const BackwardArguments p) {
    DYNAMIC_SHARED(rings);
    float* units = rings + RING;  // operands of the current layer and the next
    float* outputs = units + 2 * operand_size(UNITS);
    float* waves = outputs + operand_size(HEAD16);
    float* parts = waves + WAVE_SIZE;
    float* exchange = parts + p.parts * 16 * ROWS;
    float* grad = exchange + EXCHANGE;  // [FEATURES][ROWS]
    float* of_context = grad + FEATURES * ROWS;
    float* of_ladj = of_context + CONTEXT * ROWS;
    float* tables = of_ladj + ROWS;
    const int first = blockIdx.x * ROWS, batch = p.batch, lane = threadIdx.x % 32;
    const long rows = batch;

    const Plan plan = load_plan(p.tables, DEPTH + 1, DEPTH + 1, p.tiles, tables);
    Stream stream;
    stream.begin(p.weights, p.starts, rings, NETWORKS - p.upper);
    for (int e = threadIdx.x; e < FEATURES * ROWS; e += THREADS) {
        const int n = first + e % ROWS;
        const long at = e / ROWS * rows + n;
        if (n >= batch)
            grad[e] = 0.0f;
        else if (p.upper < NETWORKS)
            grad[e] = p.grad_x[at];
        else
            grad[e] = p.grad_z ? p.grad_z[at] : p.nll_scale * p.z[at];
    }
    for (int n = threadIdx.x; n < ROWS; n += THREADS)
        of_ladj[n] = first + n >= batch ? 0.0f : p.grad_ladj ? p.grad_ladj[first + n] : -p.nll_scale;
    for (int e = threadIdx.x; e < CONTEXT * ROWS; e += THREADS) {
        const int n = first + e % ROWS;
        of_context[e] = n < batch && p.upper < NETWORKS ? p.grad_context[e / ROWS * rows + n] : 0.0f;
    }
    for (int e = threadIdx.x; e < ROWS * (HEAD16 - HEAD); e += THREADS) store_one(outputs, HEAD + e / ROWS, e % ROWS, 0.0f);
    __syncthreads();

    Run run = plan.run(0);
    NO_UNROLL for (int network = p.upper - 1; network >= p.lower; network--) {
        const bool reverse = is_reversed(network);

        // Through the transformers.
        each_element<SPREAD>([&](int e, bool stores) {
            const int n = e % ROWS, i = e / ROWS, place = flipped(i, reverse);
            const bool inside = first + n < batch;
            const long row = inside ? first + n : 0;
            float* to = p.grad_outputs + ((network - p.lower) * rows + row) * HEAD16 + place * OUTPUTS;
            float g = grad[e];
            if (CONDITIONAL) {
                const float* mine = p.saved_outputs + (network * rows + row) * HEAD16 + place * OUTPUTS;
                const float x = p.saved_x[(static_cast<long>(network) * FEATURES + i) * rows + row];
                g = through_waves<SPREAD>(x, g, of_ladj[n], [&](int o) { return __ldg(mine + o); }, [&](int o, float value) {
                    store_one(outputs, place * OUTPUTS + o, n, value);
                    if (inside) to[o] = value;
                });
            } else {
                if (network == NETWORKS - 1) g *= expf(-__ldg(p.affine + FEATURES + i));
                if (network % 2 == 0) {
                    const long at = (static_cast<long>(network / 2) * SCALES * FEATURES + i) * rows + row;
#pragma unroll SCALES <= 8 ? SCALES : 1
                    for (int scale = SCALES - 1; scale >= 0; scale--) {
                        const long there = at + static_cast<long>(scale) * FEATURES * rows;
                        if (inside && stores) p.grad_values[there] = g;
                        const Value result = shared_waves<SPREAD>(waves, scale, i).at(__ldg(p.saved_x + there));
                        g = fmaf(g, result.slope, of_ladj[n] / result.slope * result.curvature);
                    }
                }
                if (stores) store_one(outputs, place, n, g);
                if (inside && stores) *to = g;
            }
            __syncwarp();  // lanes without an element read the last one, before it is written
            if (stores) grad[e] = g;
        });
        __syncthreads();
        if (!CONDITIONAL && network % 2) copy_floats<WAVE_SIZE>(waves, p.waves + network / 2 * WAVE_SIZE);  // for the waves below

        // Through the hidden layers.
        NO_UNROLL for (int layer = DEPTH - 1; layer >= 0; layer--) {
            const int stage = DEPTH - 1 - layer;
            const float* from = stage ? units + (stage - 1) % 2 * operand_size(UNITS) : outputs;
            float* to = units + stage % 2 * operand_size(UNITS);
            const long base = ((static_cast<long>(network) * DEPTH + layer) * rows + first) * UNITS;
            float* grad_hidden = p.grad_hidden + base - static_cast<long>(p.lower) * DEPTH * rows * UNITS;
            const bool skips = STREAMS && layer + 2 < DEPTH && layer % 2 == 0;  // the gradient of the skip connection is in `to`
            const float scale = may_drop(layer) ? p.keep_scale : 1.0f;
            float saved[4 * COLUMNS];
            auto ask = [&](int, int tile) {  // prefetch whether units were active, which is needed after the product
                UNROLL for (int which = 0; which < 4 * COLUMNS; which++) {
                    const int unit = 16 * tile + lane / 4 + which % 4 / 2 * 8, n = which / 4 * 8 + 2 * (lane % 4) + which % 2;
                    saved[which] = first + n < batch ? __ldg(p.saved_hidden + base + n * UNITS + unit) : 0.0f;
                }
            };
            multiply_hidden<false>(plan, run, stream, from, exchange, ask, [&](int, int unit, int n, int which, float value) {
                value = saved[which] > 0.0f ? value * scale : 0.0f;
                if (skips) value += load_one(to, unit, n);
                store_one(to, unit, n, value);
                if (first + n < batch) grad_hidden[n * UNITS + unit] = value;
            });
            run = plan.run(stage + 1);  // independent of other warps, so before the barrier
            __syncthreads();
        }
        multiply_parts<false>(plan, run, stream, parts, [&](int) { return units + (DEPTH - 1) % 2 * operand_size(UNITS); });
        run = plan.run(0);
        wait_for_all();
        __syncthreads();
        each_element<SPREAD>([&](int e, bool stores) {
            const int n = e % ROWS, place = CONTEXT + flipped(e / ROWS, reverse);
            const long row = first + n < batch ? first + n : 0;
            const float seen = SQUASH == 0 ? 0.0f : p.saved_inputs[(network * rows + row) * INPUTS16 + place];
            const float sum = Parts(plan, DEPTH, parts, place, n).total<SPREAD>();
            if (stores) grad[e] = fmaf(sum, slope_of_seen(seen), grad[e]);
        });
        __syncwarp();  // the same lanes use the next network's waves
        for (int e = threadIdx.x; e < CONTEXT * ROWS; e += THREADS)
            of_context[e] += Parts(plan, DEPTH, parts, e / ROWS, e % ROWS).total();
        // No barrier: the next network begins with values of each warp's own, and waits before its products.
    }
    __syncthreads();

    each_value<FEATURES>(first, batch, rows, [&](int e, long at) { p.grad_x[at] = grad[e]; });
    each_value<CONTEXT>(first, batch, rows, [&](int e, long at) { p.grad_context[at] = of_context[e]; });
}
