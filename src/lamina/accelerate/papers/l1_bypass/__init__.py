"""Convolutions in fp32 whose loads go through the L1 cache, or past it.

Vendor libraries are compiled: their loads cannot be changed. These kernels are the same algorithm, an implicit GEMM,
and both variants differ in nothing but the cache operator of their loads: ``ld.global.ca`` or ``ld.global.cg``.

Source: Dong et al., ICPE 2018, potential optimizations: compiled with ``-dlcm=cg``, the weight gradient of one
convolution of AlexNet was 6.2 % faster.
"""

from lamina.accelerate.papers.l1_bypass.functional import convolve, refusal, weight_gradient

__all__ = ["convolve", "refusal", "weight_gradient"]
