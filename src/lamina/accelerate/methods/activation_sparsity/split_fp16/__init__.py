"""float32 numbers as float16 halves, for products on tensor cores: one half is as exact as TF32, two have 22 bits.

Activations stand under powers of two that bring the largest finite number of an image, or of a tile of columns, just
below float16's largest. Numbers less than it by 2**29, or 2**18 with both halves, have fewer bits, down to its 2**-39th
part. Infinities and NaN stay in the high half.
"""
