// Weight gradients from the split-K partials of weight_gradient.cu, and the gradient of a bias from column sums of rows.cu.
//
// Macros besides those of transforms.cu: WEIGHT_TYPE, the dtype of weights; BIAS_TYPE, that of the bias; SUM_COLUMNS, how
// many of it a thread block adds; OUT_BLOCKS and IN_BLOCKS, p and q; OUT_TILES and IN_TILES of weight_gradient.cu;
// SWAPPED, whether it had inputs in place of output gradients and the other way round: its sums are then conjugated, and
// p and q stand for each other.

typedef Element<WEIGHT_TYPE>::type weight_t;
typedef Element<BIAS_TYPE>::type bias_t;

constexpr int IN_GROUPS = (IN_BLOCKS + 4 * IN_TILES - 1) / (4 * IN_TILES);
constexpr int SUM_VECTORS = 2 * SLOTS;                           // of 4 numbers, of a thread block: of spectra, or of weights
constexpr int GROUPS = SLOTS >= 64 ? 8 : SLOTS >= 32 ? 16 : 32;  // of threads that share each sum
constexpr int SLOT_GROUPS = SLOTS < GROUPS ? SLOTS : GROUPS;     // of slots, in the inverse transform

__device__ __forceinline__ void add(float& sum, float one) { sum += one; }

__device__ __forceinline__ void add(float4& sum, float4 one) {
  sum.x += one.x, sum.y += one.y, sum.z += one.z, sum.w += one.w;
}

// Adds every `step`th of `count` numbers or vectors, in a fixed order, from the `first` on. IN_FLIGHT loads are in flight
// together, the last ones too: those past the end are predicated off.
template <int IN_FLIGHT, typename T>
__device__ __forceinline__ T strided_sum(const T* from, size_t stride, int first, int step, int count) {
  T sum = {};
  int at = first;
#pragma unroll 1
  for (; at + (IN_FLIGHT - 1) * step < count; at += IN_FLIGHT * step) {
    T loaded[IN_FLIGHT];
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; ++i) loaded[i] = from[(size_t)(at + i * step) * stride];
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; ++i) add(sum, loaded[i]);
  }
  T loaded[IN_FLIGHT - 1] = {};
#pragma unroll
  for (int i = 0; i < IN_FLIGHT - 1; ++i)
    if (at + i * step < count) loaded[i] = from[(size_t)(at + i * step) * stride];
#pragma unroll
  for (int i = 0; i < IN_FLIGHT - 1; ++i) add(sum, loaded[i]);
  return sum;
}

// Adds `rows` rows of column sums: SUM_COLUMNS columns a thread block.
__device__ __forceinline__ void add_columns(bias_t* to, const float* column_sums, int rows, int width, int block) {
  __shared__ float parts[THREADS];
  const int column = block * SUM_COLUMNS + threadIdx.x % SUM_COLUMNS;
  const float* from = column_sums + column;
  parts[threadIdx.x] =
      column < width ? strided_sum<8>(from, width, threadIdx.x / SUM_COLUMNS, THREADS / SUM_COLUMNS, rows) : 0;
  for (int left = THREADS / 2; left >= SUM_COLUMNS; left /= 2) {
    __syncthreads();
    if (threadIdx.x < left) parts[threadIdx.x] += parts[threadIdx.x + left];
  }
  if (threadIdx.x < SUM_COLUMNS && column < width) to[column] = from_float<BIAS_TYPE>(parts[threadIdx.x]);
}

// Adds partials and transforms the sums back: weights of one output block and 4 input blocks a thread block. Vectors are
// of the 4 input blocks. `inverse` is [2][SLOTS][K]: of real and of imaginary parts. Thread blocks beyond these are those
// of the bias. Loops run once on a GPU, and stay as short as that.
extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_weight_gradient(const float* __restrict__ partials, const float* __restrict__ inverse,
                           weight_t* __restrict__ dw, int splits, int tiles, const float* __restrict__ column_sums,
                           bias_t* __restrict__ db, int sum_rows, int width) {
  __shared__ float4 parts[GROUPS][SUM_VECTORS], sums[SUM_VECTORS];
  griddepcontrol_wait();
  launch_dependents();
  const int weights = tiles * OUT_TILES * IN_TILES * 8;
  if (blockIdx.x >= weights) return add_columns(db, column_sums, sum_rows, width, blockIdx.x - weights);
  const int i = blockIdx.x % 4, half = blockIdx.x / 4 % 2, n = blockIdx.x / 8 % IN_TILES;
  const int m = blockIdx.x / 8 / IN_TILES % OUT_TILES, tile = blockIdx.x / (8 * IN_TILES * OUT_TILES);
  constexpr int TILE = SLOTS * OUT_TILES * IN_TILES * 16;  // vectors
#pragma unroll 1
  for (int at = threadIdx.x; at < GROUPS * SUM_VECTORS; at += THREADS) {
    const int vector = at % SUM_VECTORS, slot = vector / 2;
    const float4* from = reinterpret_cast<const float4*>(partials) + (size_t)tile * TILE +
                         (((slot * OUT_TILES + m) * IN_TILES + n) * 2 + half) * 8 + i * 2 + vector % 2;
    parts[at / SUM_VECTORS][vector] = strided_sum<4>(from, (size_t)tiles * TILE, at / SUM_VECTORS, GROUPS, splits);
  }
  __syncthreads();
  float* sum_of = reinterpret_cast<float*>(sums);
#pragma unroll 1
  for (int number = threadIdx.x; number < 4 * SUM_VECTORS; number += THREADS) {
    float sum = 0;
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) sum += reinterpret_cast<const float*>(parts[group])[number];
    const bool conjugate = SWAPPED && number >= 8 && number % 8 >= 4;  // slot 0 has two real numbers
    sum_of[number] = conjugate ? -sum : sum;
  }
  __syncthreads();
#pragma unroll 1
  for (int at = threadIdx.x; at < SLOT_GROUPS * K; at += THREADS) {
    const int t = at % K, first = at / K * (SLOTS / SLOT_GROUPS);
    float4 weight = {};
#pragma unroll
    for (int f = first; f < first + SLOTS / SLOT_GROUPS; ++f) {
      const float cosine = inverse[f * K + t], sine = inverse[(SLOTS + f) * K + t];
      const float4 real = sums[f * 2], imaginary = sums[f * 2 + 1];
      add(weight, {cosine * real.x + sine * imaginary.x, cosine * real.y + sine * imaginary.y,
                   cosine * real.z + sine * imaginary.z, cosine * real.w + sine * imaginary.w});
    }
    parts[at / K][t] = weight;
  }
  __syncthreads();
  const int p = (tile / IN_GROUPS * OUT_TILES + m) * 8 + half * 4 + i, q0 = (tile % IN_GROUPS * IN_TILES + n) * 4;
  if (p >= OUT_BLOCKS) return;
#pragma unroll 1
  for (int number = threadIdx.x; number < 4 * SUM_VECTORS; number += THREADS) {
    const int q = q0 + number / K, t = number % K;
    if (q >= IN_BLOCKS) continue;
    float sum = 0;
#pragma unroll
    for (int group = 0; group < SLOT_GROUPS; ++group)
      sum += reinterpret_cast<const float*>(parts[group])[t * 4 + number / K];
    dw[(size_t)(SWAPPED ? q * OUT_BLOCKS + p : p * IN_BLOCKS + q) * K + t] = from_float<WEIGHT_TYPE>(sum);
  }
}
