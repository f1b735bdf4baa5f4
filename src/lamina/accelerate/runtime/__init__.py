"""Run-time of the kernels: compilation, launches, the launch cache and eager operators."""
