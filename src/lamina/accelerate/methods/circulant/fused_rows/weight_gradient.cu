// Spectra of the weight gradient, summed over a range of rows by each thread block: split-K partials.
//
// A thread block has OUT_TILES * 8 blocks of output gradients and IN_TILES * 4 blocks of inputs. It transforms both, 16
// rows at a time, to shared memory, from where tensor cores read them transposed: for each slot the rows of an MMA are
// real and imaginary parts of output gradients, its columns those of inputs, and the sum runs over rows. A warp has
// SLOTS / WARPS slots, whose sums it keeps in registers.
//
// Partials are [gridDim.x][gridDim.y][SLOTS][OUT_TILES][IN_TILES][2][32] in float32. Lane (2 i + part) * 4 + j of one of
// two halves has the real (0) or imaginary part of output block 4 half + i and input block j of the tile.
//
// All rows are copied to shared memory one iteration before they are transformed. Spectra are there twice, so that one
// barrier is enough: a warp may transform the next rows while another still multiplies.
//
// SCALED rows of inputs are scaled by their own exponents, and those of output gradients so that the products of all
// rows have one scale, that of the largest up to then; when it grows, the sums are scaled down. So no row is lost
// because another is larger, only products that are too small to matter. Exponents are those of the thread block's part
// of a row. They need a barrier of their own, after which no warp multiplies the preceding rows, so spectra are there
// once. A thread keeps its folded rows over that barrier, in HELD items.
//
// Parts of a unit that hold two blocks change places in every other pair of slots: lanes that store to different slots at
// the same time then use all banks of shared memory. What is summed over does not move, only the blocks of the sums.
//
// Macros besides those of transforms.cu: OUT_BLOCKS and IN_BLOCKS of a row; FLIP_OUT and FLIP_IN, whether rows of
// that many blocks are multiplied by `signs`, whose dtype is SIGN_TYPE; OUT_ACTIVATION and IN_ACTIVATION, the activation
// that they pass first, of which one is none; OUT_TILES, IN_TILES; OVERLAPPED, whether the preceding kernel wrote none of the rows, so that the first are
// fetched before it has ended; BLOCKS_PER_SM.

typedef Element<SIGN_TYPE>::type sign_t;

constexpr int ROWS = 16;
constexpr int OUT_QUADS = 2 * OUT_TILES, QUADS = OUT_QUADS + IN_TILES;
constexpr int STRIDE = QUADS * ROWS + 1;  // units between slots; odd, against bank conflicts
constexpr int WARP_SLOTS = SLOTS / WARPS;
constexpr int PARTS = 4 / ITEM_BLOCKS, ITEMS = QUADS * PARTS;
constexpr bool MOVED_PARTS = PARTS == 2;
constexpr int IN_GROUPS = (IN_BLOCKS + 4 * IN_TILES - 1) / (4 * IN_TILES);
constexpr int HELD = (ITEMS + WARPS - 1) / WARPS;
constexpr int EXPONENTS = SCALED ? 2 * 2 * ROWS : 0;  // two sets, each of rows of output gradients and of inputs

#if SCALED

// Adds two exponents, of which either may be missing.
__device__ __forceinline__ int sum_of(int one, int other) {
  return one == NO_EXPONENT || other == NO_EXPONENT ? NO_EXPONENT : one + other;
}

