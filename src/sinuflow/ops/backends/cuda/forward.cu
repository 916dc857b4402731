// Forward pass of the flow, from data to noise: one thread block takes ROWS rows through all layers.

struct ForwardArguments {
    const float* x;        // [FEATURES][batch]
    const float* context;  // [CONTEXT][batch]
    const float* weights;  // streams of tiles, warp by warp
    const int* starts;     // of the streams, [WARPS + 1]
    const int* tables;     // a stage for every hidden layer, and one for the head
    const float* biases;   // [NETWORKS][BIASES]
    const float* waves;    // [BLOCKS][WAVE_SIZE]; null if conditional
    const float* affine;   // mean and log-scale, [2][FEATURES]; null if conditional
    float* z;              // [FEATURES][batch]
    float* ladj;           // [batch]
    float* log_density;    // [batch], or null
    float* saved_inputs;   // of networks, [NETWORKS][batch][INPUTS16]; null: do not save
    float* saved_hidden;   // [NETWORKS][DEPTH][batch][UNITS], after the rectifier
    float* saved_outputs;  // [NETWORKS][batch][HEAD16], if conditional
    float* saved_x;        // inputs of the waves, [BLOCKS][SCALES][FEATURES][batch] or [NETWORKS][FEATURES][batch]
    const unsigned* seed;  // of dropout, two words; null: no dropout
    unsigned drop_below;
    float keep_scale;
    int batch, tiles, parts;
};

// Biases and waves of one network.
constexpr int CONSTANTS = BIASES + WAVE_SIZE;

