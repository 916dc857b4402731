// Float32 images.
extern "C" __global__ void __launch_bounds__(THREADS, 1) pixel_inverse(const InverseArguments<float> p) { solve(p); }