// The largest exponent of the products of 16 rows.
__device__ __forceinline__ int largest_product(const int* out_exponents, const int* in_exponents) {
  const int row = threadIdx.x % 16;
  float largest = sum_of(out_exponents[row], in_exponents[row]);
#pragma unroll
  for (int mask = 1; mask < 16; mask *= 2) largest = fmaxf(largest, from_neighbour(largest, mask));
  return int(largest);
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    fused_weight_gradient(const value_t* __restrict__ dy, const value_t* __restrict__ x,
                          const word* __restrict__ tables, float* __restrict__ partials, int rows, int rows_per_block,
                          const sign_t* __restrict__ signs) {
  extern __shared__ float4 shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  word* basis = reinterpret_cast<word*>(shared);
  int* both_exponents = reinterpret_cast<int*>(basis + TABLE_WORDS);
  word4* both_spectra = reinterpret_cast<word4*>(both_exponents + EXPONENTS);
  word4* fetched = both_spectra + (SCALED ? 1 : 2) * SLOTS * STRIDE;
  const int out_block = blockIdx.y / IN_GROUPS * OUT_TILES * 8, in_block = blockIdx.y % IN_GROUPS * IN_TILES * 4;
  const int begin = blockIdx.x * rows_per_block, end = min(begin + rows_per_block, rows);
  auto fetch = [&](int item, int row) {
    const int block = item * ITEM_BLOCKS;
    if (block < OUT_QUADS * 4)
      fetch_rows(fetched + item * HELD_UNITS, dy, row, end, OUT_BLOCKS * K, out_block + block, OUT_BLOCKS);
    else
      fetch_rows(fetched + item * HELD_UNITS, x, row, end, IN_BLOCKS * K, in_block + block - OUT_QUADS * 4, IN_BLOCKS);
  };
  float sums[WARP_SLOTS][OUT_TILES][IN_TILES][4] = {};
  copy_table(basis, tables, TABLE_WORDS);
  if (SCALED)
    for (int i = threadIdx.x; i < EXPONENTS; i += THREADS) both_exponents[i] = NO_EXPONENT;
  auto wait = [] { griddepcontrol_wait(), launch_dependents(); };
  if (!OVERLAPPED) wait();
  for (int item = warp; item < ITEMS; item += WARPS) fetch(item, begin);
  cp_async_commit();
  if (OVERLAPPED) wait();
  const word bits = FLIP_OUT || FLIP_IN ? sign_bits<SIGN_TYPE>(signs) : 0;  // while the first rows arrive
  __syncthreads();
  int buffer = 0, product_exponent = NO_EXPONENT;
  const int moved = MOVED_PARTS ? lane & 1 : 0;  // the parts of this thread's slots
  for (int row = begin; row < end; row += ROWS, buffer ^= 1) {
#if SCALED
    word4* spectra = both_spectra;
    int* out_exponents = both_exponents + buffer * 2 * ROWS;
    int* in_exponents = out_exponents + ROWS;
    Rows held[HELD];
    int exponents[HELD][2];
    cp_async_wait<0>();
#pragma unroll
    for (int h = 0; h < HELD; ++h) {
      const int item = warp + h * WARPS;
      if (item >= ITEMS) break;
      const bool of_outputs = item * ITEM_BLOCKS < OUT_QUADS * 4;
      const Fetched<OUT_ACTIVATION + IN_ACTIVATION> rows_of_item{fetched + item * HELD_UNITS,
                                                                 bool(of_outputs ? OUT_ACTIVATION : IN_ACTIVATION)};
      find_exponents(exponents[h], rows_of_item);
      const word flips = (of_outputs ? FLIP_OUT : FLIP_IN) ? bits : 0;
      fold_scaled<FLIP_OUT || FLIP_IN>(held[h], exponents[h], flips, rows_of_item);
      if (row + ROWS < end) fetch(item, row + ROWS);
      if (lane % 4 < 2)
        atomicMax((of_outputs ? out_exponents : in_exponents) + lane / 4 + lane % 4 * 8,
                  lane % 4 ? exponents[h][1] : exponents[h][0]);
    }
    cp_async_commit();
    __syncthreads();
    const int before = product_exponent;
    product_exponent = max(before, largest_product(out_exponents, in_exponents));
    int in_wanted[2], out_wanted[2];  // exponents by which this thread's rows are to be scaled
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      in_wanted[r] = in_exponents[lane / 4 + 8 * r];
      out_wanted[r] =
          in_wanted[r] == NO_EXPONENT ? out_exponents[lane / 4 + 8 * r] : product_exponent - in_wanted[r];
    }
    for (int i = threadIdx.x; i < 2 * ROWS; i += THREADS) both_exponents[(buffer ^ 1) * 2 * ROWS + i] = NO_EXPONENT;
#pragma unroll
    for (int h = 0; h < HELD; ++h) {
      const int item = warp + h * WARPS;
      if (item >= ITEMS) break;
      const bool of_outputs = item * ITEM_BLOCKS < OUT_QUADS * 4;
      int steps[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int wanted = of_outputs ? out_wanted[r] : in_wanted[r];
        steps[r] = exponents[h][r] == NO_EXPONENT ? 0 : wanted - exponents[h][r];
      }
      shift(held[h], steps);
      transform(spectra + item / PARTS * ROWS, (item % PARTS) ^ moved, STRIDE, held[h], basis);
    }
    if (before != NO_EXPONENT && before < product_exponent) {
      const float factor = power_of_two(before - product_exponent);
#pragma unroll
      for (int i = 0; i < WARP_SLOTS; ++i)
#pragma unroll
        for (int m = 0; m < OUT_TILES; ++m)
#pragma unroll
          for (int n = 0; n < IN_TILES; ++n)
#pragma unroll
            for (int c = 0; c < 4; ++c) sums[i][m][n][c] *= factor;
    }
#else
    word4* spectra = both_spectra + buffer * SLOTS * STRIDE;
    cp_async_wait<0>();
    for (int item = warp; item < ITEMS; item += WARPS) {
      Rows held;
      take_rows(held, fetched + item * HELD_UNITS);
      if (item * ITEM_BLOCKS < OUT_QUADS * 4 ? OUT_ACTIVATION : IN_ACTIVATION)
        activate<OUT_ACTIVATION + IN_ACTIVATION>(held);
      if (FLIP_OUT && item * ITEM_BLOCKS < OUT_QUADS * 4) flip(held, bits);
      if (FLIP_IN && item * ITEM_BLOCKS >= OUT_QUADS * 4) flip(held, bits);
      fold(held);
      if (row + ROWS < end) fetch(item, row + ROWS);
      transform(spectra + item / PARTS * ROWS, (item % PARTS) ^ moved, STRIDE, held, basis);
    }
    cp_async_commit();
#endif
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARP_SLOTS; ++i) {
      const word4* slot = spectra + (warp * WARP_SLOTS + i) * STRIDE;
      word a[OUT_TILES][4], b[IN_TILES][2];
#pragma unroll
      for (int m = 0; m < OUT_TILES; ++m)  // matrices: two of 4 blocks for rows 0 to 7, two for rows 8 to 15
        ldmatrix_x4<true>(a[m], slot + (2 * m + lane / 8 % 2) * ROWS + lane % 8 + lane / 16 * 8);
#pragma unroll
      for (int n = 0; n < IN_TILES; ++n)
        ldmatrix_x2<true>(b[n], slot + (OUT_QUADS + n) * ROWS + lane % 16);
#pragma unroll
      for (int m = 0; m < OUT_TILES; ++m)
#pragma unroll
        for (int n = 0; n < IN_TILES; ++n)
          mma16(sums[i][m][n], a[m][0], a[m][1], a[m][2], a[m][3], b[n][0], b[n][1]);
    }
  }

  const Power scale = power(max(-300, product_exponent) - 2 * TARGET);
  // Of four products of parts, real times real and imaginary times imaginary are in different threads.
  float* to = partials + (size_t)(blockIdx.x * gridDim.y + blockIdx.y) * (SLOTS * OUT_TILES * IN_TILES * 64);
  const bool odd = lane / 4 % 2;
#pragma unroll
  for (int i = 0; i < WARP_SLOTS; ++i)
#pragma unroll
    for (int m = 0; m < OUT_TILES; ++m)
#pragma unroll
      for (int n = 0; n < IN_TILES; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int slot = warp * WARP_SLOTS + i;
          const float first = sums[i][m][n][2 * half], second = sums[i][m][n][2 * half + 1];
          const float other = from_neighbour(second, 4);
          const float sum = odd ? first - other : first + other;
          const float result = slot ? sum : odd ? second : first;
          const int place = MOVED_PARTS && slot & 2 ? lane ^ 18 : lane;  // of blocks i ^ 2 and j ^ 2
          to[(((slot * OUT_TILES + m) * IN_TILES + n) * 2 + half) * 32 + place] =
              SCALED ? result * scale.inner * scale.outer : result;
        }
}
