// y = x W^T for many rows, or dx = dy W: transform, product and inverse transform of 16 rows in one thread block, whose
// spectra stay in shared memory.
//
// 1. Warps transform 16 rows of ITEM_BLOCKS blocks each, from global memory through registers to shared memory.
// 2. Warps multiply 8 slots of 16 rows by the weights of 8 output blocks, which they read from L2 as MMA operands.
// 3. Warps transform 16 rows of one output block back and write them.
//
// Weights are words of real and imaginary parts, [output blocks / 8][SLOTS / 8][input blocks / 4][2][32][4]: a thread of
// an MMA reads 4 slots at once. For the input gradient they are conjugated by whoever writes them.
//
// Random sign flips of a layer act on its inputs as they are read, so on the outputs of the input gradient.
//
// SCALED rows have one scale each, and weights have one, whose exponent follows them; outputs are multiplied by the
// inverse scales. Products of spectra are stored divided by 2^HEADROOM, which bounds the largest possible sum.
//
// Macros besides those of transforms.cu: IN_BLOCKS, OUT_BLOCKS; FLIP_IN and FLIP_OUT, whether rows of that many blocks are
// multiplied by `signs`, whose dtype is SIGN_TYPE; CHUNK, output blocks between two barriers, a multiple of 8; BIAS,
// whether there is one; RELU, whether it follows; INPUT_ACTIVATION, which inputs pass as they are read; GATE_ACTIVATION,
// whose derivatives at `gate`, rows like outputs, multiply these, as gradients behind an activation are; OVERLAPPED,
// whether the preceding kernel wrote no rows, so that they are transformed before it has ended; SUMMED, whether each 16
// rows are also added to a row of `column_sums`; SHARED_SPECTRA, whether spectra of outputs take the place of those of
// inputs: there is then one chunk, and each warp multiplies once; STAGED, whether outputs leave through shared memory by
// bulk copies that run while warps multiply; PREFETCH, whether weights are read one step before they are used;
// ROWS_AHEAD, whether warps read their next rows while they transform; BLOCKS_PER_SM.

typedef Element<SIGN_TYPE>::type sign_t;

constexpr int ROWS = 16;
constexpr int IN_QUADS = (IN_BLOCKS + 3) / 4;
constexpr int PARTS = 4 / ITEM_BLOCKS, IN_ITEMS = IN_QUADS * PARTS;
constexpr int IN_STRIDE = IN_QUADS * ROWS + 1;  // units between slots; odd, against bank conflicts
constexpr int EIGHTS = SLOTS / 8;
constexpr int PLANE = EIGHTS * ROWS;            // units of the real parts of an output block
constexpr int OUT_STRIDE = 2 * PLANE + 1;       // units between output blocks
constexpr int OUT_GROUPS = (OUT_BLOCKS + 7) / 8;
constexpr int CHUNK_GROUPS = CHUNK / 8;
constexpr int PRODUCTS = CHUNK_GROUPS * EIGHTS;  // of a chunk, to be divided among warps
constexpr int STAGE_STRIDE = CHUNK * K + 32;     // elements between staged rows, against bank conflicts
constexpr int HEADROOM = 15 + 1 + FloorLog2<2 * IN_BLOCKS - 1>::value;
constexpr int EXPONENT_WORDS = SCALED ? ROWS + IN_ITEMS * ROWS : 0;  // of rows, and of the rows of each item

#if SCALED
typedef FloatRows Held;
#else
typedef Rows Held;
#endif

// Eight slots of 16 rows times the weights of 8 output blocks: real and imaginary parts.
struct Sums {
  float real[8][4], imaginary[8][4];
};

