"""float32 numbers as float16 halves under a common power of two, for tensor cores twice as fast as those for TF32.

One half keeps the 11 bits that TF32 keeps; two keep 22, and three products of halves what float32 needs.
"""
