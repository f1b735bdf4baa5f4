// What kernels are made of: numbers of 16 and 32 bits, copies to shared memory, and waiting for these and for kernels.

#ifdef __CUDACC__
// Of a kernel that is launched early: until those in front have ended, and what they wrote can be read.
__device__ __forceinline__ void wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
using half_bits = unsigned short;
__device__ __forceinline__ float from_half(half_bits bits) {
  float number;
  asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(bits));
  return number;
}
__device__ __forceinline__ half_bits to_half(float number) {
  half_bits bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(number));
  return bits;
}
// Copies 4, 8 or 16 bytes; where there is nothing to copy, zeros come.
template <int BYTES>
__device__ __forceinline__ void copy(void* to, const void* from, bool there) {
  const unsigned place = (unsigned)__cvta_generic_to_shared(to);
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(there ? 16 : 0));
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(place), "l"(from), "r"(there ? BYTES : 0),
                 "n"(BYTES));
}
__device__ __forceinline__ void copies_asked() { asm volatile("cp.async.commit_group;"); }
template <int LEFT>
__device__ __forceinline__ void copies_done() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
#else
inline void wait() {}
using half_bits = unsigned short;
inline float from_half(half_bits bits) { return float(__builtin_bit_cast(_Float16, bits)); }
inline half_bits to_half(float number) { return __builtin_bit_cast(half_bits, _Float16(number)); }
template <int BYTES>
inline void copy(void* to, const void* from, bool there) {
  for (int i = 0; i < BYTES; i += 4) static_cast<int*>(to)[i / 4] = there ? static_cast<const int*>(from)[i / 4] : 0;
}
inline void copies_asked() {}
template <int LEFT>
inline void copies_done() {}
inline void __syncwarp() { __syncthreads(); }
#endif

// Numbers are float (0), bfloat16 (1) or float16 (2).
template <int KIND>
struct Number {
  using type = unsigned short;
};
template <>
struct Number<0> {
  using type = float;
};

template <int KIND>
__device__ __forceinline__ float widened(typename Number<KIND>::type bits) {
  if constexpr (KIND == 0) return bits;
  if constexpr (KIND == 1) return __int_as_float(int(bits) << 16);
  if constexpr (KIND == 2) return from_half(bits);
}

template <int KIND>
__device__ __forceinline__ typename Number<KIND>::type narrowed(float number) {
  if constexpr (KIND == 0) return number;
  if constexpr (KIND == 2) return to_half(number);
  if constexpr (KIND == 1) {
    const unsigned bits = __float_as_int(number);
    return number == number ? (bits + 0x7fff + ((bits >> 16) & 1)) >> 16 : 0x7fc0;
  }
}