__device__ __forceinline__ void multiply(Sums& sums, const word4* spectra, const word4* weights,
                                         int group, int eight) {
  const int lane = threadIdx.x % 32;
  const word4* w = weights + (size_t)(group * EIGHTS + eight) * IN_QUADS * 64 + lane;
  const word4* x = spectra + eight * 8 * IN_STRIDE + lane % 16 + lane / 16 * ROWS;
#pragma unroll
  for (int s = 0; s < 8; ++s)
#pragma unroll
    for (int i = 0; i < 4; ++i) sums.real[s][i] = sums.imaginary[s][i] = 0;
  // The operand of slot s for the real parts, and for the imaginary parts.
  auto real_of = [&](word pair, int s) { return s == 0 && eight == 0 ? pair & 0xffffu : pair ^ 0x80000000u; };
  auto imaginary_of = [&](word pair, int s) { return s == 0 && eight == 0 ? pair & 0xffff0000u : swapped(pair); };
  auto weights_of = [&](int quad, int i) { return w[quad * 64 + i * 32]; };
  word4 next[4];
  if constexpr (PREFETCH) {
#pragma unroll
    for (int i = 0; i < (IN_QUADS > 1 ? 4 : 2); ++i) next[i] = weights_of(0, i);
  }
#pragma unroll 1
  for (int quad = 0; quad + 1 < IN_QUADS; quad += 2) {
    word4 held[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) held[i] = PREFETCH ? next[i] : weights_of(quad, i);
    if constexpr (PREFETCH) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (quad + 2 + i / 2 < IN_QUADS) next[i] = weights_of(quad + 2, i);
    }
#pragma unroll
    for (int s = 0; s < 8; ++s) {
      word a[4];
      ldmatrix_x4<false>(a, x + s * IN_STRIDE + quad * ROWS);
      const word first = held[s / 4].at[s % 4], second = held[2 + s / 4].at[s % 4];
      mma16(sums.real[s], a[0], a[1], a[2], a[3], real_of(first, s), real_of(second, s));
      mma16(sums.imaginary[s], a[0], a[1], a[2], a[3], imaginary_of(first, s), imaginary_of(second, s));
    }
  }
  if constexpr (IN_QUADS % 2) {
    constexpr int quad = IN_QUADS - 1;
    word4 held[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) held[i] = PREFETCH ? next[i] : weights_of(quad, i);
#pragma unroll
    for (int s = 0; s < 8; ++s) {
      word a[2];
      ldmatrix_x2<false>(a, x + s * IN_STRIDE + quad * ROWS - lane / 16 * ROWS);
      const word only = held[s / 4].at[s % 4];
      mma8(sums.real[s], a[0], a[1], real_of(only, s));
      mma8(sums.imaginary[s], a[0], a[1], imaginary_of(only, s));
    }
  }
}

// A sum of products as it is stored.
__device__ __forceinline__ float fitted(float sum) { return SCALED ? sum * power_of_two(-HEADROOM) : sum; }

// Stores sums as spectra of outputs: planes of real and of imaginary parts, in units of 8 slots of one row and block.
__device__ __forceinline__ void store(word4* products, const Sums& sums, int group, int eight) {
  const int lane = threadIdx.x % 32;
  word4* to = products + (group * 8 + lane % 4 * 2) * OUT_STRIDE + eight * ROWS + lane / 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // block i % 2 of row i / 2
    word4 real, imaginary;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      real.at[s] = pack2(fitted(sums.real[2 * s][i]), fitted(sums.real[2 * s + 1][i]));
      imaginary.at[s] = pack2(fitted(sums.imaginary[2 * s][i]), fitted(sums.imaginary[2 * s + 1][i]));
    }
    to[i % 2 * OUT_STRIDE + i / 2 * 8] = real;
    to[i % 2 * OUT_STRIDE + i / 2 * 8 + PLANE] = imaginary;
  }
}

__device__ __forceinline__ void write_vector(element* to, const word* from) {
  if constexpr (VECTOR == 8) {
    *reinterpret_cast<word4*>(to) = word4{from[0], from[1], from[2], from[3]};
  } else if constexpr (VECTOR == 4) {
    *reinterpret_cast<word2*>(to) = word2{from[0], from[1]};
  } else {
    *reinterpret_cast<word*>(to) = from[0];
  }
}

// An output: its ReLU, if there is one; NaN stays.
__device__ __forceinline__ float output(float a) { return RELU && a < 0 ? 0 : a; }

