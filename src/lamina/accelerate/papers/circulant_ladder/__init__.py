"""The kernels of block-circulant training, from the algorithm as written to one fused kernel."""
