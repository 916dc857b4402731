// Certified inverse of one sinusoidal transformer, as in solvers/scalar.py.

constexpr float EPSILON = 1.1920929e-07f, SLOW = 0.1f;

// Bracketed search for tau(x) = target by Halley-like steps; all lanes of a group hold the same state.
struct Search {
    float x, target, low, high, lowest, last, residual, slope;
    int used;
    bool done;

    // tau(x) - x is within centre +- radius; `tilt` is the slope of the slow waves at 0.
    INLINE void begin(float goal, float shift, float centre, float radius, float tilt, float least) {
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
    // Update by the value at x; false when finished.
    INLINE bool step(const Value& result, int limit) {
        const float gap = result.value - target;
        used++;
        residual = fabsf(gap);
        slope = result.slope;
        done = residual <= 8.0f * EPSILON * fmaxf(fabsf(x), fabsf(target));
        if (done || residual != residual || used >= limit) return false;
        const float highest = 2.0f - lowest, near = x - gap / highest, far = x - gap / lowest;
        low = fmaxf(low, gap > 0 ? far : near);
        high = fminf(high, gap > 0 ? near : far);
        float divisor = slope + sqrtf(fabsf(slope * slope - 2.0f * gap * result.curvature));
        divisor = fminf(fmaxf(divisor, 2.0f * lowest), 2.0f * highest);
        const float next = x - 2.0f * gap / divisor;
        x = next >= low && next <= high && residual <= 0.5f * last ? next : 0.5f * (low + high);
        last = residual;
        return true;
    }
};

// Invert one transformer. The groups of a warp iterate until the last of them has finished.
template <int LANES> INLINE void find(Search& search, const Waves<LANES>& waves, float target, int limit) {
    float centre = 0.0f, radius = 0.0f, tilt = 0.0f, spread = 0.0f;
    UNROLL for (int i = 0; i < waves.COUNT; i++) {
        const float size = sqrtf(fmaf(waves.p[i], waves.p[i], waves.q[i] * waves.q[i])), half = 0.5f * waves.inverse[i];
        const float slowness = waves.a[i] * waves.a[i] / (SLOW * SLOW);
        centre = fmaf(half, waves.q[i], centre);
        radius = fmaf(half, size, radius);
        tilt += waves.p[i] / fmaf(slowness, slowness, 1.0f);
        spread += size;
    }
    centre = waves.shift + lane_sum<LANES>(centre);
    search.begin(target, waves.shift, centre, lane_sum<LANES>(radius), 1.0f - lane_sum<LANES>(tilt),
                 1.0f - fminf(lane_sum<LANES>(spread), ALPHA_LARGEST));
    for (bool more = true; LANES == 1 ? more : __any_sync(~0u, more);) {
        const Value result = waves.at(search.x);
        if (more) more = search.step(result, limit);
    }
}