// Transforms 16 rows of one output block back, from spectra at `from`, and writes the first `rows` of them, `to_stride`
// elements apart. SCALED outputs are multiplied by `scales` of this thread's two rows. `gate` has `gate_rows` rows.
__device__ __forceinline__ void write_block(value_t* to, size_t to_stride, int rows, const word4* from,
                                            const float* bias, const value_t* gate, int gate_rows, word signs,
                                            const Power (&scales)[2],
                                            const word (&even)[COLUMN_TILES][FRAGMENT],
                                            const word (&odd)[COLUMN_TILES][FRAGMENT]) {
  const int lane = threadIdx.x % 32;
  Derivatives<GATE_ACTIVATION> derivatives[2];
  if constexpr (GATE_ACTIVATION) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane / 4 + 8 * r;
      read_derivatives(derivatives[r], gate + row * (OUT_BLOCKS * K), row < gate_rows);
    }
  }
  from += lane % 16;
  float sums[COLUMN_TILES][4] = {}, differences[COLUMN_TILES][4] = {};
  if constexpr (STEP_WORDS == 1) {
    word a[2];
    ldmatrix_x2<false>(a, from);
    mma8(sums[0], a[0], a[1], even[0][0]);
    ldmatrix_x2<false>(a, from + PLANE);
    mma8(differences[0], a[0], a[1], odd[0][0]);
  } else {
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      word a[4];
      ldmatrix_x4<false>(a, from + (2 * s + lane / 16) * ROWS);
#pragma unroll
      for (int n = 0; n < COLUMN_TILES; ++n)
        mma16(sums[n], a[0], a[1], a[2], a[3], even[n][2 * s], even[n][2 * s + 1]);
      ldmatrix_x4<false>(a, from + PLANE + (2 * s + lane / 16) * ROWS);
#pragma unroll
      for (int n = 0; n < COLUMN_TILES; ++n)
        mma16(differences[n], a[0], a[1], a[2], a[3], odd[n][2 * s], odd[n][2 * s + 1]);
    }
  }
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) {
    const int first = 4 * VECTOR * c + VECTOR * (lane % 4), mirrored = K - VECTOR - first;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane / 4 + 8 * r;
      const int low_at = 2 * c * VECTOR, high_at = low_at + VECTOR;
#if SCALED
      float low[VECTOR], high[VECTOR];
#pragma unroll
      for (int i = 0; i < VECTOR; ++i) {
        const int at = c * VECTOR + i, opposite = VECTOR - 1 - i;
        const float even_part = sums[at / 2][2 * r + i % 2] * scales[r].inner;
        const float odd_part = differences[at / 2][2 * r + i % 2];
        float a = __fmaf_rn(odd_part, scales[r].inner, even_part), b = __fmaf_rn(-odd_part, scales[r].inner, even_part);
        a *= scales[r].outer, b *= scales[r].outer;
        if constexpr (BIAS) a += bias[first + i], b += bias[mirrored + opposite];
        a = through(output(a), derivatives[r], low_at + i), b = through(output(b), derivatives[r], high_at + opposite);
        low[i] = FLIP_OUT ? flipped_element(a, signs, at) : a;
        high[opposite] = FLIP_OUT ? flipped_element(b, signs, 2 * HALF_WORDS + c * VECTOR + opposite) : b;
      }
#else
      word low[VECTOR / 2], high[VECTOR / 2];
#pragma unroll
      for (int i = 0; i < VECTOR / 2; ++i) {
        const float* even_part = sums[c * VECTOR / 2 + i] + 2 * r;
        const float* odd_part = differences[c * VECTOR / 2 + i] + 2 * r;
        float a = even_part[0] + odd_part[0], b = even_part[1] + odd_part[1];
        float d = even_part[0] - odd_part[0], e = even_part[1] - odd_part[1];
        if constexpr (BIAS) {
          const int opposite = mirrored + VECTOR - 2 - 2 * i;
          a += bias[first + 2 * i], b += bias[first + 2 * i + 1];
          e += bias[opposite], d += bias[opposite + 1];
        }
        a = through(output(a), derivatives[r], low_at + 2 * i);
        b = through(output(b), derivatives[r], low_at + 2 * i + 1);
        e = through(output(e), derivatives[r], high_at + VECTOR - 2 - 2 * i);
        d = through(output(d), derivatives[r], high_at + VECTOR - 1 - 2 * i);
        low[i] = pack2(a, b), high[VECTOR / 2 - 1 - i] = pack2(e, d);
      }
      if constexpr (FLIP_OUT) {
#pragma unroll
        for (int i = 0; i < VECTOR / 2; ++i) {
          low[i] = flipped(low[i], signs, c * VECTOR / 2 + i);
          high[i] = flipped(high[i], signs, HALF_WORDS + c * VECTOR / 2 + i);
        }
      }
#endif
      if (row >= rows) continue;
      write_vector(to + row * to_stride + first, low);
      write_vector(to + row * to_stride + mirrored, high);
    }
  }
}

