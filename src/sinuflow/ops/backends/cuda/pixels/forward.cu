// What a network tells of a batch of images.
extern "C" __global__ void __launch_bounds__(THREADS, 1) pixel_forward(const PixelForwardArguments p) { shift_exactly<SCORE>(p); }
extern "C" __global__ void __launch_bounds__(THREADS, 1) pixel_check(const PixelForwardArguments p) { shift_exactly<CHECK>(p); }
