"""CUDA kernels for flows: a thread block takes a few rows through all layers, with activations in shared memory."""
