// Outputs for a batch of images, in float32.
extern "C" __global__ void __launch_bounds__(THREADS, 1) pixel_forward(const ForwardArguments<float> p) { forward_float32<SCORE>(p); }
extern "C" __global__ void __launch_bounds__(THREADS, 1) pixel_check(const ForwardArguments<float> p) { forward_float32<CHECK>(p); }
