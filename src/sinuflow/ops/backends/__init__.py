"""Compiled implementations of ops: C++ for CPUs, Triton and CUDA for GPUs."""
