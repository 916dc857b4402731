// Runs all exported functions of waves.cpp over many sizes and hostile values, in memory of exactly the needed size,
// to be compiled with sanitizers. Prints the number of calls; aborts at the first error that a sanitizer finds.

#include WAVES_SOURCE

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

namespace {

std::mt19937 generator(0);

int choose(std::initializer_list<int> options) { return options.begin()[generator() % options.size()]; }

template <class T> using Numbers = std::vector<T>;

// Normal numbers times `size`; if `hostile`, every fifth is extreme, NaN or infinite.
template <class T>
Numbers<T> draw(int64_t count, double size, bool hostile) {
    using Limits = std::numeric_limits<T>;
    const T extremes[] = {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity(), Limits::max(), Limits::lowest(),
                          T(1e30), T(-1e30), T(1e10), T(-1e-30), Limits::denorm_min(), T(0), T(-0.0), T(88.7), T(-87.4), T(709.7), T(-708.4)};
    std::normal_distribution<T> normal(0, size);
    Numbers<T> drawn(count);
    for (T& x : drawn) x = hostile && generator() % 5 == 0 ? extremes[generator() % 16] : normal(generator);
    return drawn;
}

// Frequencies are positive and |p, q| sums to less than one, unless the parameters are hostile.
template <class T>
struct Drawn {
    Numbers<T> a, p, q, d;
    Drawn(int64_t transformers, int waves, bool hostile)
        : a(draw<T>(transformers * waves, 1.0, hostile)), p(draw<T>(transformers * waves, 0.3 / waves, hostile)),
          q(draw<T>(transformers * waves, 0.3 / waves, hostile)), d(draw<T>(transformers, 1.0, hostile)) {
        if (!hostile) for (T& x : a) x = std::fabs(x) + T(1e-4);
    }
};

struct Share { int64_t begin, end; };

// The rows as threads share them: in multiples of a tile.
std::vector<Share> shares(int64_t rows) {
    const int64_t threads = choose({1, 2, 3}), share = std::max<int64_t>(1, (rows + threads * LANES - 1) / (threads * LANES)) * LANES;
    std::vector<Share> found;
    for (int64_t start = 0; start < rows; start += share) found.push_back({start, std::min(start + share, rows)});
    if (found.empty()) found.push_back({0, 0});
    return found;
}

// The exported functions of one type.
#define FUNCTIONS(T) shared_##T##_forward, shared_##T##_backward, shared_##T##_inverse, row_##T##_forward, row_##T##_backward, \
    row_##T##_inverse, conditional_##T##_forward, conditional_##T##_backward, conditional_##T##_inverse

template <class T, class Forward, class Backward, class Inverse, class... Conditional>
void run(bool hostile, Forward shared_forward, Backward shared_backward, Inverse shared_inverse, Forward row_forward,
         Backward row_backward, Inverse row_inverse, Conditional... conditional) {
    const int features = choose({1, 2, 5}), scales = choose({1, 2, 4}), waves = choose({1, 2, 3, 4, 7, 16, 65});
    const int limit = choose({1, 2, 20, 200});
    const int64_t rows = choose({0, 1, 7, 63, 64, 65, 127, 128, 130, 200}), all = features * rows;
    const double size = choose({1, 3, 100});
    const Numbers<T> x = draw<T>(all, size, hostile), grad_z = draw<T>(all, 1.0, hostile), grad_ladj = draw<T>(rows, 1.0, hostile);
    Numbers<T> z(all), ladj(rows), grad_x(all), residual(all), slope(all);
    std::vector<int32_t> iterations(all);
    std::vector<uint8_t> converged(all);

    for (const bool shared : {true, false}) {
        const int64_t columns = shared ? 1 : rows;
        const Drawn<T> w(scales * features * columns, waves, hostile);
        Numbers<T> gradients(scales * features * (3 * waves + 1) * columns);
        const T* const parameters[] = {w.a.data(), w.p.data(), w.q.data(), w.d.data()};
        for (const auto& [begin, end] : shares(rows)) {
            const Sizes n{features, rows, scales, waves, limit, begin, end};
            (shared ? shared_forward : row_forward)(x.data(), parameters, z.data(), ladj.data(), n);
            (shared ? shared_inverse : row_inverse)(x.data(), parameters, z.data(), ladj.data(), iterations.data(), residual.data(),
                                                    converged.data(), n);
            (shared ? shared_backward : row_backward)(x.data(), parameters, grad_z.data(), grad_ladj.data(), grad_x.data(),
                                                      gradients.data(), n);
        }
    }

    const auto [conditional_forward, conditional_backward, conditional_inverse] = std::make_tuple(conditional...);
    const int64_t count = 2 + static_cast<int64_t>(scales) * (3 * waves + 1);
    const Numbers<T> parameters = draw<T>(features * count * rows, size, hostile);
    const T* const pointers[] = {parameters.data()};
    Numbers<T> gradients(parameters.size());
    for (const auto& [begin, end] : shares(rows)) {
        const Sizes n{features, rows, scales, waves, limit, begin, end};
        conditional_forward(x.data(), pointers, z.data(), ladj.data(), n);
        conditional_backward(x.data(), pointers, grad_z.data(), grad_ladj.data(), grad_x.data(), gradients.data(), n);
        conditional_inverse(x.data(), pointers, z.data(), slope.data(), iterations.data(), residual.data(), converged.data(),
                            n);
    }
}

}  // namespace

int main(int, char** arguments) {
    const int cases = std::atoi(arguments[1]);
    for (int i = 0; i < cases; i++) {
        if (i / 2 % 2) run<double>(i % 2, FUNCTIONS(double));
        else run<float>(i % 2, FUNCTIONS(float));
    }
    std::printf("%d cases\n", cases);
}
