// The kernel that adds partials of the weight gradient before the present one: one number a load. PREDICATED, of 0 or 1:
// whether loads past the last partial are predicated off, or left to a loop of their own.

typedef Element<WEIGHT_TYPE>::type weight_t;
typedef Element<BIAS_TYPE>::type bias_t;

constexpr int IN_GROUPS = (IN_BLOCKS + 4 * IN_TILES - 1) / (4 * IN_TILES);
constexpr int NUMBERS = 8 * SLOTS;                         // of a thread block: spectra of 4 weights, or 4 weights
constexpr int GROUPS = SLOTS >= 64 ? 2 : SLOTS >= 32 ? 4 : 8;  // of threads that share each sum

// Adds every `step`th of `count` numbers. Loads past the end are predicated off, so that all are in flight together.
__device__ __forceinline__ float strided_sum(const float* numbers, size_t stride, int first, int step, int count) {
  float sum = 0;
  for (int s = first; s < count; s += 8 * step) {
    float loaded[8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
      loaded[i] = s + i * step < count ? numbers[(size_t)(s + i * step) * stride] : 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += loaded[i];
  }
  return sum;
}

// Adds `rows` rows of column sums in a fixed order: 32 columns a thread block.
__device__ __forceinline__ void add_columns(bias_t* to, const float* column_sums, int rows, int width, int block) {
  __shared__ float parts[WARPS][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = block * 32 + lane;
#if PREDICATED
  float sum = column < width ? strided_sum(column_sums + column, width, warp, WARPS, rows) : 0;
#else
  float sum = 0;
  if (column < width) {
#pragma unroll 8
    for (int row = warp; row < rows; row += WARPS) sum += column_sums[(size_t)row * width + column];
  }
#endif
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp || column >= width) return;
  for (int i = 1; i < WARPS; ++i) sum += parts[i][lane];
  to[column] = from_float<BIAS_TYPE>(sum);
}

// Adds partials in a fixed order and transforms the sums back: weights of one output block and 4 input blocks a thread block.
// `inverse` is [2][SLOTS][K]: of real and of imaginary parts. Thread blocks beyond these are those of the bias.
extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_weight_gradient(const float* __restrict__ partials, const float* __restrict__ inverse,
                           weight_t* __restrict__ dw, int splits, int tiles, const float* __restrict__ column_sums,
                           bias_t* __restrict__ db, int sum_rows, int width) {
  __shared__ float parts[GROUPS][NUMBERS], sums[NUMBERS];
  griddepcontrol_wait();
  launch_dependents();
  const int weights = tiles * OUT_TILES * IN_TILES * 8;
  if (blockIdx.x >= weights) return add_columns(db, column_sums, sum_rows, width, blockIdx.x - weights);
  const int i = blockIdx.x % 4, half = blockIdx.x / 4 % 2, n = blockIdx.x / 8 % IN_TILES;
  const int m = blockIdx.x / 8 / IN_TILES % OUT_TILES, tile = blockIdx.x / (8 * IN_TILES * OUT_TILES);
  constexpr int TILE = SLOTS * OUT_TILES * IN_TILES * 64;
  for (int at = threadIdx.x; at < GROUPS * NUMBERS; at += THREADS) {
    const int number = at % NUMBERS, slot = number / 8;
    const float* from = partials + (size_t)tile * TILE + (((slot * OUT_TILES + m) * IN_TILES + n) * 2 + half) * 32 +
                        i * 8 + number % 8;
#if PREDICATED
    parts[at / NUMBERS][number] = strided_sum(from, (size_t)tiles * TILE, at / NUMBERS, GROUPS, splits);
#else
    float sum = 0;
#pragma unroll 16
    for (int s = at / NUMBERS; s < splits; s += GROUPS) sum += from[(size_t)s * tiles * TILE];
    parts[at / NUMBERS][number] = sum;
#endif
  }
  __syncthreads();
  for (int number = threadIdx.x; number < NUMBERS; number += THREADS) {
    float sum = 0;
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) sum += parts[group][number];
    const bool conjugate = SWAPPED && number >= 8 && number % 8 >= 4;  // slot 0 has two real numbers
    sums[number] = conjugate ? -sum : sum;
  }
  __syncthreads();
  for (int at = threadIdx.x; at < GROUPS * NUMBERS; at += THREADS) {
    const int pair = at % NUMBERS / K, t = at % K, first = at / NUMBERS * (SLOTS / GROUPS);
    float sum = 0;
#pragma unroll 8
    for (int f = first; f < first + SLOTS / GROUPS; ++f)
      sum += inverse[f * K + t] * sums[f * 8 + pair] + inverse[(SLOTS + f) * K + t] * sums[f * 8 + 4 + pair];
    parts[at / NUMBERS][at % NUMBERS] = sum;
  }
  __syncthreads();
  const int p = (tile / IN_GROUPS * OUT_TILES + m) * 8 + half * 4 + i, q0 = (tile % IN_GROUPS * IN_TILES + n) * 4;
  if (p >= OUT_BLOCKS) return;
  for (int number = threadIdx.x; number < NUMBERS; number += THREADS) {
    if (q0 + number / K >= IN_BLOCKS) continue;
    float sum = 0;
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) sum += parts[group][number];
    const int q = q0 + number / K;
    dw[(size_t)(SWAPPED ? q * OUT_BLOCKS + p : p * IN_BLOCKS + q) * K + number % K] = from_float<WEIGHT_TYPE>(sum);
  }
}
