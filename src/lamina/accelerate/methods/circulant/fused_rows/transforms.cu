// Building blocks of spectral matmuls that keep spectra on the chip: MMA instructions, and the block-wise transform.
//
// The transform is the orthonormal Fourier basis with its samples at t + 1/2, which turns the phase of each slot by a
// constant and leaves products of spectra as they are. Real parts are then even about the middle of a block and
// imaginary parts odd. With e[t] = x[t] + x[K-1-t] and o[t] = x[t] - x[K-1-t], t < K/2, both are products with matrices
// of K/2 by K/2: half the multiplications of a product with the whole basis.
//
// A spectrum of 16 rows and 4 blocks is stored in units of 16 bytes: the real and imaginary parts of one slot and row
// of 4 neighbouring blocks. Units of neighbouring rows are adjacent, as ldmatrix reads them.
//
// Macros: TYPE, bfloat16 (1) or float16 (2); SCALED, whether rows in memory are float32, see scaling.cu; BLOCK_SIZE;
// WARPS of a thread block; ITEM_BLOCKS, blocks that a warp transforms at a time, 4 or, with half the registers but slower
// stores, 2.

typedef Element<TYPE>::type element;               // its 16 bits
typedef Element<SCALED ? 0 : TYPE>::type value_t;  // of rows in memory
typedef unsigned int word;                         // two elements
struct alignas(8) word2 {
  word at[2];
};
struct alignas(16) word4 {
  word at[4];
};

constexpr int THREADS = 32 * WARPS;
constexpr int K = BLOCK_SIZE, SLOTS = K / 2;
constexpr int WIDEST = 16 / sizeof(value_t);                     // elements that one instruction reads
constexpr int VECTOR = SLOTS / 4 < WIDEST ? SLOTS / 4 : WIDEST;  // neighbouring elements that a thread holds
constexpr int CHUNKS = SLOTS / (4 * VECTOR);                     // such vectors of half a block
constexpr int HALF_WORDS = SLOTS / 8;               // words of half a block that a thread holds
constexpr int STEPS = SLOTS < 16 ? 1 : SLOTS / 16;  // MMA steps over half a block
constexpr int STEP_WORDS = SLOTS < 16 ? 1 : 2;      // words of a step in a thread's B operand, half of those of A
constexpr int COLUMN_TILES = SLOTS / 8;             // MMA tiles of 8 columns of half a block
constexpr int FRAGMENT = STEPS * STEP_WORDS;        // words of a thread for a tile of columns
constexpr int PIECE = FRAGMENT < 4 ? FRAGMENT : 4;
constexpr int TABLE_WORDS = COLUMN_TILES * 2 * FRAGMENT * 32;  // of a basis, for one direction

#if TYPE == 1
#define LAMINA_ONES 0x3f803f80u
#define LAMINA_MINUS_ONES 0xbf80bf80u
#else
#define LAMINA_ONES 0x3c003c00u
#define LAMINA_MINUS_ONES 0xbc00bc00u
#endif

#ifdef __CUDACC__
template <bool TRANSPOSED>
__device__ __forceinline__ void ldmatrix_x4(word (&to)[4], const word4* row) {
  const unsigned address = (unsigned)__cvta_generic_to_shared(row);
  if constexpr (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address));
}
template <bool TRANSPOSED>
__device__ __forceinline__ void ldmatrix_x2(word* to, const word4* row) {
  const unsigned address = (unsigned)__cvta_generic_to_shared(row);
  if constexpr (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1]) : "r"(address));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1]) : "r"(address));
}
// A matrix of 8 by 8, of which each thread has two neighbours of a row, transposed.
__device__ __forceinline__ word transposed(word pair) {
  word transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}