#if SCALED

// Brings the spectra of each item from its own scale to that of its rows.
__device__ __forceinline__ void align(word4* spectra, const int* row_exponents, const int* item_exponents) {
  const int lane = threadIdx.x % 32, row = lane % 16;
  for (int quad = threadIdx.x / 32; quad < IN_QUADS; quad += WARPS) {
    word factors[PARTS];
    bool needed = false;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      const int exponent = item_exponents[(quad * PARTS + part) * ROWS + row];
      const int steps = exponent == NO_EXPONENT ? 0 : row_exponents[row] - exponent;
      factors[part] = shift_down(steps);
      needed |= steps > 0;
    }
    if (!bits_of_lanes(needed)) continue;
    word4* units = spectra + quad * ROWS + row;
#pragma unroll 4
    for (int slot = lane / 16; slot < SLOTS; slot += 2) {
      word4 unit = units[slot * IN_STRIDE];
#pragma unroll
      for (int i = 0; i < 4; ++i) unit.at[i] = multiply2(unit.at[i], factors[i / ITEM_BLOCKS]);
      units[slot * IN_STRIDE] = unit;
    }
  }
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    fused_rows(const value_t* __restrict__ x, const word4* __restrict__ weights, const word* __restrict__ tables,
               const float* __restrict__ bias, value_t* __restrict__ y, int rows, int chunks_per_block,
               const sign_t* __restrict__ signs, const value_t* __restrict__ gate, float* __restrict__ column_sums) {
  extern __shared__ float4 shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row0 = blockIdx.x * ROWS;
  const int first_group = blockIdx.y * chunks_per_block * CHUNK_GROUPS;
  word* inverse = reinterpret_cast<word*>(shared);
  int* row_exponents = reinterpret_cast<int*>(inverse + (SHARED_SPECTRA ? 2 : 1) * TABLE_WORDS);
  int* item_exponents = row_exponents + ROWS;
  word4* spectra = reinterpret_cast<word4*>(row_exponents + EXPONENT_WORDS);
  word4* products = SHARED_SPECTRA ? spectra : spectra + SLOTS * IN_STRIDE;
  word* basis = SHARED_SPECTRA ? inverse + TABLE_WORDS : reinterpret_cast<word*>(products);  // until there are products
  value_t* stage = reinterpret_cast<value_t*>(products + CHUNK * OUT_STRIDE);
  auto read = [&](Held& to, int item) {
    read_rows(to, x, row0, rows, IN_BLOCKS * K, item * ITEM_BLOCKS, IN_BLOCKS);
  };
  copy_table(basis, tables, TABLE_WORDS);
  copy_table(inverse, tables + TABLE_WORDS, TABLE_WORDS);
  if (SCALED && threadIdx.x < ROWS) row_exponents[threadIdx.x] = NO_EXPONENT;
  auto wait = [] { griddepcontrol_wait(), launch_dependents(); };
  if (!OVERLAPPED) wait();
  Held held;
  if (warp < IN_ITEMS) read(held, warp);
  const word bits = FLIP_IN || FLIP_OUT ? sign_bits<SIGN_TYPE>(signs) : 0;  // while the first rows arrive
  __syncthreads();
  for (int item = warp; item < IN_ITEMS; item += WARPS) {
    if (!ROWS_AHEAD && item >= WARPS) read(held, item);
    Held next;
    if (ROWS_AHEAD && item + WARPS < IN_ITEMS) read(next, item + WARPS);
    if constexpr (INPUT_ACTIVATION) activate<INPUT_ACTIVATION>(held);
    if constexpr (SUMMED)
      if (blockIdx.y == 0)
        write_column_sums(column_sums + ((size_t)blockIdx.x * IN_BLOCKS + item * ITEM_BLOCKS) * K, held,
                          IN_BLOCKS - item * ITEM_BLOCKS);
#if SCALED
    int exponents[2];
    find_exponents(exponents, held);
    if (lane % 4 < 2) {
      const int row = lane / 4 + lane % 4 * 8, exponent = lane % 4 ? exponents[1] : exponents[0];
      item_exponents[item * ROWS + row] = exponent;
      atomicMax(row_exponents + row, exponent);
    }
    Rows folded;
    fold_scaled<FLIP_IN>(folded, exponents, bits, held);
    transform(spectra + item / PARTS * ROWS, item % PARTS, IN_STRIDE, folded, basis);
#else
    if constexpr (FLIP_IN) flip(held, bits);
    fold(held);
    transform(spectra + item / PARTS * ROWS, item % PARTS, IN_STRIDE, held, basis);
#endif
    if (ROWS_AHEAD) held = next;
  }
  if (OVERLAPPED) wait();
  __syncthreads();
  Power scales[2];  // of outputs
#if SCALED
  align(spectra, row_exponents, item_exponents);
  const int weight_exponent = int(weights[OUT_GROUPS * EIGHTS * IN_QUADS * 64].at[0]);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int exponent = max(LEAST_EXPONENT, row_exponents[lane / 4 + 8 * r]);
    scales[r] = power(exponent - TARGET + weight_exponent - WEIGHT_TARGET + HEADROOM);
  }
  __syncthreads();
