// Inverse of the flow by substitution, from noise to data: one thread block takes LIVE rows through all layers (fewer
// than ROWS, if there are idle multiprocessors).
//
// Once the first m features are known, so are the units of degree m, layer by layer, and the parameters of the next
// feature. With many units per degree, that takes one product per degree and layer; if a network has few inputs
// (DIRECT), the units of its first layer are computed one by one instead. With few units per degree, GROUP degrees are
// solved together: products contribute what is known before the group, and one warp per row solves the group degree by
// degree without barriers. Meanwhile, other warps multiply for the next group what is known already ("far"), which
// leaves the contribution of the current group ("near").

struct InverseArguments {
    const float* z;        // [FEATURES][batch]
    const float* context;  // [CONTEXT][batch]
    const float* weights;  // streams of tiles, from the last network to the first
    const int* starts;     // of the streams, [WARPS + 1]
    const int* tables;     // per degree, a stage for every layer; or per group, near, and far of the next
    const float* inner;    // weights within groups, [NETWORKS][GROUPS][INNER]
    const int* ends;       // units of a layer up to each degree, [FEATURES]
    const float* biases;   // [NETWORKS][BIASES]
    const float* waves;
    const float* affine;
    float* x;              // [FEATURES][batch]
    float* ladj;           // of the inverse map, [batch]
    int* iterations;       // [layers, scales, and the affine map][batch], in the order of inversion
    float* residual;
    unsigned char* converged;
    int batch, tiles, parts, limit;
};