#if TYPE == 1
#define LAMINA_TYPE "bf16"
#else
#define LAMINA_TYPE "f16"
#endif
// sums[16 x 8] += a[16 x 16] b[16 x 8]
__device__ __forceinline__ void mma16(float (&sums)[4], word a0, word a1, word a2, word a3, word b0, word b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." LAMINA_TYPE "." LAMINA_TYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// sums[16 x 8] += a[16 x 8] b[8 x 8]
__device__ __forceinline__ void mma8(float (&sums)[4], word a0, word a1, word b0) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32." LAMINA_TYPE "." LAMINA_TYPE ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(b0));
}
__device__ __forceinline__ word pack2(float first, float second) {
  word pair;
  asm("cvt.rn." LAMINA_TYPE "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
// Sums and differences of two pairs.
__device__ __forceinline__ word add2(word a, word b) {
  word sum;
  asm("fma.rn." LAMINA_TYPE "x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(LAMINA_ONES), "r"(b));
  return sum;
}
__device__ __forceinline__ word subtract2(word a, word b) {
  word difference;
  asm("fma.rn." LAMINA_TYPE "x2 %0, %1, %2, %3;" : "=r"(difference) : "r"(b), "r"(LAMINA_MINUS_ONES), "r"(a));
  return difference;
}
__device__ __forceinline__ word multiply2(word a, word b) {
  word product;
  asm("mul.rn." LAMINA_TYPE "x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
// The larger number; NaN stays.
__device__ __forceinline__ float larger(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
// ReLU; NaN stays.
__device__ __forceinline__ word positive(word pair) {
  word positive;
  asm("max.NaN." LAMINA_TYPE "x2 %0, %1, %2;" : "=r"(positive) : "r"(pair), "r"(0));
  return positive;
}
// 2^a and 1 / a, within two units of the last place.
__device__ __forceinline__ float exp2_of(float a) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(a));
  return power;
}
__device__ __forceinline__ float reciprocal(float a) {
  float quotient;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(quotient) : "f"(a));
  return quotient;
}
// Lets the next kernel's thread blocks start where there is room; they wait for the end of this one.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Makes this thread's writes to shared memory visible to bulk copies that follow a barrier.
__device__ __forceinline__ void fence_bulk() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Copies from shared to global memory while the thread goes on.
__device__ __forceinline__ void bulk_store(void* to, const void* from, int bytes) {
  const unsigned address = (unsigned)__cvta_generic_to_shared(from);
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(address), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until this thread's bulk copies have read shared memory.
__device__ __forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// Keeps what was read from shared memory before what is copied there later.
__device__ __forceinline__ void keep_order() { asm volatile("" ::: "memory"); }
__device__ __forceinline__ float from_neighbour(float number, int mask) {
  return __shfl_xor_sync(0xffffffffu, number, mask);
}
__device__ __forceinline__ word bits_of_lanes(bool bit) { return __ballot_sync(0xffffffffu, bit); }
#else
// The same on the CPU, for one warp: threads exchange operands through static arrays.
template <bool TRANSPOSED>
inline void ldmatrix(word* to, const word4* row, int tiles) {
  static const element* rows[32];
  const int lane = threadIdx.x;
  rows[lane] = reinterpret_cast<const element*>(row);
  __syncthreads();
  for (int tile = 0; tile < tiles; ++tile)
    for (int i = 0; i < 2; ++i) {
      const int column = lane % 4 * 2 + i, line = lane / 4;
      const element bits = TRANSPOSED ? rows[tile * 8 + column][line] : rows[tile * 8 + line][column];
      to[tile] = i ? to[tile] | word(bits) << 16 : bits;
    }
  __syncthreads();
}
template <bool TRANSPOSED>
inline void ldmatrix_x4(word (&to)[4], const word4* row) {
  ldmatrix<TRANSPOSED>(to, row, 4);
}
template <bool TRANSPOSED>
inline void ldmatrix_x2(word* to, const word4* row) {
  ldmatrix<TRANSPOSED>(to, row, 2);
}
inline word transposed(word pair) {
  static element matrix[8][8];
  const int lane = threadIdx.x, row = lane / 4, column = lane % 4 * 2;
  matrix[row][column] = element(pair), matrix[row][column + 1] = element(pair >> 16);
  __syncthreads();
  const word transposed = matrix[column][row] | word(matrix[column + 1][row]) << 16;
  __syncthreads();
  return transposed;
}
inline void mma_on_cpu(float (&sums)[4], const word* a, const word* b, int summed) {
  static float left[16][16], right[16][8];
  const int lane = threadIdx.x, row = lane / 4, pair = lane % 4 * 2;
  for (int i = 0; i < summed / 2; ++i)
    left[row + i / 2 % 2 * 8][pair + i % 2 + i / 4 * 8] = to_float<TYPE>(element(a[i / 2] >> i % 2 * 16));
  for (int i = 0; i < summed / 4; ++i)
    right[pair + i % 2 + i / 2 * 8][row] = to_float<TYPE>(element(b[i / 2] >> i % 2 * 16));
  __syncthreads();
  for (int c = 0; c < 4; ++c)
    for (int k = 0; k < summed; ++k) sums[c] += left[row + c / 2 * 8][k] * right[k][pair + c % 2];
  __syncthreads();
}
inline void mma16(float (&sums)[4], word a0, word a1, word a2, word a3, word b0, word b1) {
  const word a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
  mma_on_cpu(sums, a, b, 16);
}
inline void mma8(float (&sums)[4], word a0, word a1, word b0) {
  const word a[2] = {a0, a1};
  mma_on_cpu(sums, a, &b0, 8);
}
inline word pack2(float first, float second) {
  return from_float<TYPE>(first) | word(from_float<TYPE>(second)) << 16;
}
inline float first_of(word pair) { return to_float<TYPE>(element(pair)); }
inline float second_of(word pair) { return to_float<TYPE>(element(pair >> 16)); }
inline word add2(word a, word b) { return pack2(first_of(a) + first_of(b), second_of(a) + second_of(b)); }
inline word subtract2(word a, word b) { return pack2(first_of(a) - first_of(b), second_of(a) - second_of(b)); }
inline word multiply2(word a, word b) { return pack2(first_of(a) * first_of(b), second_of(a) * second_of(b)); }
inline float larger(float a, float b) { return a < b ? b : a; }
inline word positive(word pair) { return pack2(larger(first_of(pair), 0), larger(second_of(pair), 0)); }
inline float exp2_of(float a) { return __builtin_exp2f(a); }
inline float reciprocal(float a) { return 1 / a; }
inline void launch_dependents() {}
inline void fence_bulk() {}
inline void bulk_store(void* to, const void* from, int bytes) {
  for (int i = 0; i < bytes / 4; ++i) static_cast<word*>(to)[i] = static_cast<const word*>(from)[i];
}
inline void bulk_commit() {}
inline void bulk_wait() {}
inline void keep_order() {}
inline float from_neighbour(float number, int mask) {
  static float numbers[32];
  numbers[threadIdx.x] = number;
  __syncthreads();
  const float other = numbers[threadIdx.x ^ mask];
  __syncthreads();
  return other;
}
inline word bits_of_lanes(bool bit) {
  static bool bits[32];
  bits[threadIdx.x] = bit;
  __syncthreads();
  word all = 0;
  for (int lane = 0; lane < 32; ++lane) all |= word(bits[lane]) << lane;
  __syncthreads();
  return all;
}
#endif

__device__ __forceinline__ word swapped(word pair) { return pair >> 16 | pair << 16; }

// Sixteen rows of ITEM_BLOCKS blocks as they are in memory, in the registers of a warp: thread g * 4 + t has rows g and g + 8
// and, of each block, VECTOR elements from VECTOR * t on, and those that mirror them.
struct Rows {
  word first[ITEM_BLOCKS][2][HALF_WORDS], mirrored[ITEM_BLOCKS][2][HALF_WORDS];
};

__device__ __forceinline__ void read_vector(word* to, const element* from, bool inside) {
  if constexpr (VECTOR == 8) {
    const word4 w = inside ? *reinterpret_cast<const word4*>(from) : word4{};
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = w.at[i];
  } else if constexpr (VECTOR == 4) {
    const word2 w = inside ? *reinterpret_cast<const word2*>(from) : word2{};
    to[0] = w.at[0], to[1] = w.at[1];
  } else {
    to[0] = inside ? *reinterpret_cast<const word*>(from) : 0;
  }
}

#if SCALED
__device__ __forceinline__ void read_vector(float* to, const float* from, bool inside) {
  if constexpr (VECTOR == 4) {
    const float4 w = inside ? *reinterpret_cast<const float4*>(from) : float4{};
    to[0] = w.x, to[1] = w.y, to[2] = w.z, to[3] = w.w;
  } else {
    const float2 w = inside ? *reinterpret_cast<const float2*>(from) : float2{};
    to[0] = w.x, to[1] = w.y;
  }
}
#endif

// Reads rows from `row` on and blocks from `block` on; zeros for those beyond `rows` and `blocks`. `Held` is Rows, or
// FloatRows of scaling.cu.
template <class Held>
__device__ __forceinline__ void read_rows(Held& to, const value_t* from, int row, int rows, int width, int block,
                                          int blocks) {
  constexpr int REGISTERS = VECTOR * sizeof(value_t) / sizeof(word);  // of a vector
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int b = 0; b < ITEM_BLOCKS; ++b)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = row + lane / 4 + 8 * r;
      const bool inside = at < rows && block + b < blocks;
      const value_t* start = from + (size_t)at * width + (block + b) * K;
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c) {
        const int first = 4 * VECTOR * c + VECTOR * (lane % 4);
        read_vector(to.first[b][r] + c * REGISTERS, start + first, inside);
        read_vector(to.mirrored[b][r] + c * REGISTERS, start + K - VECTOR - first, inside);
      }
    }
}

// The same in two parts: copies each thread's elements to shared memory that only this thread reads, HELD_UNITS units of a
// warp, and later takes them from there.
constexpr int VECTORS = ITEM_BLOCKS * 2 * CHUNKS * 2, HELD_UNITS = VECTORS * 32 * VECTOR / WIDEST;
__device__ __forceinline__ void fetch_rows(word4* held, const value_t* from, int row, int rows, int width, int block,
                                           int blocks) {
  const int lane = threadIdx.x % 32;
  value_t* to = reinterpret_cast<value_t*>(held) + lane * VECTOR;
#pragma unroll
  for (int b = 0; b < ITEM_BLOCKS; ++b)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = row + lane / 4 + 8 * r;
      const bool inside = at < rows && block + b < blocks;
      const value_t* start = inside ? from + (size_t)at * width + (block + b) * K : from;
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c) {
        const int first = 4 * VECTOR * c + VECTOR * (lane % 4), i = ((b * 2 + r) * CHUNKS + c) * 2;
        cp_async<VECTOR * sizeof(value_t)>(to + i * 32 * VECTOR, start + first, inside);
        cp_async<VECTOR * sizeof(value_t)>(to + (i + 1) * 32 * VECTOR, start + K - VECTOR - first, inside);
      }
    }
}
__device__ __forceinline__ void take_rows(Rows& to, const word4* held) {
  const element* from = reinterpret_cast<const element*>(held) + threadIdx.x % 32 * VECTOR;
#pragma unroll
  for (int b = 0; b < ITEM_BLOCKS; ++b)
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c) {
        const int i = ((b * 2 + r) * CHUNKS + c) * 2;
        read_vector(to.first[b][r] + c * VECTOR / 2, from + i * 32 * VECTOR, true);
        read_vector(to.mirrored[b][r] + c * VECTOR / 2, from + (i + 1) * 32 * VECTOR, true);
      }
  keep_order();
}

