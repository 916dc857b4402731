"""The waves on a CPU, in C++, compiled for the very processor when they are first needed.

It takes two or three seconds, once: the result is kept in the user's cache. Without a compiler, or in float64,
the plain versions are used, and nothing else changes.
"""
