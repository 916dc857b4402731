// Runs all exported functions of waves.cpp over many sizes and hostile values, in memory of exactly the needed size,
// to be compiled with sanitizers. Prints the number of calls; aborts at the first error that a sanitizer finds.

#include WAVES_SOURCE

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

namespace {

using Floats = std::vector<float>;

std::mt19937 generator(0);

int choose(std::initializer_list<int> options) { return options.begin()[generator() % options.size()]; }

// Normal numbers times `size`; if `hostile`, every fifth is extreme, NaN or infinite.
Floats draw(int64_t count, float size, bool hostile) {
    constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
    const float extremes[] = {nan, infinity, -infinity, 3.4e38f, -3.4e38f, 1e30f, -1e30f, 1e10f, -1e-30f, 1e-40f, 0.0f, -0.0f, 88.7f, -87.4f};
    std::normal_distribution<float> normal(0.0f, size);
    Floats drawn(count);
    for (float& x : drawn) x = hostile && generator() % 5 == 0 ? extremes[generator() % 14] : normal(generator);
    return drawn;
}

// Frequencies are positive and |p, q| sums to less than one, unless the parameters are hostile.
struct Waves {
    Floats a, p, q, d;
    Waves(int64_t transformers, int waves, bool hostile)
        : a(draw(transformers * waves, 1.0f, hostile)), p(draw(transformers * waves, 0.3f / waves, hostile)),
          q(draw(transformers * waves, 0.3f / waves, hostile)), d(draw(transformers, 1.0f, hostile)) {
        if (!hostile) for (float& x : a) x = std::fabs(x) + 1e-4f;
    }
};

struct Share { int64_t begin, end; };

// The rows as threads share them: in multiples of a strip.
std::vector<Share> shares(int64_t rows) {
    const int64_t threads = choose({1, 2, 3}), share = std::max<int64_t>(1, (rows + threads * LANES - 1) / (threads * LANES)) * LANES;
    std::vector<Share> found;
    for (int64_t start = 0; start < rows; start += share) found.push_back({start, std::min(start + share, rows)});
    if (found.empty()) found.push_back({0, 0});
    return found;
}

void run(bool hostile) {
    const int features = choose({1, 2, 5}), scales = choose({1, 2, 4}), waves = choose({1, 2, 3, 4, 7, 16, 63, 64});
    const int limit = choose({1, 2, 20, 200});
    const int64_t rows = choose({0, 1, 7, 63, 64, 65, 127, 128, 130, 200}), all = features * rows;
    const float size = choose({1, 3, 100});
    const Floats x = draw(all, size, hostile), grad_z = draw(all, 1.0f, hostile), grad_ladj = draw(rows, 1.0f, hostile);
    Floats z(all), ladj(rows), grad_x(all), residual(all), slope(all);
    std::vector<int32_t> iterations(all);
    std::vector<uint8_t> converged(all);

    const Waves w(scales * features, waves, hostile);
    Floats inputs(scales * all), sums(scales * features * (3 * waves + 1));
    for (const auto& [begin, end] : shares(rows))
        scale_forward(x.data(), w.a.data(), w.p.data(), w.q.data(), w.d.data(), z.data(), ladj.data(),
                      generator() % 2 || hostile ? inputs.data() : nullptr, features, rows, scales, waves, begin, end);
    if (hostile) inputs = draw(scales * all, size, true);
    scale_backward(inputs.data(), w.a.data(), w.p.data(), w.q.data(), grad_z.data(), grad_ladj.data(), grad_x.data(), sums.data(),
                   features, rows, scales, waves, 0, rows);
    for (const auto& [begin, end] : shares(rows))
        scale_inverse(x.data(), w.a.data(), w.p.data(), w.q.data(), w.d.data(), z.data(), ladj.data(), iterations.data(),
                      residual.data(), converged.data(), features, rows, scales, waves, limit, begin, end);

    const int64_t count = 2 + static_cast<int64_t>(scales) * (3 * waves + 1);
    const Floats parameters = draw(features * count * rows, size, hostile);
    Floats grad_parameters(parameters.size());
    for (const auto& [begin, end] : shares(rows)) {
        conditional_forward(x.data(), parameters.data(), z.data(), ladj.data(), features, rows, scales, waves, begin, end);
        conditional_backward(x.data(), parameters.data(), grad_z.data(), grad_ladj.data(), grad_x.data(), grad_parameters.data(),
                             features, rows, scales, waves, begin, end);
        conditional_inverse(x.data(), parameters.data(), z.data(), slope.data(), iterations.data(), residual.data(),
                            converged.data(), features, rows, scales, waves, limit, begin, end);
    }
}

}  // namespace

int main(int, char** arguments) {
    const int cases = std::atoi(arguments[1]);
    for (int i = 0; i < cases; i++) run(i % 2);
    std::printf("%d cases\n", cases);
}
