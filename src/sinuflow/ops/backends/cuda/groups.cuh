// Degrees that ordered substitution takes together (see inverse.cu): how numbers lie, and what a lane does with them.

// Inside a group a warp takes one row: its lane l has units l, l + 32..., and parameters of features likewise. Weights
// are stored as [GROUP features][UNIT_STRIDE], for each further layer [INNER_ROWS][UNIT_STRIDE], and for the head
// [INNER_ROWS][OUTPUT_STRIDE], where a lane's numbers are neighbours.
constexpr bool GROUPED = GROUP > 1;
constexpr int GROUPS = (FEATURES + GROUP - 1) / GROUP;
constexpr int MINE = GROUPED ? (GROUP_UNITS + 31) / 32 : 1, UNIT_STRIDE = 32 * MINE;
constexpr int MY_OUTPUTS = GROUPED ? (GROUP * OUTPUTS + 31) / 32 : 1, OUTPUT_STRIDE = 32 * MY_OUTPUTS;
// The units of a degree are DEGREE_UNITS at most, and no two of them have the same lane, so that loops over them can
// be written out; after the last of a group there are as many zeros.
constexpr int INNER_ROWS = GROUP_UNITS + DEGREE_UNITS;
constexpr int GROUP_INNER = (GROUP + (DEPTH - 1) * INNER_ROWS) * UNIT_STRIDE + INNER_ROWS * OUTPUT_STRIDE;
// Without groups, the weights of the first layer, if that is DIRECT.
constexpr int INNER = GROUPED ? GROUP_INNER : DIRECT ? padded(UNITS * INPUTS, 4) : 0;
static_assert(DEGREE_UNITS <= 32, "a lane for every unit of a degree");
// Blocks of few rows have warps to spare: they multiply for the next group at the same time, and need room for it.
constexpr bool OVERLAPS = ROWS == 8;
constexpr int KNOWN_AT_ONCE = OVERLAPS ? 2 : 1;
// What products contribute to the numbers of a group, for one row: hidden layers, then the head; in two halves.
constexpr int KNOWN = DEPTH * UNIT_STRIDE + OUTPUT_STRIDE + 4;
constexpr int PRODUCTS = DEPTH + 1 - DIRECT;  // of a single degree
constexpr int STAGES = GROUPED ? 2 * GROUPS - 1 : GROUPS * PRODUCTS;
constexpr int MATRICES = GROUPED ? STAGES * (DEPTH + 1) : STAGES;

// A lane's weights, by the fewest loads.
template <int COUNT>
__device__ __forceinline__ void load_mine(float (&to)[COUNT], const float* from) {
    if (COUNT % 4 == 0) {
#pragma unroll
        for (int r = 0; r < COUNT / 4 * 4; r += 4) {
            const float4 four = *reinterpret_cast<const float4*>(from + r);
            to[r] = four.x, to[r + 1] = four.y, to[r + 2] = four.z, to[r + 3] = four.w;
        }
    } else {
#pragma unroll
        for (int r = 0; r < COUNT; r++) to[r] = from[r];
    }
}

// Number `which` of a lane's own.
template <int COUNT>
__device__ __forceinline__ float chosen(const float (&from)[COUNT], int which) {
    float found = from[0];
#pragma unroll
    for (int r = 1; r < COUNT; r++) found = which == r ? from[r] : found;
    return found;
}

// Numbers for every unit of one degree.
constexpr int UNITS_AT_ONCE = GROUPED ? DEGREE_UNITS : 1;

struct DegreeUnits {
    float of[UNITS_AT_ONCE];

    // Each is some lane's `value`; the first of them is number `low`.
    __device__ __forceinline__ void gather(float value, int low) {
#pragma unroll
        for (int i = 0; i < UNITS_AT_ONCE; i++) of[i] = __shfl_sync(~0u, value, low + i);
    }
    __device__ __forceinline__ float times(const DegreeUnits& weights) const {
        float even = 0.0f, odd = 0.0f;  // two sums, so that additions wait less for each other
#pragma unroll
        for (int i = 0; i < UNITS_AT_ONCE; i++) {
            float& sum = i % 2 ? odd : even;
            sum = fmaf(weights.of[i], of[i], sum);
        }
        return even + odd;
    }
};

// The weights from the units of one degree to what this lane has of the next layer.
template <int COUNT>
struct UnitWeights {
    float of[UNITS_AT_ONCE][COUNT];

    __device__ __forceinline__ void load(const float* from) {
#pragma unroll
        for (int i = 0; i < UNITS_AT_ONCE; i++) load_mine(of[i], from + i * (32 * COUNT));
    }
    __device__ __forceinline__ DegreeUnits to(int which) const {
        DegreeUnits found;
#pragma unroll
        for (int i = 0; i < UNITS_AT_ONCE; i++) found.of[i] = chosen(of[i], which);
        return found;
    }
    __device__ __forceinline__ void add(float (&sums)[COUNT], const DegreeUnits& units) const {
#pragma unroll
        for (int r = 0; r < COUNT; r++) sums[r] += units.times(to(r));
    }
};
