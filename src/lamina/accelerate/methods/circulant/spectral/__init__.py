"""Block-wise discrete Fourier transforms of rows and weights, and their inverses."""