INLINE void fetch_constants(const float* biases, const float* waves, int network, float* to) {
    copy_floats<BIASES>(to, biases + network * BIASES);
    if (!CONDITIONAL && network % 2 == 0) copy_floats<WAVE_SIZE>(to + BIASES, waves + network / 2 * WAVE_SIZE);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) flow_forward(const ForwardArguments p) {
    DYNAMIC_SHARED(rings);
    float* units = rings + RING;  // operands of the current layer and the next
    float* inputs = units + 2 * operand_size(UNITS);
    float* constants = inputs + operand_size(INPUTS16);
    float* out = constants + 2 * CONSTANTS;  // [HEAD16][ROWS], or partial sums
    float* exchange = out + (CONDITIONAL ? HEAD16 : 16 * p.parts) * ROWS;
    float* x = exchange + EXCHANGE;  // [FEATURES][ROWS]
    float* ladj = x + FEATURES * ROWS;
    float* tables = ladj + FEATURES * ROWS;
    const int first = blockIdx.x * ROWS, batch = p.batch;
    const long rows = batch;
    const bool keeps = p.saved_inputs != nullptr;
    const unsigned seed = p.seed ? p.seed[0] : 0, row_seed = p.seed ? p.seed[1] : 0;

    const Plan plan = load_plan(p.tables, DEPTH + 1, DEPTH + 1, p.tiles, tables);
    fetch_constants(p.biases, p.waves, 0, constants);  // with the first tiles
    Stream stream;
    stream.begin(p.weights, p.starts, rings);
    for (int e = threadIdx.x; e < INPUTS16 * ROWS; e += THREADS) {
        const int i = e / ROWS, n = e % ROWS;
        store_one(inputs, i, n, i < CONTEXT && first + n < batch ? p.context[i * rows + first + n] : 0.0f);
    }
    __syncthreads();

    // Store a feature as the next network's input.
    auto show = [&](int network, int e, float value) {
        const int i = e / ROWS, n = e % ROWS, place = CONTEXT + flipped(i, is_reversed(network));
        const float seen = squashed(value);
        x[e] = value;
        store_one(inputs, place, n, seen);
        if (!keeps || first + n >= batch) return;
        p.saved_inputs[(network * rows + first + n) * INPUTS16 + place] = seen;
        if (CONDITIONAL) p.saved_x[(static_cast<long>(network) * FEATURES + i) * rows + first + n] = value;
    };
    for (int e = threadIdx.x; e < FEATURES * ROWS; e += THREADS) {
        const int n = first + e % ROWS;
        ladj[e] = 0.0f;
        show(0, e, n < batch ? p.x[e / ROWS * rows + n] : 0.0f);
    }
    wait_for_all();
    __syncthreads();

    Run run = plan.run(0);
    NO_UNROLL for (int network = 0; network < NETWORKS; network++) {
        const float* bias = constants + network % 2 * CONSTANTS;
        const float* waves = bias + BIASES;
        if (network + 1 < NETWORKS) fetch_constants(p.biases, p.waves, network + 1, constants + (network + 1) % 2 * CONSTANTS);
        if (CONTEXT && keeps)
            for (int e = threadIdx.x; e < CONTEXT * ROWS; e += THREADS) {
                const int i = e / ROWS, n = first + e % ROWS;
                if (n < batch) p.saved_inputs[(network * rows + n) * INPUTS16 + i] = p.context[i * rows + n];
            }
        NO_UNROLL for (int layer = 0; layer < DEPTH; layer++) {
            // Residual layers add the units of two layers before: these are stored before the rectifier.
            float* to = units + layer % 2 * operand_size(UNITS);
            float* saved = p.saved_hidden + ((static_cast<long>(network) * DEPTH + layer) * rows + first) * UNITS;
            const bool skips = STREAMS && layer && layer % 2 == 0, drops = p.seed && may_drop(layer);
            auto use = [&](int, int unit, int n, int, float value) {
                value += bias[layer * UNITS + unit];
                if (skips) value += load_one(to, unit, n);
                if (drops) {
                    const unsigned number = (network * DEPTH + layer) * UNITS + unit;
                    const bool lost = mixed_bits(mixed_bits(number ^ seed) + mixed_bits((first + n) ^ row_seed)) < p.drop_below;
                    value = lost ? 0.0f : value * p.keep_scale;
                }
                store_one(to, unit, n, STREAMS ? value : rectified(value));
                if (keeps && first + n < batch) saved[n * UNITS + unit] = rectified(value);
            };
            if (layer == 0)
                multiply_hidden<false>(plan, run, stream, inputs, exchange, [](int, int) {}, use);
            else
                multiply_hidden<STREAMS>(plan, run, stream, units + (layer - 1) % 2 * operand_size(UNITS), exchange, [](int, int) {}, use);
            run = plan.run(layer + 1);  // independent of other warps, so before the barrier
            __syncthreads();
        }
        const float* last = units + (DEPTH - 1) % 2 * operand_size(UNITS);
        bias += DEPTH * UNITS;
        if (CONDITIONAL)
            multiply_rows<STREAMS>(plan, run, stream, [&](int) { return last; }, [](int, int) {}, [&](int, int row, int n, int, float value) {
                value += bias[row];
                out[row * ROWS + n] = value;
                if (keeps && first + n < batch) p.saved_outputs[(network * rows + first + n) * HEAD16 + row] = value;
            });
        else
            multiply_parts<STREAMS>(plan, run, stream, out, [&](int) { return last; });
        run = plan.run(0);
        __syncthreads();
        each_element<SPREAD>([&](int e, bool stores) {
            const int n = e % ROWS, i = e / ROWS, place = flipped(i, is_reversed(network));
            float y = x[e], change = 0.0f;
            if (CONDITIONAL) {
                auto output = [&](int o) { return out[(place * OUTPUTS + o) * ROWS + n]; };
                change = log_scale_from(output(1));
                y = fmaf(y, expf(change), output(0));
                NO_UNROLL for (int scale = 0; scale < SCALES; scale++) {
                    const Value result = conditional_waves<SPREAD>(scale, output).template at<false>(y);
                    y = result.value;
                    change += logf(result.slope);
                }
            } else {
                y += Parts(plan, DEPTH, out, place, n).total<SPREAD>() + bias[place];
                if (network % 2 == 0) {
                    float slope = 1.0f;
#pragma unroll SCALES <= 4 ? SCALES : 1
                    for (int scale = 0; scale < SCALES; scale++) {
                        if (keeps && stores && first + n < batch)
                            p.saved_x[((static_cast<long>(network / 2) * SCALES + scale) * FEATURES + i) * rows + first + n] = y;
                        const Value result = shared_waves<SPREAD>(waves, scale, i).template at<false>(y);
                        y = result.value;
                        slope *= result.slope;
                        if (scale % 8 == 7 || scale == SCALES - 1) {  // before the product can underflow
                            change += logf(slope);
                            slope = 1.0f;
                        }
                    }
                } else if (network == NETWORKS - 1) {
                    change = -__ldg(p.affine + FEATURES + i);
                    y = (y - __ldg(p.affine + i)) * expf(change);
                }
            }
            if (!stores) return;
            ladj[e] += change;
            if (network + 1 < NETWORKS)
                show(network + 1, e, y);
            else
                x[e] = y;
        });
        wait_for_all();
        __syncthreads();
    }

    each_value<FEATURES>(first, batch, rows, [&](int e, long at) { p.z[at] = x[e]; });
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
