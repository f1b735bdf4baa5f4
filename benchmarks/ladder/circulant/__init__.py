"""Block-circulant layers, from the algorithm as written to one fused kernel (Dong, dissertation, chapter 7)."""
