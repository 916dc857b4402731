"""The whole flow in a few CUDA kernels, compiled when they are first needed.

A small flow is many small matrix products one after the other. Here one block of threads takes a few rows
through all of them, with the activations in shared memory: no launches in between, and no waiting for
memory but for the weights. The plain version is the flow's own layers, one after the other.
"""