// The signs of this thread's elements of a block, which all blocks share, in one register: bits 15 - i and 31 - i are set
// where the two elements of word i of `first` are to be negated; those of `mirrored` follow. Lane l reads what bit l needs.
template <int DTYPE>
__device__ __forceinline__ word sign_bits(const typename Element<DTYPE>::type* signs) {
  static_assert(2 * HALF_WORDS <= 16);
  const int lane = threadIdx.x % 32, i = 15 - lane % 16, at = i % HALF_WORDS * 2;
  word bits = 0;
#pragma unroll
  for (int thread = 0; thread < 4; ++thread) {
    const int first = at / VECTOR * 4 * VECTOR + thread * VECTOR;
    const int vector = i < HALF_WORDS ? first : K - VECTOR - first;
    const word all = bits_of_lanes(i < 2 * HALF_WORDS && to_float<DTYPE>(signs[vector + at % VECTOR + lane / 16]) < 0);
    if (lane % 4 == thread) bits = all;
  }
  return bits;
}

// Word `i` with its elements negated where `bits` says so.
__device__ __forceinline__ word flipped(word pair, word bits, int i) { return pair ^ (bits << i & 0x80008000u); }

// Replaces each element of rows in registers, word or float, by `use(element, i)`; those of `mirrored` count on in i.
template <class Held, class Use>
__device__ __forceinline__ void each_element(Held& rows, const Use& use) {
  constexpr int COUNT = sizeof(rows.first[0][0]) / sizeof(rows.first[0][0][0]);
#pragma unroll
  for (int b = 0; b < ITEM_BLOCKS; ++b)
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int i = 0; i < COUNT; ++i) {
        rows.first[b][r][i] = use(rows.first[b][r][i], i);
        rows.mirrored[b][r][i] = use(rows.mirrored[b][r][i], COUNT + i);
      }
}

