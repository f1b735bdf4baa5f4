"""Split fp16: float32 tensors as sums of float16 terms under a power-of-two scale, for fp16 tensor cores.

fp16 tensor cores have twice the throughput of TF32. One term keeps the 11 significant bits of TF32. Two terms, hi and
lo, keep 22; three products of the terms give float32 accuracy (compare 3xTF32).
"""
