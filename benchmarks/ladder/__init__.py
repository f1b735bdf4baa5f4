"""Kernels rung by rung: every version of a kernel that a paper builds, each checked before it is timed."""
