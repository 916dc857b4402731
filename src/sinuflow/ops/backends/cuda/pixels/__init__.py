"""CUDA kernels for the PixelCNNs of image flows: one block takes one image through a network."""