// Rows times their signs, in place.
__device__ __forceinline__ void flip(Rows& rows, word bits) {
  each_element(rows, [&](word pair, int i) { return flipped(pair, bits, i); });
}

// Sums and differences of mirrored elements, in place: `first` has the sums, `mirrored` the differences.
__device__ __forceinline__ void fold(Rows& rows) {
#pragma unroll
  for (int b = 0; b < ITEM_BLOCKS; ++b)
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c) {
        word* first = rows.first[b][r] + c * VECTOR / 2;
        word* mirrored = rows.mirrored[b][r] + c * VECTOR / 2;
        word sums[VECTOR / 2], differences[VECTOR / 2];
#pragma unroll
        for (int i = 0; i < VECTOR / 2; ++i) {
          const word other = swapped(mirrored[VECTOR / 2 - 1 - i]);
          sums[i] = add2(first[i], other), differences[i] = subtract2(first[i], other);
        }
#pragma unroll
        for (int i = 0; i < VECTOR / 2; ++i) first[i] = sums[i], mirrored[i] = differences[i];
      }
}

// This thread's operand of a basis for a tile of columns; `odd` of imaginary parts.
__device__ __forceinline__ void read_basis(word (&to)[FRAGMENT], const word* table, int tile, int odd) {
  const word* from = table + (tile * 2 + odd) * FRAGMENT * 32 + threadIdx.x % 32 * PIECE;
#pragma unroll
  for (int piece = 0; piece < FRAGMENT / PIECE; ++piece, from += 32 * PIECE) {
    if constexpr (PIECE == 4) {
      const word4 w = *reinterpret_cast<const word4*>(from);
#pragma unroll
      for (int i = 0; i < 4; ++i) to[piece * 4 + i] = w.at[i];
    } else if constexpr (PIECE == 2) {
      const word2 w = *reinterpret_cast<const word2*>(from);
      to[0] = w.at[0], to[1] = w.at[1];
    } else {
      to[0] = *from;
    }
  }
}

