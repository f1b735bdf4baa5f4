// What products of spectra over a sliding window are made of: pixels in shared memory, and tensor cores that read them.
//
// A pixel of one frequency is a few numbers, and every tap reads them again. A block copies a tile of pixels with its
// halo to shared memory once, eights of numbers in planes: there a row that a tensor core reads is one pixel's eight,
// and a tap moves its address. Tiles follow each other through stages, all but one of which are being copied.
//
// A pixel of less than eight numbers would leave a tensor core half empty, so some neighbours in a line make a place
// together. The window then slides from place to place, and is as many places wide as all of its pixels' windows; what
// of them lies beyond one pixel's own window has a factor of zero.
//
// Macros: TYPE, bfloat16 (1) or float16 (2); PARTS, halves of a number, 1 or 2; SUMMED and KEPT, blocks of a pixel of
// what slides and of what it meets (q and p, or backward p and q); KH, KW, SH, SW, DH, DW, the window; TOGETHER, pixels
// of a place; HIGH and WIDE, a tile of output places; STAGES of tiles; WARPS of a block, and RESIDENT blocks of a
// processor.

typedef Element<TYPE>::type number;  // 16 bits of it
typedef unsigned int word;          // two of them

#ifdef __CUDACC__
// Four tiles of eight rows of eight numbers, each row's address from one thread; TURNED, each is transposed.
template <bool TURNED>
__device__ __forceinline__ void read4(word (&to)[4], const number* row) {
  if constexpr (TURNED)
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
__device__ __forceinline__ void multiply(float (&sums)[4], const word (&a)[4], const word* b) {
#if TYPE == 1
  LAMINA_MMA("bf16");
#else
  LAMINA_MMA("f16");
#endif
}
__device__ __forceinline__ word pair_of(float first, float second) {
  word pair;
#if TYPE == 1
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
#endif
  return pair;
}
#else
// What the threads of the one warp that the CPU runs show each other.
template <bool TURNED>
inline void read4(word (&to)[4], const number* row) {
  static const number* rows[32];
  const int lane = threadIdx.x;
  rows[lane] = row;
  __syncthreads();
  for (int tile = 0; tile < 4; ++tile)
    for (int i = 0; i < 2; ++i) {
      const int along = lane % 4 * 2 + i, across = lane / 4;
      const number bits = TURNED ? rows[tile * 8 + along][across] : rows[tile * 8 + across][along];
      to[tile] = i ? to[tile] | word(bits) << 16 : bits;
    }
  __syncthreads();
}
inline void multiply(float (&sums)[4], const word (&a)[4], const word* b) {
  static float left[16][16], right[16][8];
  const int lane = threadIdx.x, row = lane / 4, pair = lane % 4 * 2;
  for (int i = 0; i < 8; ++i)
    left[row + i / 2 % 2 * 8][pair + i % 2 + i / 4 * 8] = to_float<TYPE>(number(a[i / 2] >> i % 2 * 16));
  for (int i = 0; i < 4; ++i) right[pair + i % 2 + i / 2 * 8][row] = to_float<TYPE>(number(b[i / 2] >> i % 2 * 16));
  __syncthreads();
  for (int c = 0; c < 4; ++c)
    for (int k = 0; k < 16; ++k) sums[c] += left[row + c / 2 * 8][k] * right[k][pair + c % 2];
  __syncthreads();
}
inline word pair_of(float first, float second) {
  return from_float<TYPE>(first) | word(from_float<TYPE>(second)) << 16;
}
#endif

constexpr int THREADS = 32 * WARPS;
constexpr int TAPS = KH * KW;
constexpr int OUTPUTS = HIGH * WIDE;  // places of a tile
constexpr int READ = TOGETHER * 2 * SUMMED, MADE = TOGETHER * 2 * KEPT;  // numbers of a place
// Places of a line that an output place reads, and how far apart they are.
constexpr int ALONG = TOGETHER > 1 ? ((KW - 1) * DW + (TOGETHER - 1) * SW) / TOGETHER + 1 : KW;
constexpr int APART = TOGETHER > 1 ? 1 : DW;
constexpr int ROWS = (HIGH - 1) * SH + (KH - 1) * DH + 1, COLUMNS = (WIDE - 1) * SW + (ALONG - 1) * APART + 1;
constexpr int INPUTS = ROWS * COLUMNS;  // places that a tile reads
constexpr int EIGHTS = (READ + 7) / 8, MADE_EIGHTS = (MADE + 7) / 8;
constexpr int SOURCES = KH * ALONG * EIGHTS;  // eights that an output place reads
constexpr int STEPS = (SOURCES + 1) / 2;

// Where a tile of outputs begins, in pixels; tiles come from left to right, then down, then image after image.
struct Tile {
  int image, top, left, down, across;
  __device__ __forceinline__ Tile(int tile, int down, int across)
      : image(tile / (down * across)), top(tile / across % down * HIGH), left(tile % across * WIDE * TOGETHER),
        down(down * HIGH), across(across * WIDE * TOGETHER) {}
  __device__ __forceinline__ void next() {
    left += WIDE * TOGETHER;
    if (left < across) return;
    left = 0, top += HIGH;
    if (top < down) return;
    top = 0, ++image;
  }
};

// How far from the first eight that an output place reads another one is.
__device__ __forceinline__ int reach(int source) {
  const int place = min(source, SOURCES - 1) / EIGHTS, eighth = min(source, SOURCES - 1) % EIGHTS;
  return (eighth * INPUTS + place / ALONG * DH * COLUMNS + place % ALONG * APART) * 8;
}
// Where in its stage the first that an output place reads is; the last one's, beyond it.
__device__ __forceinline__ int first_of(int place) {
  const int inside = min(place, OUTPUTS - 1);
  return (inside / WIDE * SH * COLUMNS + inside % WIDE * SW) * 8;
}

// Copies HEIGHT by WIDTH places of pixels of BLOCKS blocks, in planes of PLANE; outside of the image there are zeros.
template <int BLOCKS, int HEIGHT, int WIDTH, int PLANE>
__device__ __forceinline__ void fetch(number* to, const number* from, size_t apart, int image, int top, int left,
                                      int height, int width) {
  constexpr int PIECE = BLOCKS % 4 == 0 ? 8 : BLOCKS % 2 == 0 ? 4 : 2;  // numbers copied at once
  constexpr int NUMBERS = TOGETHER * 2 * BLOCKS, PIECES = NUMBERS / PIECE;
  constexpr int COPIES = HEIGHT * WIDTH * PIECES, TURNS = (COPIES + THREADS - 1) / THREADS;
  const number* corner = from + ((long long)(image * height + top) * width + left) * 2 * BLOCKS;
#pragma unroll(TURNS < 16 ? TURNS : 4)
  for (int turn = 0; turn < TURNS; ++turn) {
    const int i = turn * THREADS + threadIdx.x, place = i / PIECES, first = i % PIECES * PIECE;
    const int y = place / WIDTH, x = place % WIDTH * TOGETHER + first / (2 * BLOCKS);
    const bool there = unsigned(top + y) < unsigned(height) && unsigned(left + x) < unsigned(width);
    const number* source = there ? corner + (y * width + x) * 2 * BLOCKS + first % (2 * BLOCKS) : from;
    number* here = to + (first / 8 * PLANE + place) * 8 + first % 8;
    if (i < COPIES)
#pragma unroll
      for (int part = 0; part < PARTS; ++part)
        cp_async<PIECE * 2>(here + part * ((NUMBERS + 7) / 8) * PLANE * 8, source + part * apart, there);
  }
}

// Zeros, for what no copy reaches.
__device__ __forceinline__ void clear(number* from, int numbers) {
  for (int i = threadIdx.x; i < numbers / 2; i += THREADS) reinterpret_cast<word*>(from)[i] = 0;
}
