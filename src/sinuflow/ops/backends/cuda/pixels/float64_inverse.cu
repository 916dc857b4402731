// Float64 images.
extern "C" __global__ void __launch_bounds__(THREADS, 1) pixel_float64_inverse(const InverseArguments<double> p) { solve(p); }
