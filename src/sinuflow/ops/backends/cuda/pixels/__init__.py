"""CUDA kernels for PixelCNN: a thread block takes one image through a network."""
