// Pixels in double precision.
extern "C" __global__ void __launch_bounds__(THREADS, 1) pixel_fine_inverse(const PixelFineInverseArguments p) { unshift(p); }
