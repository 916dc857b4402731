"""The waves on a CPU, in C++, compiled for this processor on first use.

Compiling takes a few seconds, once: the library is stored in the user's cache.
"""
