// What CUDA gives a kernel, on the CPU; cuda_on_cpu.cpp runs it. Few headers, since each kernel is compiled with them.

#pragma once

#include <atomic>
#include <cmath>
#include <cstddef>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __shared__ static  // of one block, since no two run at a time
#define __constant__ static const
#define __restrict__ __restrict
#define __forceinline__ inline
#define __launch_bounds__(...)

template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
struct alignas(8) int2 {
  int x, y;
};

inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline double2 make_double2(double x, double y) { return {x, y}; }
inline int2 make_int2(int x, int y) { return {x, y}; }

inline uint3 threadIdx, blockIdx;  // of the thread that runs
inline dim3 blockDim, gridDim;

namespace cuda_on_cpu {

inline std::byte* dynamic = nullptr;
void wait_for_block();
void launch(void (*call_kernel)(void**), const unsigned* grid, const unsigned* block, unsigned shared, void** arguments);

template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(dynamic);
}

}  // namespace cuda_on_cpu

inline void __syncthreads() { cuda_on_cpu::wait_for_block(); }
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __int_as_float(int bits) { return __builtin_bit_cast(float, bits); }
inline int __float_as_int(float number) { return __builtin_bit_cast(int, number); }

template <class T>
T __ldg(const T* place) {
  return *place;
}

template <class T>
T atomicAdd(T* place, std::type_identity_t<T> amount) {
  return std::atomic_ref<T>(*place).fetch_add(amount);
}

// Threads of a block take turns, and blocks run one after the other, so nothing comes between.
template <class T>
T atomicMax(T* place, std::type_identity_t<T> amount) {
  const T before = *place;
  *place = max(before, amount);
  return before;
}

namespace cuda_on_cpu {

// What a parameter is, in a letter and the bytes of it or of what it points to.
template <class P>
struct Parameter {
  static constexpr char kind = std::is_pointer_v<P> ? 'p' : std::is_integral_v<P> ? 'i' : 'f';
  static constexpr int bytes = sizeof(std::remove_pointer_t<P>);
};

template <class... P>
int describe(void (*)(P...), char* kinds, int* bytes, int room) {
  constexpr int count = sizeof...(P);
  const char kind[] = {Parameter<P>::kind..., 0};
  const int size[] = {Parameter<P>::bytes..., 0};
  for (int i = 0; i < min(count, room); ++i) {
    kinds[i] = kind[i];
    bytes[i] = size[i];
  }
  return count;
}

template <class... P, std::size_t... I>
void unpack(void (*kernel)(P...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_const_t<P>*>(arguments[I])...);
}

template <class... P>
void call(void (*kernel)(P...), void** arguments) {
  unpack(kernel, arguments, std::index_sequence_for<P...>{});
}

}  // namespace cuda_on_cpu
