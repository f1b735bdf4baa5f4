// What CUDA kernels share: 16-bit floats, asynchronous copies to shared memory, programmatic dependent launch.

#ifdef __CUDACC__
// In a programmatic dependent launch, waits until the kernels in front have completed and their writes are visible.
__device__ __forceinline__ void griddepcontrol_wait() {
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
// Copies 4, 8 or 16 bytes; zeros where not `inside`.
template <int BYTES>
__device__ __forceinline__ void cp_async(void* to, const void* from, bool inside) {
  const unsigned address = (unsigned)__cvta_generic_to_shared(to);
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(inside ? 16 : 0));
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(address), "l"(from), "r"(inside ? BYTES : 0),
                 "n"(BYTES));
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;"); }
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
#else
inline void griddepcontrol_wait() {}
using half_bits = unsigned short;
inline float from_half(half_bits bits) { return float(__builtin_bit_cast(_Float16, bits)); }
inline half_bits to_half(float number) { return __builtin_bit_cast(half_bits, _Float16(number)); }
template <int BYTES>
inline void cp_async(void* to, const void* from, bool inside) {
  for (int i = 0; i < BYTES; i += 4) static_cast<int*>(to)[i / 4] = inside ? static_cast<const int*>(from)[i / 4] : 0;
}
inline void cp_async_commit() {}
template <int PENDING>
inline void cp_async_wait() {}
inline void __syncwarp() { __syncthreads(); }
#endif

// Dtypes are float (0), bfloat16 (1) and float16 (2).
template <int DTYPE>
struct Element {
  using type = unsigned short;
};
template <>
struct Element<0> {
  using type = float;
};

template <int DTYPE>
__device__ __forceinline__ float to_float(typename Element<DTYPE>::type bits) {
  if constexpr (DTYPE == 0) return bits;
  if constexpr (DTYPE == 1) return __int_as_float(int(bits) << 16);
  if constexpr (DTYPE == 2) return from_half(bits);
}

template <int DTYPE>
__device__ __forceinline__ typename Element<DTYPE>::type from_float(float number) {
  if constexpr (DTYPE == 0) return number;
  if constexpr (DTYPE == 2) return to_half(number);
  if constexpr (DTYPE == 1) {
    const unsigned bits = __float_as_int(number);
    return number == number ? (bits + 0x7fff + ((bits >> 16) & 1)) >> 16 : 0x7fc0;
  }
}
