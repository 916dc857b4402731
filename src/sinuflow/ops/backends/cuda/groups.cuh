// Groups of degrees in the inverse (see inverse.cu): memory layout, and operations of one lane.

// A warp takes one row: lane l has units l, l + 32..., and outputs likewise. Weights are stored as [GROUP
// features][UNIT_STRIDE], for each further layer [INNER_ROWS][UNIT_STRIDE], and for the head
// [INNER_ROWS][OUTPUT_STRIDE]; the values of one lane are contiguous.
constexpr bool GROUPED = GROUP > 1;
constexpr int GROUPS = (FEATURES + GROUP - 1) / GROUP;
constexpr int MINE = GROUPED ? (GROUP_UNITS + 31) / 32 : 1, UNIT_STRIDE = 32 * MINE;
constexpr int MY_OUTPUTS = GROUPED ? (GROUP * OUTPUTS + 31) / 32 : 1, OUTPUT_STRIDE = 32 * MY_OUTPUTS;
// A degree has DEGREE_UNITS units at most, all in different lanes, so that loops over them unroll; a group's last units
// are followed by as many zeros.
constexpr int INNER_ROWS = GROUP_UNITS + DEGREE_UNITS;
constexpr int GROUP_INNER = (GROUP + (DEPTH - 1) * INNER_ROWS) * UNIT_STRIDE + INNER_ROWS * OUTPUT_STRIDE;
// Without groups: the weights of the first layer, if DIRECT.
constexpr int INNER = GROUPED ? GROUP_INNER : DIRECT ? padded(UNITS * INPUTS, 4) : 0;
static_assert(DEGREE_UNITS <= 32, "a lane for every unit of a degree");
// Blocks of few rows have idle warps, which multiply for the next group at the same time and need memory for it.
constexpr bool OVERLAPS = ROWS == 8;
constexpr int KNOWN_AT_ONCE = OVERLAPS ? 2 : 1;
// Contributions of products to the units of a group, for one row: hidden layers, then the head; in two halves.
constexpr int KNOWN = DEPTH * UNIT_STRIDE + OUTPUT_STRIDE + 4;
constexpr int PRODUCTS = DEPTH + 1 - DIRECT;  // per degree
constexpr int STAGES = GROUPED ? 2 * GROUPS - 1 : GROUPS * PRODUCTS;
constexpr int MATRICES = GROUPED ? STAGES * (DEPTH + 1) : STAGES;

// Load a lane's weights, vectorized.
template <int COUNT> INLINE void load_mine(float (&to)[COUNT], const float* from) {
    if (COUNT % 4 == 0) {
        UNROLL for (int r = 0; r < COUNT / 4 * 4; r += 4) {
            const float4 four = *reinterpret_cast<const float4*>(from + r);
            to[r] = four.x, to[r + 1] = four.y, to[r + 2] = four.z, to[r + 3] = four.w;
        }
    } else {
        UNROLL for (int r = 0; r < COUNT; r++) to[r] = from[r];
    }
}

// from[which] without dynamic indexing.
template <int COUNT> INLINE float chosen(const float (&from)[COUNT], int which) {
    float result = from[0];
    UNROLL for (int r = 1; r < COUNT; r++) result = which == r ? from[r] : result;
    return result;
}

// Values of all units of one degree.
constexpr int UNITS_AT_ONCE = GROUPED ? DEGREE_UNITS : 1;

struct DegreeUnits {
    float of[UNITS_AT_ONCE];

    // Collect `value` of the lanes from `low` on.
    INLINE void gather(float value, int low) {
        UNROLL for (int i = 0; i < UNITS_AT_ONCE; i++) of[i] = __shfl_sync(~0u, value, low + i);
    }
    INLINE float times(const DegreeUnits& weights) const {
        float even = 0.0f, odd = 0.0f;  // two sums for instruction-level parallelism
        UNROLL for (int i = 0; i < UNITS_AT_ONCE; i++) {
            float& sum = i % 2 ? odd : even;
            sum = fmaf(weights.of[i], of[i], sum);
        }
        return even + odd;
    }
};

// Weights from the units of one degree to this lane's units of the next layer.
template <int COUNT>
struct UnitWeights {
    float of[UNITS_AT_ONCE][COUNT];

    INLINE void load(const float* from) {
        UNROLL for (int i = 0; i < UNITS_AT_ONCE; i++) load_mine(of[i], from + i * (32 * COUNT));
    }
    INLINE DegreeUnits to(int which) const {
        DegreeUnits result;
        UNROLL for (int i = 0; i < UNITS_AT_ONCE; i++) result.of[i] = chosen(of[i], which);
        return result;
    }
    INLINE void add(float (&sums)[COUNT], const DegreeUnits& units) const {
        UNROLL for (int r = 0; r < COUNT; r++) sums[r] += units.times(to(r));
    }
};
