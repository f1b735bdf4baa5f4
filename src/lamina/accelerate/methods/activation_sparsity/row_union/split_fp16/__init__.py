"""Split-fp16 for row-union products: one float16 term is as accurate as TF32, two have 22 bits.

Activations have a power-of-two scale for each image, or each tile of columns, that brings the finite amax just below
the largest float16. Values below the amax by a factor of 2**29 (2**18 with both terms) lose bits, down to zero at
2**-39. Infinities and NaN stay in the ``hi`` term.
"""