// sums += half of a block, as words of rows g and g + 8, times a tile of the basis.
__device__ __forceinline__ void multiply_basis(float (&sums)[4], const word* low, const word* high,
                                               const word (&basis)[FRAGMENT]) {
  if constexpr (STEP_WORDS == 1) {
    mma8(sums, low[0], high[0], basis[0]);
  } else {
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
      mma16(sums, low[2 * s], high[2 * s], low[2 * s + 1], high[2 * s + 1], basis[2 * s], basis[2 * s + 1]);
  }
}

// Spectra of folded rows to units of shared memory: slot f of row r (< 16) at to[f * slot_stride + r]; of two blocks, to the
// first or second half of a unit.
struct alignas(4 * ITEM_BLOCKS) Part {
  word at[ITEM_BLOCKS];
};
__device__ __forceinline__ void transform(word4* units, int half, int slot_stride, const Rows& rows,
                                          const word* table) {
  const int lane = threadIdx.x % 32;
  Part* to = reinterpret_cast<Part*>(units) + half;
#pragma unroll
  for (int n = 0; n < COLUMN_TILES; ++n) {
    word even[FRAGMENT], odd[FRAGMENT];
    read_basis(even, table, n, 0);
    read_basis(odd, table, n, 1);
    float real[ITEM_BLOCKS][4] = {}, imaginary[ITEM_BLOCKS][4] = {};
#pragma unroll
    for (int b = 0; b < ITEM_BLOCKS; ++b) multiply_basis(real[b], rows.first[b][0], rows.first[b][1], even);
#pragma unroll
    for (int b = 0; b < ITEM_BLOCKS; ++b) multiply_basis(imaginary[b], rows.mirrored[b][0], rows.mirrored[b][1], odd);
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // column i % 2 of row i / 2
      Part unit;
#pragma unroll
      for (int b = 0; b < ITEM_BLOCKS; ++b) unit.at[b] = pack2(real[b][i], imaginary[b][i]);
      to[((8 * n + lane % 4 * 2 + i % 2) * slot_stride + lane / 4 + i / 2 * 8) * (4 / ITEM_BLOCKS)] = unit;
    }
  }
}

// Copies the basis to shared memory.
__device__ __forceinline__ void copy_table(word* to, const word* from, int words) {
  for (int i = threadIdx.x; i < words / 4; i += THREADS)
    reinterpret_cast<word4*>(to)[i] = reinterpret_cast<const word4*>(from)[i];
}
