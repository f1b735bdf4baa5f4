"""Spectral matmuls of convolutions with a tile of pixels and its halo in shared memory."""
