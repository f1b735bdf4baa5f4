"""Test utilities of lamina, for authors of kernels and methods."""

from lamina.testing.tolerance import assert_as_accurate

__all__ = ["assert_as_accurate"]
