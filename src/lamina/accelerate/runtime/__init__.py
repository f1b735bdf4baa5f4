"""Run-time of the kernels: compiling, launching and caching launches."""
