// Gradients of the parameters from saved activations and their gradients; packing of the parameters.

struct WeightArguments {
    const float* saved_inputs;  // [NETWORKS][batch][INPUTS16]
    const float* saved_hidden;  // [NETWORKS][DEPTH][batch][UNITS]
    const float* grad_outputs;  // of networks from `lower` on, [...][batch][HEAD16]
    const float* grad_hidden;   // likewise, [...][DEPTH][batch][UNITS]
    const int* jobs;            // layer, first row, first column, unused
    const int* reach;           // of every row of every layer
    const int* weight_offsets;  // [NETWORKS][DEPTH + 1], into the gradient
    const int* bias_offsets;
    float* gradient;            // of all parameters of the flow
    int batch, lower;
};

constexpr int TILE = 64, CHUNK = 32, CHUNK_STRIDE = TILE + 8, WEIGHT_WARPS = 4;
static_assert(2 * TILE == 32 * WEIGHT_WARPS, "two threads to a column for the gradient of the bias");

// An operand in chunks of [CHUNK rows of the batch][TILE columns], copied to shared memory asynchronously. A thread
// copies four columns of every eighth row.
struct Chunks {
    const float* from;
    int width, left;  // rows of the batch, from this thread's first one
    bool exists;

    INLINE Chunks(const float* __restrict__ operand, int width, int column, int batch) : width(width) {
        const int n = threadIdx.x / (TILE / 4), c = threadIdx.x % (TILE / 4) * 4;
        exists = column + c < width;
        from = operand + static_cast<long>(n) * width + (exists ? column + c : 0);
        left = batch - n;
    }
    INLINE void fetch(float* to) {
        float* mine = to + threadIdx.x / (TILE / 4) * CHUNK_STRIDE + threadIdx.x % (TILE / 4) * 4;
        const float* at = from;
        UNROLL for (int n = 0; n < CHUNK; n += STRIDE, at += STRIDE * width) {
            const bool copies = exists && n < left;
            copy_or_zero(mine + n * CHUNK_STRIDE, reinterpret_cast<const float4*>(copies ? at : from), copies);
        }
        left -= CHUNK;
        if (left > 0) from += static_cast<long>(CHUNK) * width;
    }

   private:
    static constexpr int STRIDE = 32 * WEIGHT_WARPS / (TILE / 4);
};

