// Building blocks of spectral matmuls of convolutions: tiles of pixels in shared memory, and MMA instructions on
// them.
//
// A pixel of one frequency has few elements, and every filter tap reads it again. A thread block copies a tile of
// pixels with its halo to shared memory once, in planes of vectors of 8 elements: a row of an MMA operand is one
// vector of a pixel, and a tap is an address offset. Tiles are double- or triple-buffered: all but one of the stages
// are being copied.
//
// A pixel of fewer than 8 elements would leave tensor cores partly idle, so PACK_SIZE neighboring pixels of a line
// form a pack. The window then slides from pack to pack and covers the windows of all its pixels; outside of a
// pixel's own window the weights are zero.
//
// Macros: TYPE, bfloat16 (1) or float16 (2); TERMS, fp16 terms of an element, 1 or 2; IN_BLOCKS and OUT_BLOCKS,
// circulant blocks of an input and an output pixel (q and p; backward p and q); KH, KW, SH, SW, DH, DW, the
// geometry; PACK_SIZE, pixels of a pack; TILE_HEIGHT and TILE_WIDTH, a tile of output packs; STAGES; WARPS of a
// thread block; BLOCKS_PER_SM, resident thread blocks.

typedef Element<TYPE>::type element;  // its 16 bits
typedef unsigned int word;            // two elements

#ifdef __CUDACC__
// Four 8x8 matrices, the address of each row from one thread; with TRANSPOSED, each is transposed.
template <bool TRANSPOSED>
__device__ __forceinline__ void ldmatrix_x4(word (&to)[4], const element* row) {
  if constexpr (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row)));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row)));
}
// sums[16 x 8] += a[16 x 16] b[16 x 8]
#define LAMINA_MMA(NAME)                                                                                             \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
      "{%0, %1, %2, %3};"                                                                                            \
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                                   \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
__device__ __forceinline__ void mma(float (&sums)[4], const word (&a)[4], const word* b) {
#if TYPE == 1
  LAMINA_MMA("bf16");
#else
  LAMINA_MMA("f16");
#endif
}
__device__ __forceinline__ word pack2(float first, float second) {
  word pair;
#if TYPE == 1
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
#endif
  return pair;
}
#else
// The same on the CPU, for one warp: threads exchange operands through static arrays.
template <bool TRANSPOSED>
inline void ldmatrix_x4(word (&to)[4], const element* row) {
  static const element* rows[32];
  const int lane = threadIdx.x;
  rows[lane] = row;
  __syncthreads();
  for (int tile = 0; tile < 4; ++tile)
    for (int i = 0; i < 2; ++i) {
      const int column = lane % 4 * 2 + i, line = lane / 4;
      const element bits = TRANSPOSED ? rows[tile * 8 + column][line] : rows[tile * 8 + line][column];
      to[tile] = i ? to[tile] | word(bits) << 16 : bits;
    }
  __syncthreads();
}
inline void mma(float (&sums)[4], const word (&a)[4], const word* b) {
  static float left[16][16], right[16][8];
  const int lane = threadIdx.x, row = lane / 4, pair = lane % 4 * 2;
  for (int i = 0; i < 8; ++i)
    left[row + i / 2 % 2 * 8][pair + i % 2 + i / 4 * 8] = to_float<TYPE>(element(a[i / 2] >> i % 2 * 16));
  for (int i = 0; i < 4; ++i) right[pair + i % 2 + i / 2 * 8][row] = to_float<TYPE>(element(b[i / 2] >> i % 2 * 16));
  __syncthreads();
  for (int c = 0; c < 4; ++c)
    for (int k = 0; k < 16; ++k) sums[c] += left[row + c / 2 * 8][k] * right[k][pair + c % 2];
  __syncthreads();
}
inline word pack2(float first, float second) {
  return from_float<TYPE>(first) | word(from_float<TYPE>(second)) << 16;
}
#endif

constexpr int THREADS = 32 * WARPS;
constexpr int TAPS = KH * KW;
constexpr int TILE_PACKS = TILE_HEIGHT * TILE_WIDTH;  // output packs of a tile
constexpr int IN_ELEMENTS = PACK_SIZE * 2 * IN_BLOCKS, OUT_ELEMENTS = PACK_SIZE * 2 * OUT_BLOCKS;  // elements of a pack
// Packs of a line that an output pack reads, and the distance between them.
constexpr int WINDOW_PACKS = PACK_SIZE > 1 ? ((KW - 1) * DW + (PACK_SIZE - 1) * SW) / PACK_SIZE + 1 : KW;
constexpr int PACK_DILATION = PACK_SIZE > 1 ? 1 : DW;
constexpr int INPUT_HEIGHT = (TILE_HEIGHT - 1) * SH + (KH - 1) * DH + 1;
constexpr int INPUT_WIDTH = (TILE_WIDTH - 1) * SW + (WINDOW_PACKS - 1) * PACK_DILATION + 1;
constexpr int INPUT_PACKS = INPUT_HEIGHT * INPUT_WIDTH;  // packs that a tile reads
constexpr int IN_VECTORS = (IN_ELEMENTS + 7) / 8, OUT_VECTORS = (OUT_ELEMENTS + 7) / 8;
constexpr int SOURCE_VECTORS = KH * WINDOW_PACKS * IN_VECTORS;  // vectors that an output pack reads
constexpr int K_STEPS = (SOURCE_VECTORS + 1) / 2;

