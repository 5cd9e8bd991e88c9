"""Passes of few tokens on CPUs whose kernels are launched again, in the same memory, with other numbers."""