// One tile of a weight gradient: the sum over the batch of g h^T.
extern "C" __global__ void __launch_bounds__(32 * WEIGHT_WARPS, 3) weight_gradients(const WeightArguments p) {
    __shared__ __align__(16) float left[2][CHUNK * CHUNK_STRIDE], right[2][CHUNK * CHUNK_STRIDE];
    const int* job = p.jobs + 4 * blockIdx.x;
    const int layer = job[0], row = job[1], column = job[2], network = p.lower + blockIdx.y;
    const long batch = p.batch, hidden = static_cast<long>(network) * DEPTH * batch * UNITS;
    const bool head = layer == DEPTH;
    const int rows = head ? HEAD : HIDDEN, columns = layer == 0 ? INPUTS : HIDDEN;
    const float* g = head ? p.grad_outputs + blockIdx.y * batch * HEAD16
                          : p.grad_hidden + (static_cast<long>(blockIdx.y) * DEPTH + layer) * batch * UNITS;
    const float* h = layer == 0 ? p.saved_inputs + network * batch * INPUTS16 : p.saved_hidden + hidden + (layer - 1) * batch * UNITS;
    const int left_width = head ? HEAD16 : UNITS, right_width = layer == 0 ? INPUTS16 : UNITS;
    const int lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
    const int top = threadIdx.x / 64 * 32, side = threadIdx.x / 32 % 2 * 32;  // of this warp's quadrant

    float sum[2][4][4] = {}, cross[2][4][4] = {}, of_bias = 0.0f;  // as in Sums
    Chunks of_left(g, left_width, row, p.batch), of_right(h, right_width, column, p.batch);
    of_left.fetch(left[0]);
    of_right.fetch(right[0]);
    end_group();
    int now = 0;
    for (long n = 0; n < batch; n += CHUNK, now ^= 1) {
        if (n + CHUNK < batch) {
            of_left.fetch(left[now ^ 1]);
            of_right.fetch(right[now ^ 1]);
        }
        end_group();
        wait_for_groups<1>();
        __syncthreads();
        const float *a = left[now], *b = right[now];
        float fresh[2][4][4];
        if (column == 0)
#pragma unroll 8
            for (int k = threadIdx.x / TILE; k < CHUNK; k += 2) of_bias += a[k * CHUNK_STRIDE + threadIdx.x % TILE];
        UNROLL for (int k = 0; k < CHUNK; k += 8) {
            float high[4][2], low[4][2];
            UNROLL for (int j = 0; j < 4; j++)
                UNROLL for (int half = 0; half < 2; half++) {
                    high[j][half] = b[(k + member + 4 * half) * CHUNK_STRIDE + side + 8 * j + group];
                    low[j][half] = tf32_remainder(high[j][half]);
                }
            UNROLL for (int i = 0; i < 2; i++) {
                float above[4], below[4];
                UNROLL for (int c = 0; c < 4; c++) {
                    above[c] = a[(k + member + 4 * (c / 2)) * CHUNK_STRIDE + top + 16 * i + group + 8 * (c % 2)];
                    below[c] = tf32_remainder(above[c]);
                }
                UNROLL for (int j = 0; j < 4; j++) {
                    if (k == 0)
                        new_mma_tf32(fresh[i][j], above, high[j]);
                    else
                        mma_tf32(fresh[i][j], above, high[j]);
                    mma_tf32(cross[i][j], above, low[j]);
                    mma_tf32(cross[i][j], below, high[j]);
                }
            }
        }
        UNROLL for (int i = 0; i < 2; i++)
            UNROLL for (int j = 0; j < 4; j++)
                UNROLL for (int c = 0; c < 4; c++) sum[i][j][c] += fresh[i][j][c];
        __syncthreads();
    }
    const int* reach = p.reach + layer * HIDDEN;
    float* out = p.gradient + p.weight_offsets[network * (DEPTH + 1) + layer];
    UNROLL for (int i = 0; i < 2; i++)
        UNROLL for (int j = 0; j < 4; j++)
            UNROLL for (int c = 0; c < 4; c++) {
                const int u = row + top + 16 * i + group + 8 * (c / 2), k = column + side + 8 * j + 2 * member + c % 2;
                if (u < rows && k < reach[u]) out[static_cast<long>(u) * columns + k] = sum[i][j][c] + cross[i][j][c];
            }
    if (column) return;
    if (threadIdx.x >= TILE) left[0][threadIdx.x - TILE] = of_bias;
    __syncthreads();
    if (threadIdx.x < TILE && row + threadIdx.x < rows)
        p.gradient[p.bias_offsets[network * (DEPTH + 1) + layer] + row + threadIdx.x] = of_bias + left[0][threadIdx.x];
}

struct WaveArguments {
    const float* free;         // unconstrained parameters, [BLOCKS][FREE_PARAMETERS]
    const float* waves;        // constrained
    const float* affine;
    const float* saved_x;      // [blocks][SCALES][FEATURES][batch]
    const float* grad_values;  // likewise
    const float* z;            // [FEATURES][batch]
    const float* grad_z;       // null for the negative log-likelihood, times nll_scale
    const float* grad_ladj;
    const int* offsets;        // [BLOCKS][5]: frequency, phase, weight, strength, shift; then mean, log-scale
    float* gradient;
    float nll_scale;
    int batch;
};

// The unconstrained parameters of a block's transformer, indexed by scale and feature. `part` returns all frequencies
// (0), phases (1), weights (2) or strengths (3).
template <class Part> INLINE FreeWaves<1> free_waves(int transformer, Part part) {
    FreeWaves<1> free;
    free.load([&](int kind, int k) { return part(kind)[transformer * WAVES + k]; }, part(3)[transformer]);
    return free;
}
constexpr int FREE_PARAMETERS = SCALES * FEATURES * (3 * WAVES + 1);  // of a block, except the shifts

