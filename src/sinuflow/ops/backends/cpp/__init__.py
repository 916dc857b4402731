"""The waves on a CPU, in C++, compiled for this processor on first use, in a few seconds, and cached."""
