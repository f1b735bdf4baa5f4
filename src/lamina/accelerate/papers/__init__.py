"""Kernels as the papers describe them."""