// The first pixel of a tile of outputs; tiles are in row-major order within an image, then image after image.
struct Tile {
  int image, top, left, bottom, right;
  __device__ __forceinline__ Tile(int tile, int tiles_y, int tiles_x)
      : image(tile / (tiles_y * tiles_x)), top(tile / tiles_x % tiles_y * TILE_HEIGHT),
        left(tile % tiles_x * TILE_WIDTH * PACK_SIZE), bottom(tiles_y * TILE_HEIGHT),
        right(tiles_x * TILE_WIDTH * PACK_SIZE) {}
  __device__ __forceinline__ void next() {
    left += TILE_WIDTH * PACK_SIZE;
    if (left < right) return;
    left = 0, top += TILE_HEIGHT;
    if (top < bottom) return;
    top = 0, ++image;
  }
};

// The offset of a vector that an output pack reads, from the first one.
__device__ __forceinline__ int source_offset(int source) {
  const int pack = min(source, SOURCE_VECTORS - 1) / IN_VECTORS, vector = min(source, SOURCE_VECTORS - 1) % IN_VECTORS;
  return (vector * INPUT_PACKS + pack / WINDOW_PACKS * DH * INPUT_WIDTH + pack % WINDOW_PACKS * PACK_DILATION) * 8;
}
// The offset in a stage of the first vector that an output pack reads; packs beyond the tile read those of the last.
__device__ __forceinline__ int pack_offset(int pack) {
  const int valid = min(pack, TILE_PACKS - 1);
  return (valid / TILE_WIDTH * SH * INPUT_WIDTH + valid % TILE_WIDTH * SW) * 8;
}

// Copies HEIGHT by WIDTH packs of pixels of BLOCKS blocks, in planes of PLANE vectors; zeros outside of the image.
template <int BLOCKS, int HEIGHT, int WIDTH, int PLANE>
__device__ __forceinline__ void load_tile(element* to, const element* from, size_t term_stride, int image, int top,
                                          int left, int height, int width) {
  constexpr int COPY_ELEMENTS = BLOCKS % 4 == 0 ? 8 : BLOCKS % 2 == 0 ? 4 : 2;  // elements of a cp.async
  constexpr int PACK_ELEMENTS = PACK_SIZE * 2 * BLOCKS, COPIES_PER_PACK = PACK_ELEMENTS / COPY_ELEMENTS;
  constexpr int COPIES = HEIGHT * WIDTH * COPIES_PER_PACK, ITERATIONS = (COPIES + THREADS - 1) / THREADS;
  const element* corner = from + ((long long)(image * height + top) * width + left) * 2 * BLOCKS;
#pragma unroll(ITERATIONS < 16 ? ITERATIONS : 4)
  for (int iteration = 0; iteration < ITERATIONS; ++iteration) {
    const int i = iteration * THREADS + threadIdx.x;
    const int pack = i / COPIES_PER_PACK, first = i % COPIES_PER_PACK * COPY_ELEMENTS;
    const int y = pack / WIDTH, x = pack % WIDTH * PACK_SIZE + first / (2 * BLOCKS);
    const bool in_image = unsigned(top + y) < unsigned(height) && unsigned(left + x) < unsigned(width);
    const element* source = in_image ? corner + (y * width + x) * 2 * BLOCKS + first % (2 * BLOCKS) : from;
    element* target = to + (first / 8 * PLANE + pack) * 8 + first % 8;
    if (i < COPIES)
#pragma unroll
      for (int term = 0; term < TERMS; ++term)
        cp_async<COPY_ELEMENTS * 2>(target + term * ((PACK_ELEMENTS + 7) / 8) * PLANE * 8, source + term * term_stride,
                                    in_image);
  }
}

// Zeros, for elements that no copy writes.
__device__ __forceinline__ void zero(element* from, int elements) {
  for (int i = threadIdx.x; i < elements / 2; i += THREADS) reinterpret_cast<word*>(from)[i] = 0;
}
