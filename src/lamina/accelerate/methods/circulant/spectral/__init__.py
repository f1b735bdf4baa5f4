"""Block-wise Fourier transforms of rows and of weights, and back."""