#endif

  for (int chunk = 0; chunk < chunks_per_block; ++chunk) {
    const int group0 = first_group + chunk * CHUNK_GROUPS;
    if (group0 >= OUT_GROUPS) break;
    if constexpr (SHARED_SPECTRA) {
      const int group = warp % CHUNK_GROUPS, eight = warp / CHUNK_GROUPS;
      const bool busy = warp < PRODUCTS && group0 + group < OUT_GROUPS;
      Sums sums;
      if (busy) multiply(sums, spectra, weights, group0 + group, eight);
      __syncthreads();
      if (busy) store(products, sums, group, eight);
    } else {
      for (int item = warp; item < PRODUCTS; item += WARPS) {
        const int group = item % CHUNK_GROUPS, eight = item / CHUNK_GROUPS;
        if (group0 + group >= OUT_GROUPS) continue;
        Sums sums;
        multiply(sums, spectra, weights, group0 + group, eight);
        store(products, sums, group, eight);
      }
    }
    if (STAGED) bulk_wait();  // for the copies of the previous chunk
    __syncthreads();
    const int blocks = min(CHUNK, OUT_BLOCKS - group0 * 8);
    {
      word even[COLUMN_TILES][FRAGMENT], odd[COLUMN_TILES][FRAGMENT];
#pragma unroll
      for (int n = 0; n < COLUMN_TILES; ++n) {
        read_basis(even[n], inverse, n, 0);
        read_basis(odd[n], inverse, n, 1);
      }
      value_t* to = STAGED ? stage : y + (size_t)row0 * (OUT_BLOCKS * K) + group0 * 8 * K;
      for (int block = warp; block < blocks; block += WARPS)
        write_block(to + block * K, STAGED ? STAGE_STRIDE : OUT_BLOCKS * K, STAGED ? ROWS : rows - row0,
                    products + block * OUT_STRIDE, bias + (group0 * 8 + block) * K,
                    gate + (size_t)row0 * (OUT_BLOCKS * K) + (group0 * 8 + block) * K, rows - row0, bits, scales, even,
                    odd);
    }
    if (STAGED) fence_bulk();
    __syncthreads();
    if constexpr (STAGED) {
      const int row = WARPS == 1 ? lane : lane < ROWS / WARPS ? warp * (ROWS / WARPS) + lane : ROWS;
      if (row < ROWS && row0 + row < rows) {
        bulk_store(y + (size_t)(row0 + row) * (OUT_BLOCKS * K) + group0 * 8 * K, stage + row * STAGE_STRIDE,
                   blocks * K * sizeof(value_t));
        bulk_commit();
      }
    }
  }
  if (STAGED) bulk_wait();
}