// Whether float32 resolves an affine map, as defined in bijections/affine.py.
INLINE bool is_resolved(float mean, float log_scale, float scale) {
    return fabsf(log_scale) <= 87.33654f && mean + 8.0f * scale > mean - 8.0f * scale;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) flow_inverse(const InverseArguments p) {
    DYNAMIC_SHARED(rings);
    float* units = rings + RING;  // operands of all hidden layers
    float* inputs = units + DEPTH * operand_size(UNITS);
    float* residual = inputs + operand_size(INPUTS16);  // [UNITS][ROWS]
    float* biases = residual + (STREAMS && !GROUPED ? UNITS * ROWS : 0);
    float* waves = biases + 2 * BIASES;
    float* inner = waves + WAVE_SIZE;  // of the current group and the next, or of the current network and the next
    float* known = inner + 2 * INNER;     // of the current group and maybe the next, [KNOWN_AT_ONCE][2][ROWS][KNOWN]
    float* parts = known + (GROUPED ? KNOWN_AT_ONCE * 2 * ROWS * KNOWN : 0);
    float* out = parts + p.parts * 16 * ROWS;  // [ROWS][OUTPUTS]
    float* x = out + (CONDITIONAL ? ROWS * OUTPUTS : 0);  // [FEATURES][ROWS]
    float* ladj = x + FEATURES * ROWS;
    float* worst = ladj + FEATURES * ROWS;  // residual of this layer, by element
    float* most = worst + FEATURES * ROWS;
    float* result = most + FEATURES * ROWS;  // the latest feature
    int* ends = reinterpret_cast<int*>(result + ROWS);
    float* tables = reinterpret_cast<float*>(ends + padded(FEATURES, 4));
    const int first = blockIdx.x * LIVE, batch = min(p.batch, first + LIVE), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const long rows = p.batch;

    auto fetch_biases = [&](int network) {
        copy_floats<BIASES>(biases + network % 2 * BIASES, p.biases + network * BIASES);
        if (!CONDITIONAL && network % 2)  // the waves follow it in the inverse
            copy_floats<WAVE_SIZE>(waves, p.waves + network / 2 * WAVE_SIZE);
    };
    auto fetch_inner = [&](int network, int group) {
        if (group == GROUPS) network--, group = 0;
        if (INNER == 0 || network < 0) return;
        const int index = GROUPED ? network * GROUPS + group : network;
        copy_floats<INNER>(inner + index % 2 * INNER, p.inner + static_cast<long>(index) * INNER, 32 * FAR_WARP);
    };
    const Plan plan = load_plan(p.tables, STAGES, MATRICES, p.tiles, tables);
    fetch_biases(NETWORKS - 1);
    if (warp >= FAR_WARP) fetch_inner(NETWORKS - 1, 0);
    Stream stream;
    stream.begin(p.weights, p.starts, rings);
    for (int e = threadIdx.x; e < FEATURES; e += THREADS) ends[e] = __ldg(p.ends + e);
    // Products cover whole tiles, with zero weights for unknown inputs, which must be finite.
    for (int e = threadIdx.x; e < DEPTH * operand_size(UNITS) + operand_size(INPUTS16); e += THREADS) units[e] = 0.0f;
    for (int e = threadIdx.x; e < FEATURES * ROWS; e += THREADS) {
        const int n = first + e % ROWS;
        x[e] = n < batch ? p.z[e / ROWS * rows + n] : 0.0f;
        ladj[e] = 0.0f;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < ROWS * CONTEXT; e += THREADS) {
        const int i = e / ROWS, n = e % ROWS;
        store_one(inputs, i, n, first + n < batch ? p.context[i * rows + first + n] : 0.0f);
    }
    auto operand_of = [&](int layer) { return layer ? units + (layer - 1) * operand_size(UNITS) : inputs; };
    int layer_index = 0;

    // A layer's certificate: the worst of its features, row by row.
    auto certify = [&]() {
        __syncthreads();
        for (int n = warp; n < LIVE; n += WARPS) {
            float gap = 0.0f, evaluations = 0.0f, bad = 0.0f;
            for (int i = lane; i < FEATURES; i += 32) {
                const float mine = worst[i * ROWS + n];
                if (!(mine >= 0.0f)) bad = 1.0f;  // negative or NaN: not converged
                gap = fmaxf(gap, mine != mine ? INFINITY : fabsf(mine));
                evaluations = fmaxf(evaluations, most[i * ROWS + n]);
            }
            gap = lane_max<32>(gap), evaluations = lane_max<32>(evaluations), bad = lane_max<32>(bad);
            if (lane == 0 && first + n < batch) {
                const long at = layer_index * rows + first + n;
                p.iterations[at] = static_cast<int>(evaluations);
                p.residual[at] = gap;
                p.converged[at] = bad == 0.0f;
            }
        }
        layer_index++;
        __syncthreads();
    };
    auto certify_exact = [&](int e) {  // closed-form results fail only if they are not finite
        worst[e] = x[e] * 0.0f == 0.0f ? 0.0f : NAN;
        most[e] = 1.0f;
    };

    // Solve a feature, given its shift, by one thread; or given its parameters in `out`, by one warp.
    auto store_shift = [&](int network, int m, int n, float shift) {
        const int e = flipped(m, is_reversed(network)) * ROWS + n;
        x[e] -= shift;
        certify_exact(e);
        store_one(inputs, CONTEXT + m, n, squashed(x[e]));
    };
    auto solve_feature = [&](int network, int m, int n) {
        const float* mine = out + n * OUTPUTS;
        const int e = flipped(m, is_reversed(network)) * ROWS + n;
        float y = x[e], gap = 0.0f, change = log_scale_from(mine[1]);
        int evaluations = 0;
        bool good = true;
        const float scale = expf(-change);
        NO_UNROLL for (int j = SCALES - 1; j >= 0; j--) {
            Search search;
            find(search, conditional_waves<TOGETHER>(j, [&](int o) { return mine[o]; }), y, p.limit);
            y = search.x;
            change += logf(search.slope);
            gap = fmaxf(gap, search.residual);
            evaluations = max(evaluations, search.used);
            good = good && search.done;
        }
        y = (y - mine[0]) * scale;
        const float seen = squashed(y);
        __syncwarp();
        if (lane == 0) {
            x[e] = y;
            ladj[e] -= change;
            worst[e] = !(y * 0.0f == 0.0f) ? NAN : good ? gap : -fmaxf(gap, 1e-30f);
            most[e] = evaluations;
            store_one(inputs, CONTEXT + m, n, seen);
        }
        return seen;
    };

    // Contributions to a group: far, before the group before it is solved, and then near. Two warps multiply the halves
    // of a row of tiles, and each accumulates its own.
    auto multiply_known = [&](int network, int group, bool near) {
        const float* bias = biases + network % 2 * BIASES;
        const int begin = group * GROUP, row = begin ? ends[begin - 1] : 0;
        const bool first_part = !near || group == 0;
        multiply_rows<false>(
            plan, plan.run(2 * group - (near ? 0 : 1)), stream, [&](int matrix) { return operand_of(matrix / 2); }, [](int, int) {},
            [&](int matrix, int i, int n, int, float value) {
                const int layer = matrix / 2;
                float* to = known + ((group % KNOWN_AT_ONCE * 2 + matrix % 2) * ROWS + n) * KNOWN + layer * UNIT_STRIDE + i;
                if (!first_part)
                    value += *to;
                else if (matrix % 2 == 0)  // beyond the last unit there is no bias, and the sum is not used
                    value += bias[min(layer * UNITS + i + (layer < DEPTH ? row : begin * OUTPUTS), BIASES - 1)];
                *to = value;
            });
    };

    // Solve the features of a group in order, for one row. A value is added to everything that depends on it at once;
    // but what the next degree needs first is computed separately, by the same operations.
    auto substitute = [&](int network, int group, int n) {
        const int begin = group * GROUP, end = min(begin + GROUP, FEATURES);
        const float* weights = inner + (network * GROUPS + group) % 2 * INNER;
        float before[DEPTH][MINE], outputs[MY_OUTPUTS];
        const float *half = known + (group % KNOWN_AT_ONCE * 2 * ROWS + n) * KNOWN + lane, *other_half = half + ROWS * KNOWN;
        UNROLL for (int layer = 0; layer < DEPTH; layer++)
            UNROLL for (int r = 0; r < MINE; r++) {
                const int at = layer * UNIT_STRIDE + 32 * r;
                before[layer][r] = half[at] + other_half[at];
            }
        UNROLL for (int r = 0; r < MY_OUTPUTS; r++) {
            const int at = DEPTH * UNIT_STRIDE + 32 * r;
            outputs[r] = half[at] + other_half[at];
        }
        // For shifts, lane i has feature i of the group, and its shift.
        const float target = x[flipped(min(begin + lane, FEATURES - 1), is_reversed(network)) * ROWS + n];
        const int row = begin ? ends[begin - 1] : 0;
        int low = 0, high = ends[begin] - row;
        const float *of_feature = weights + lane * MINE, *of_units = of_feature + GROUP * UNIT_STRIDE;
        const float* of_last = weights + (GROUP + (DEPTH - 1) * INNER_ROWS) * UNIT_STRIDE + lane * MY_OUTPUTS;
        const float* of_shifts = of_last - lane * MY_OUTPUTS;
        UnitWeights<MINE> to_second, between;  // to_second is loaded early, because a degree begins with it
        UnitWeights<MY_OUTPUTS> to_outputs;
        if (DEPTH > 1) to_second.load(of_units);
        // This lane's unit of the current degree, if any, is unit `which` of its own; `entering` is its pre-activation.
        int which = (low + 31 - lane) / 32;
        float entering[DEPTH];
        entering[0] = chosen(before[0], which);
        NO_UNROLL for (int m = begin; m < end; m++) {
            const int next = ends[min(m + 1, FEATURES - 1)] - row;
            const unsigned has_one = lane + 32 * which < high ? ~0u : 0u;
            float weight[MINE], seen, goal = 0.0f, shift = 0.0f;
            DegreeUnits to_shift;
            if (!CONDITIONAL) goal = __shfl_sync(~0u, target, m - begin), shift = __shfl_sync(~0u, outputs[0], m - begin);
            UNROLL for (int layer = 0; layer < DEPTH; layer++) {
                const int after = layer + 1 < DEPTH ? layer + 1 : 0, stream = layer >= 1 ? layer - 1 : 0;
                DegreeUnits units;
                units.gather(__uint_as_float(__float_as_uint(rectified(entering[layer])) & has_one), low);  // branchless
                if (layer == max(0, DEPTH - 2)) {  // while the shuffles are in flight
                    load_mine(weight, of_feature + (m - begin) * UNIT_STRIDE);
                    UNROLL for (int i = 0; i < (CONDITIONAL ? 0 : UNITS_AT_ONCE); i++) to_shift.of[i] = of_shifts[(low + i) * OUTPUT_STRIDE + (m - begin) * MY_OUTPUTS];
                }
                if (layer == DEPTH - 1) {
                    if (!CONDITIONAL) shift += units.times(to_shift);
                    to_outputs.load(of_last + low * OUTPUT_STRIDE);
                    to_outputs.add(outputs, units);
                    continue;
                }
                const bool joined = STREAMS && after >= 2 && after % 2 == 0;
                if (layer) between.load(of_units + (layer * INNER_ROWS + low) * UNIT_STRIDE);
                const UnitWeights<MINE>& to_next = layer ? between : to_second;
                entering[after] = chosen(before[after], which) + units.times(to_next.to(which));
                if (joined) entering[after] += entering[stream];
                to_next.add(before[after], units);
                UNROLL for (int r = 0; r < (joined ? MINE : 0); r++) before[after][r] += which == r && has_one ? entering[stream] : 0.0f;
            }
            low = high, high = next;
            which = (low + 31 - lane) / 32;
            if (CONDITIONAL) {
                UNROLL for (int r = 0; r < MY_OUTPUTS; r++) {
                    const int o = lane + 32 * r - (m - begin) * OUTPUTS;
                    if (o >= 0 && o < OUTPUTS) out[n * OUTPUTS + o] = outputs[r];
                }
                __syncwarp();
                seen = solve_feature(network, m, n);
            } else {
                seen = squashed(goal - shift);
            }
            entering[0] = fmaf(chosen(weight, which), seen, chosen(before[0], which));
            if (DEPTH > 1) to_second.load(of_units + low * UNIT_STRIDE);
            UNROLL for (int r = 0; r < MINE; r++) before[0][r] = fmaf(weight[r], seen, before[0][r]);
        }
        const int count = ends[end - 1] - row;
        UNROLL for (int r = 0; r < MINE; r++) {
            const int i = lane + 32 * r;
            if (i >= count) continue;
            UNROLL for (int layer = 0; layer < DEPTH; layer++) store_one(units + layer * operand_size(UNITS), row + i, n, rectified(before[layer][r]));
        }
        if (!CONDITIONAL && lane < end - begin) store_shift(network, begin + lane, n, outputs[0]);
    };

    // Without groups: store a unit, given its pre-activation.
    auto store_unit = [&](int layer, int unit, int n, float value) {
        if (STREAMS && layer % 2 == 0) {
            float* sum = residual + unit * ROWS + n;
            if (layer) value += *sum;
            *sum = value;
        }
        store_one(units + layer * operand_size(UNITS), unit, n, rectified(value));
    };
    // A feature's shift, from the partial sums of the head.
    auto shift_of = [&](int network, int m, int n) {
        return Parts(plan, m * PRODUCTS + PRODUCTS - 1, parts, 0, n).total() + biases[network % 2 * BIASES + DEPTH * UNITS + m];
    };
    // The units of the first layer of a degree, one per thread. Every thread also solves the feature before it for its
    // own row, so that there is no barrier.
    auto first_units = [&](int network, int m, int row, int count) {
        const float* bias = biases + network % 2 * BIASES;
        const float* weights = inner + network % 2 * INNER;
        const bool finds = m > 0;
        const int known = CONTEXT + m - (finds ? 1 : 0);
        for (int e = threadIdx.x; e < max(count, 1) * ROWS; e += THREADS) {
            const int n = e % ROWS, unit = row + e / ROWS;
            const float before = finds ? x[flipped(m - 1, is_reversed(network)) * ROWS + n] - shift_of(network, m - 1, n) : 0.0f;
            const float newest = squashed(before);
            if (finds && e < ROWS) {
                result[n] = before;
                store_one(inputs, known, n, newest);
            }
            if (count == 0) continue;
            const float* mine = weights + unit * INPUTS;
            float value = bias[unit];
            for (int i = 0; i < known; i++) value = fmaf(mine[i], load_one(inputs, i, n), value);
            if (finds) value = fmaf(mine[known], newest, value);
            store_unit(0, unit, n, value);
        }
        if (!finds) return;
        __syncthreads();  // old values have been read
        for (int n = threadIdx.x; n < ROWS; n += THREADS) {
            const int e = flipped(m - 1, is_reversed(network)) * ROWS + n;
            x[e] = result[n];
            certify_exact(e);
        }
    };

    if (!CONDITIONAL) {
        for (int e = threadIdx.x; e < FEATURES * ROWS; e += THREADS) {
            const int i = e / ROWS;
            const float log_scale = __ldg(p.affine + FEATURES + i), scale = expf(log_scale), mean = __ldg(p.affine + i);
            x[e] = fmaf(x[e], scale, mean);
            ladj[e] += log_scale;
            certify_exact(e);
            if (!is_resolved(mean, log_scale, scale)) worst[e] = NAN;
        }
        certify();
    }
    wait_for_all();
    __syncthreads();

    NO_UNROLL for (int network = NETWORKS - 1; network >= 0; network--) {
        const float* bias = biases + network % 2 * BIASES;
        if (network) fetch_biases(network - 1);
        if (!GROUPED && warp >= FAR_WARP) fetch_inner(network - 1, 0);
        NO_UNROLL for (int group = 0; group < GROUPS; group++) {
            if (GROUPED) {
                multiply_known(network, group, true);
                __syncthreads();
                if (warp >= FAR_WARP) fetch_inner(network, group + 1);
                for (int n = warp; n < LIVE; n += WARPS) substitute(network, group, n);
                if (!OVERLAPS) __syncthreads();
                if (group + 1 < GROUPS) multiply_known(network, group + 1, false);
                wait_for_all();
                __syncthreads();
                continue;
            }
            const int stage = group * PRODUCTS, head = stage + PRODUCTS - 1;
            const int row = group ? ends[group - 1] : 0, count = ends[group] - row;
            if (DIRECT) {
                first_units(network, group, row, count);
                if (group == 0) __syncthreads();
            }
            for (int layer = DIRECT; layer < DEPTH; layer++) {
                if (count == 0) continue;
                multiply_parts<false>(plan, plan.run(stage + layer - DIRECT), stream, parts, operand_of);
                __syncthreads();
                for (int e = threadIdx.x; e < count * ROWS; e += THREADS) {
                    const int n = e % ROWS, unit = row + e / ROWS;
                    store_unit(layer, unit, n, Parts(plan, stage + layer - DIRECT, parts, e / ROWS, n).total() + bias[layer * UNITS + unit]);
                }
                __syncthreads();
            }
            multiply_parts<false>(plan, plan.run(head), stream, parts, operand_of);
            __syncthreads();
            if (CONDITIONAL) {
                for (int n = warp; n < ROWS; n += WARPS) {
                    for (int o = lane; o < OUTPUTS; o += 32)
                        out[n * OUTPUTS + o] = Parts(plan, head, parts, o, n).total() + bias[DEPTH * UNITS + group * OUTPUTS + o];
                    __syncwarp();
                    solve_feature(network, group, n);
                }
                __syncthreads();
            } else if (!DIRECT || group + 1 == GROUPS) {  // otherwise solved together with the next units
                for (int n = threadIdx.x; n < ROWS; n += THREADS) store_shift(network, group, n, shift_of(network, group, n));
                __syncthreads();
            }
        }
        wait_for_all();
        certify();
        if (!CONDITIONAL && network % 2 == 1) {
            each_element<LIVE_SPREAD, LIVE>([&](int e, bool stores) {
                float y = x[e], gap = 0.0f, slope = 1.0f, change = 0.0f;
                int evaluations = 0;
                bool good = true;
                NO_UNROLL for (int j = SCALES - 1; j >= 0; j--) {
                    Search search;
                    find(search, shared_waves<LIVE_SPREAD>(waves, j, e / ROWS), y, p.limit);
                    y = search.x;
                    slope *= search.slope;
                    if (j % 8 == 0) {  // before the product can underflow
                        change += logf(slope);
                        slope = 1.0f;
                    }
                    gap = fmaxf(gap, search.residual);
                    evaluations = max(evaluations, search.used);
                    good = good && search.done;
                }
                if (!stores) return;
                x[e] = y;
                ladj[e] -= change;
                worst[e] = !(y * 0.0f == 0.0f) ? NAN : good ? gap : -fmaxf(gap, 1e-30f);
                most[e] = evaluations;
            });
            certify();
        }
    }

    each_value<FEATURES>(first, batch, rows, [&](int e, long at) { p.x[at] = x[e]; });
    for (int n = threadIdx.x; n < ROWS; n += THREADS) {
        float total = 0.0f;
        for (int i = 0; i < FEATURES; i++) total += ladj[i * ROWS + n];
        if (first + n < batch) p.ladj[first + n] = total;
    }
}