// The gradients of shared waves, one warp per transformer; then of the affine map.
extern "C" __global__ void __launch_bounds__(128) wave_gradients(const WaveArguments p) {
    constexpr int TRANSFORMERS = BLOCKS * SCALES * FEATURES;
    const int job = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    const long batch = p.batch;
    if (job < TRANSFORMERS) {
        const int feature = job % FEATURES, scale = job / FEATURES % SCALES, block = job / FEATURES / SCALES;
        const Waves<1> waves = shared_waves<1>(p.waves + block * WAVE_SIZE, scale, feature);
        WaveGradients<1> sums;
        float of_shift = 0.0f;
        for (long n = lane; n < batch; n += 32) {
            const float x = p.saved_x[job * batch + n], grad = p.grad_values[job * batch + n];
            const float of_ladj = p.grad_ladj ? p.grad_ladj[n] : -p.nll_scale;
            sums.add(waves, x, grad, of_ladj / waves.at(x).slope);
            of_shift += grad;
        }
        of_shift = lane_sum<32>(of_shift);
        UNROLL for (int k = 0; k < WAVES; k++) {
            sums.a[k] = lane_sum<32>(sums.a[k]);
            sums.p[k] = lane_sum<32>(sums.p[k]);
            sums.q[k] = lane_sum<32>(sums.q[k]);
        }
        if (lane == 0) {
            const int* offset = p.offsets + 5 * block;
            const int at = scale * FEATURES + feature;
            const FreeWaves<1> free = free_waves(at, [&](int kind) { return p.free + block * FREE_PARAMETERS + kind * (SCALES * FEATURES * WAVES); });
            FreeGradients<1> of;
            of.follow(free, sums);
            UNROLL for (int k = 0; k < WAVES; k++) {
                p.gradient[offset[0] + at * WAVES + k] = of.frequency[k];
                p.gradient[offset[1] + at * WAVES + k] = of.phase[k];
                p.gradient[offset[2] + at * WAVES + k] = of.weight[k];
            }
            p.gradient[offset[3] + at] = of.strength;
            p.gradient[offset[4] + at] = of_shift;
        }
    } else if (job < TRANSFORMERS + FEATURES) {
        const int i = job - TRANSFORMERS;
        float sum = 0.0f, product = 0.0f, of_ladj = 0.0f;
        for (long n = lane; n < batch; n += 32) {
            const float z = p.z[i * batch + n], grad = p.grad_z ? p.grad_z[i * batch + n] : p.nll_scale * z;
            sum += grad;
            product = fmaf(grad, z, product);
            of_ladj += p.grad_ladj ? p.grad_ladj[n] : -p.nll_scale;
        }
        sum = lane_sum<32>(sum);
        product = lane_sum<32>(product);
        of_ladj = lane_sum<32>(of_ladj);
        if (lane == 0) {
            const int* offset = p.offsets + 5 * BLOCKS;
            p.gradient[offset[0] + i] = -sum * expf(-p.affine[FEATURES + i]);
            p.gradient[offset[1] + i] = -product - of_ladj;
        }
    }
}

struct PrepareArguments {
    const float* const* sources;  // addresses of the parameters, and of a zero
    const int* wave_sources;      // [BLOCKS][5]: sources of frequency, phase, weight, strength, shift; then mean, log-scale
    const unsigned* index;        // source, and offset in it
    float* packed;
    float* waves;                 // null if conditional
    float* affine;
    int count;
};

// Gather the weights, and constrain the waves.
extern "C" __global__ void __launch_bounds__(256) prepare(const PrepareArguments p) {
    constexpr int TRANSFORMERS = BLOCKS * SCALES * FEATURES;
    const int thread = blockIdx.x * 256 + threadIdx.x, threads = gridDim.x * 256;
    for (int i = thread; i < p.count; i += threads) {
        const unsigned at = __ldg(p.index + i);
        p.packed[i] = __ldg(p.sources[at >> SOURCE_BITS] + (at & ((1u << SOURCE_BITS) - 1)));
    }
    if (!p.waves) return;
    for (int job = thread; job < TRANSFORMERS; job += threads) {
        const int feature = job % FEATURES, scale = job / FEATURES % SCALES, block = job / FEATURES / SCALES;
        const int* which = p.wave_sources + 5 * block;
        const int at = scale * FEATURES + feature;
        store_waves(p.waves + block * WAVE_SIZE, scale, feature,
                    free_waves(at, [&](int kind) { return p.sources[which[kind]]; }).constrained(p.sources[which[4]][at]));
    }
    for (int i = thread; i < 2 * FEATURES; i += threads)
        p.affine[i] = p.sources[p.wave_sources[5 * BLOCKS + i / FEATURES]][i % FEATURES];
}
