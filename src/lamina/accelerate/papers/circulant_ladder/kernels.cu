// Products and sums of block spectra: as the algorithm is written, mapped in two ways, and fused.
//
// A chunk is one block of a vector: k numbers, or the k/2 + 1 frequencies of its spectrum. Along m1 products are
// summed; m2 and m3 are the axes of the result; `a` does not depend on m2, `b` not on m3. A stride is in chunks
// unless it is said otherwise.

using Offset = long long;

// Sums are of parts of so many terms, so that rounding does not grow with the length of an axis.
constexpr int PART = 64;

// sum + a b, or sum + a conj(b).
__device__ __forceinline__ float2 accumulate(float2 sum, float2 a, float2 b, int conjugate) {
  float imaginary = conjugate ? -b.y : b.y;
  return make_float2(__fmaf_rn(a.x, b.x, __fmaf_rn(-a.y, imaginary, sum.x)),
                     __fmaf_rn(a.x, imaginary, __fmaf_rn(a.y, b.x, sum.y)));
}

__device__ __forceinline__ float2 product(float2 a, float2 b, int conjugate) {
  return accumulate(make_float2(0.0f, 0.0f), a, b, conjugate);
}

// Each vector turned around, all but its first number: the first column of the transposed circulant matrix.
extern "C" __global__ void reorder(const float* __restrict__ in, float* __restrict__ out) {
  int k = blockDim.x, t = threadIdx.x;
  Offset chunk = Offset(blockIdx.x) * k;
  out[chunk + t] = in[chunk + (k - t) % k];
}

// One thread block for each product of two chunks.
extern "C" __global__ void multiply(const float2* __restrict__ a, const float2* __restrict__ b,
                                    float2* __restrict__ out, int conjugate, int ax, int ay, int az, int bx, int by,
                                    int bz) {
  int length = blockDim.x, f = threadIdx.x, x = blockIdx.x, y = blockIdx.y, z = blockIdx.z;
  Offset from_a = Offset(x) * ax + Offset(y) * ay + Offset(z) * az;
  Offset from_b = Offset(x) * bx + Offset(y) * by + Offset(z) * bz;
  Offset to = (Offset(z) * gridDim.y + y) * gridDim.x + x;
  out[to * length + f] = product(a[from_a * length + f], b[from_b * length + f], conjugate);
}

// One thread block for each sum of chunks.
template <class T, class Add>
__device__ __forceinline__ void sum(const T* in, T* out, int terms, int stride, int sx, int sy, T zero, Add add) {
  int length = blockDim.x, f = threadIdx.x, x = blockIdx.x, y = blockIdx.y;
  Offset first = Offset(x) * sx + Offset(y) * sy;
  T total = zero;
  for (int start = 0; start < terms; start += PART) {
    T part = zero;
    for (int t = start; t < min(start + PART, terms); ++t)
      part = add(part, in[(first + Offset(t) * stride) * length + f]);
    total = add(total, part);
  }
  out[(Offset(y) * gridDim.x + x) * length + f] = total;
}

extern "C" __global__ void sum_real(const float* __restrict__ in, float* __restrict__ out, int terms, int stride,
                                    int sx, int sy) {
  sum(in, out, terms, stride, sx, sy, 0.0f, [](float one, float other) { return one + other; });
}

extern "C" __global__ void sum_complex(const float2* __restrict__ in, float2* __restrict__ out, int terms, int stride,
                                       int sx, int sy) {
  sum(in, out, terms, stride, sx, sy, make_float2(0.0f, 0.0f),
      [](float2 one, float2 other) { return make_float2(one.x + other.x, one.y + other.y); });
}

// O1: a row of threads sweeps over as many chunks as it has threads; rows share what they read of `a`.
extern "C" __global__ void multiply_o1(const float2* __restrict__ a, const float2* __restrict__ b,
                                       float2* __restrict__ out, int m1, int m2, int length, int conjugate) {
  extern __shared__ float2 shared[];
  int width = blockDim.x, first = blockIdx.x * width, row = blockIdx.y * blockDim.y + threadIdx.y, z = blockIdx.z;
  int count = min(width, m1 - first) * length;
  const float2* from_a = a + (Offset(z) * m1 + first) * length;
  for (int e = threadIdx.y * width + threadIdx.x; e < count; e += width * blockDim.y) shared[e] = from_a[e];
  __syncthreads();
  if (row >= m2) return;
  const float2* from_b = b + (Offset(row) * m1 + first) * length;
  float2* to = out + ((Offset(z) * m2 + row) * m1 + first) * length;
  for (int e = threadIdx.x; e < count; e += width) to[e] = product(shared[e], from_b[e], conjugate);
}

// O2: a row of threads has one chunk; rows share that of `a`. Strides are in numbers.
extern "C" __global__ void multiply_o2(const float2* __restrict__ a, const float2* __restrict__ b,
                                       float2* __restrict__ out, int m2, int conjugate, int a1, int a3, int b1, int b2,
                                       int bf) {
  extern __shared__ float2 shared[];
  int length = blockDim.x, f = threadIdx.x, x = blockIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
  int z = blockIdx.z;
  if (threadIdx.y == 0) shared[f] = a[Offset(x) * a1 + Offset(z) * a3 + f];
  __syncthreads();
  if (row >= m2) return;
  Offset to = (Offset(z) * m2 + row) * gridDim.x + x;
  out[to * length + f] = product(shared[f], b[Offset(x) * b1 + Offset(row) * b2 + Offset(f) * bf], conjugate);
}

// Kernel fusion: each thread sums its products in registers; rows share chunks of `a`, as many at a time as rows
// (at most PART, with a block size of 16 or more).
extern "C" __global__ void fused(const float2* __restrict__ a, const float2* __restrict__ b, float2* __restrict__ out,
                                 int m1, int m2, int conjugate, int a1, int a3, int b1, int b2) {
  extern __shared__ float2 shared[];
  int length = blockDim.x, rows = blockDim.y, f = threadIdx.x, y = threadIdx.y;
  int row = blockIdx.y * rows + y, z = blockIdx.z;
  float2 total = make_float2(0.0f, 0.0f);
  for (int first = 0; first < m1; first += rows) {
    if (first + y < m1) shared[y * length + f] = a[(Offset(first + y) * a1 + Offset(z) * a3) * length + f];
    __syncthreads();
    if (row < m2) {
      float2 part = make_float2(0.0f, 0.0f);
      for (int t = 0; t < min(rows, m1 - first); ++t) {
        float2 other = b[(Offset(first + t) * b1 + Offset(row) * b2) * length + f];
        part = accumulate(part, shared[t * length + f], other, conjugate);
      }
      total.x += part.x;
      total.y += part.y;
    }
    __syncthreads();
  }
  if (row < m2) out[(Offset(z) * m2 + row) * length + f] = total;
}
