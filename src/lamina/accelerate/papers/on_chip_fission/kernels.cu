// Products on plain cores with values packed in shared memory alone: y[n, m] = sum over k of w[m, k] * x[n, k].
//
// Device memory holds float32. A value is packed on its way into shared memory and taken apart when it is read into
// registers; a word holds VALUES neighbours along k, so that TILE + TILE words feed VALUES * TILE * TILE products.
// Without packing (FORMAT is FLOAT) the same code is the product it is compared with.
//
// Macros: TILE, the outputs of a thread on each side, 4, 6 or 8; FORMAT; EXPONENT, bits of an 8-bit number; VECTOR,
// whether four values along k lie in aligned memory; for convolutions the values of x are found by a table.

#define FLOAT 0
#define HALF 1
#define DEFT16 2
#define DEFT16Q 3
#define NARROW 4

#define LANES 16                 // threads of a block on each side
#define THREADS (LANES * LANES)
#define SIDE (LANES * TILE)      // outputs of a block on each side
#ifndef DEPTH
#define DEPTH (TILE == 8 ? 8 : 16)  // values of k that a block stages at a time: what registers hold besides sums
#endif
#define QUADS (DEPTH / 4)
#define VALUES (FORMAT == FLOAT ? 1 : FORMAT == NARROW ? 4 : 2)
#define WORDS (4 / VALUES)       // of a quad, four values along k
#define ROWS (DEPTH / VALUES)    // of words in a stage
#define UNITS ((SIDE * QUADS + THREADS - 1) / THREADS)  // quads that a thread stages, the last of them maybe not

#define MANTISSA (7 - EXPONENT)
#define OFFSET ((1 << (EXPONENT - 1)) - 1)

#define BLOCKS (TILE == 4 ? 4 : 2)  // of a multiprocessor

typedef unsigned int word;

struct alignas(16) Quad {
  float at[4];
};

// Reads that the compiler keeps where they are written, before the products that hide them; zeros where not known.
#ifdef __CUDA_ARCH__
__device__ __forceinline__ Quad read_quad(const float* from, bool known) {
  Quad q;
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %4, 0; mov.f32 %0, 0f00000000; mov.f32 %1, 0f00000000; mov.f32 %2, 0f00000000; "
      "mov.f32 %3, 0f00000000; @p ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%5]; }"
      : "=f"(q.at[0]), "=f"(q.at[1]), "=f"(q.at[2]), "=f"(q.at[3])
      : "r"((int)known), "l"(from));
  return q;
}
__device__ __forceinline__ float read_one(const float* from, bool known) {
  float x;
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %1, 0; mov.f32 %0, 0f00000000; @p ld.global.nc.f32 %0, [%2]; }"
               : "=f"(x)
               : "r"((int)known), "l"(from));
  return x;
}
#else
inline Quad read_quad(const float* from, bool known) { return known ? *(const Quad*)from : Quad{}; }
inline float read_one(const float* from, bool known) { return known ? *from : 0; }
#endif

struct alignas(16) Words4 {
  word at[4];
};
struct alignas(8) Words2 {
  word at[2];
};

__device__ __forceinline__ word bits_of(float x) { return (word)__float_as_int(x); }
__device__ __forceinline__ float number_of(word w) { return __int_as_float((int)w); }

#if FORMAT == HALF
#ifdef __CUDA_ARCH__
__device__ __forceinline__ word halves_of(float low, float high) {
  word w;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
  return w;
}
__device__ __forceinline__ void from_halves(word w, float* low, float* high) {
  asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
      : "=f"(*low), "=f"(*high)
      : "r"(w));
}
#else
union Halves {
  word all;
  _Float16 at[2];
};
inline word halves_of(float low, float high) {
  Halves both;
  both.at[0] = (_Float16)low;
  both.at[1] = (_Float16)high;
  return both.all;
}
inline void from_halves(word w, float* low, float* high) {
  Halves both;
  both.all = w;
  *low = both.at[0];
  *high = both.at[1];
}
#endif
#endif

#if FORMAT == NARROW
// The nearest code, ties to even, too large ones the largest.
__device__ __forceinline__ word code_of(float x) {
  const word size = bits_of(x) & 0x7fffffff;
  // Below the least normal number codes are multiples of the least code, which an addition rounds to.
  const float shifter = number_of((word)(127 + 23 + 1 - OFFSET - MANTISSA) << 23);
  const word small = bits_of(number_of(size) + shifter) & 0xff;
  const word nearest = size + ((1u << (22 - MANTISSA)) - 1) + ((size >> (23 - MANTISSA)) & 1);
  const word normal = (nearest >> (23 - MANTISSA)) - ((word)(127 - OFFSET) << MANTISSA);
  const word code = size < (word)(128 - OFFSET) << 23 ? small : normal < 127 ? normal : 127;
  return code | (bits_of(x) >> 31 << 7);
}
#endif

// VALUES numbers, the first of them lowest.
__device__ __forceinline__ word packed(const float* x) {
#if FORMAT == FLOAT
  return bits_of(x[0]);
#elif FORMAT == HALF
  return halves_of(x[0], x[1]);
#elif FORMAT == NARROW
  return code_of(x[0]) | code_of(x[1]) << 8 | code_of(x[2]) << 16 | code_of(x[3]) << 24;
#else
  return bits_of(x[0]) >> 16 | (bits_of(x[1]) & 0xffff0000);
#endif
}

// Numbers of 8 bits come too small by TOO_SMALL, a power of two: their bits stand at their places in a float32.
__device__ __forceinline__ void unpack(word w, float* x) {
#if FORMAT == FLOAT
  x[0] = number_of(w);
#elif FORMAT == HALF
  from_halves(w, x, x + 1);
#elif FORMAT == NARROW
  const word kept = 0x80000000 | 0x7fu << (16 + EXPONENT);
  for (int i = 0; i < 4; ++i) x[i] = number_of((word)((int)(w << (24 - 8 * i)) >> (8 - EXPONENT)) & kept);
#else
  x[0] = number_of(w << 16);
  x[1] = number_of(FORMAT == DEFT16Q ? w : w & 0xffff0000);
#endif
}

#if FORMAT == NARROW
#define TOO_SMALL (127 - OFFSET)
// One factor takes the largest power of two that a float32 has and the sum the rest: a sum is then a multiple of the
// product of two least numbers, which no float32 is too coarse for, so that nothing is lost to small exponents.
__device__ __forceinline__ float lifted(float x) { return x * number_of(254u << 23); }
__device__ __forceinline__ float settled(float sum) { return sum * number_of((word)(2 * TOO_SMALL) << 23); }
__device__ __forceinline__ float whole(float x) { return x * number_of((word)(127 + TOO_SMALL) << 23); }
#else
__device__ __forceinline__ float lifted(float x) { return x; }
__device__ __forceinline__ float settled(float sum) { return sum; }
__device__ __forceinline__ float whole(float x) { return x; }
#endif

// Where a word stands in its row: rows of different quads are shuffled, so that banks do not collide when quads of
// one column are stored; four neighbours that start at a multiple of four stay neighbours.
__device__ __forceinline__ int place(int quad, int column) { return column ^ quad % QUADS * (32 / QUADS); }

// A thread's columns: four neighbours, then the TILE - 4 others beyond those of all threads.
__device__ __forceinline__ int column_of(int lane, int i) {
  return i < 4 ? 4 * lane + i : 4 * LANES + (TILE - 4) * lane + i - 4;
}

__device__ __forceinline__ void read_row(const word* row, int quad, int lane, word* words) {
  const Words4 first = *(const Words4*)(row + place(quad, 4 * lane));
  for (int i = 0; i < 4; ++i) words[i] = first.at[i];
#if TILE == 6
  const Words2 others = *(const Words2*)(row + place(quad, 4 * LANES + 2 * lane));
  for (int i = 0; i < 2; ++i) words[4 + i] = others.at[i];
#elif TILE == 8
  const Words4 others = *(const Words4*)(row + place(quad, 4 * LANES + 4 * lane));
  for (int i = 0; i < 4; ++i) words[4 + i] = others.at[i];
#endif
}

// Rows of a matrix whose k lies in memory as it counts.
struct Matrix {
  const float* from[UNITS];
  bool known[UNITS];

  __device__ __forceinline__ void start(const float* matrix, int first, int rows, int depth) {
    for (int i = 0; i < UNITS; ++i) {
      const int unit = threadIdx.x + i * THREADS, row = first + unit / QUADS;
      known[i] = unit < SIDE * QUADS && row < rows;
      from[i] = matrix + (known[i] ? (size_t)row * depth : 0);
    }
  }
  __device__ __forceinline__ void read(int k0, int last, Quad* quads) const {
    for (int i = 0; i < UNITS; ++i) {
      const int k = k0 + (int)(threadIdx.x + i * THREADS) % QUADS * 4;
#if VECTOR
      quads[i] = read_quad(from[i] + k, known[i] && k < last);
#else
      for (int j = 0; j < 4; ++j) quads[i].at[j] = read_one(from[i] + k + j, known[i] && k + j < last);
#endif
    }
  }
  __device__ __forceinline__ void write(const Quad* quads, word* stage) const {
    for (int i = 0; i < UNITS; ++i) {
      const int unit = threadIdx.x + i * THREADS, quad = unit % QUADS, column = unit / QUADS;
      if (unit < SIDE * QUADS)
        for (int j = 0; j < WORDS; ++j)
          stage[(quad * WORDS + j) * SIDE + place(quad, column)] = packed(quads[i].at + j * VALUES);
    }
  }
};

struct alignas(16) Taps2 {
  int at[4];  // two taps: how far from the window's corner, and by how many rows and columns
};

// Windows of images (N, C, H, W): row n of x is a pixel of the result, k a tap of the window and a channel.
struct Windows {
  const float* from[UNITS];
  int down[UNITS], right[UNITS];  // of the window's corner
  const int* taps;
  int height, width;

  __device__ __forceinline__ void start(const float* images, const int* table, int first, int pixels, int channels,
                                        int h, int w, int out_h, int out_w, int stride_h, int stride_w, int pad_h,
                                        int pad_w) {
    taps = table, height = h, width = w;
    for (int i = 0; i < UNITS; ++i) {
      const int unit = threadIdx.x + i * THREADS, pixel = first + unit % SIDE;
      const bool known = unit < SIDE * QUADS && pixel < pixels;
      const int image = known ? pixel / (out_h * out_w) : 0, at = known ? pixel % (out_h * out_w) : 0;
      down[i] = known ? at / out_w * stride_h - pad_h : -(1 << 29);  // from there no tap reaches the image
      right[i] = at % out_w * stride_w - pad_w;
      from[i] = images + (size_t)image * channels * h * w + (known ? (long long)down[i] * w + right[i] : 0);
    }
  }
  __device__ __forceinline__ void read(int k0, int, Quad* quads) const {
    for (int i = 0; i < UNITS; ++i) {
      const int unit = threadIdx.x + i * THREADS;
      if (unit >= SIDE * QUADS) continue;
      const Taps2* two = (const Taps2*)(taps + 2 * (k0 + unit / SIDE * 4));  // the table goes on to a whole stage
      for (int j = 0; j < 4; ++j) {
        const Taps2& pair = two[j / 2];
        const int away = pair.at[j % 2 * 2], by = pair.at[j % 2 * 2 + 1];
        const int h = down[i] + (by >> 16), w = right[i] + (by & 0xffff);
        quads[i].at[j] = read_one(from[i] + away, (word)h < (word)height && (word)w < (word)width);
      }
    }
  }
  __device__ __forceinline__ void write(const Quad* quads, word* stage) const {
    for (int i = 0; i < UNITS; ++i) {
      const int unit = threadIdx.x + i * THREADS, quad = unit / SIDE, column = unit % SIDE;
      if (unit < SIDE * QUADS)
        for (int j = 0; j < WORDS; ++j)
          stage[(quad * WORDS + j) * SIDE + place(quad, column)] = packed(quads[i].at + j * VALUES);
    }
  }
};

// Lanes of a warp lie 8 x 4, so that a quarter of it reads few different words.
__device__ __forceinline__ int lane_of_w() { return (threadIdx.x >> 1 & 7) | (threadIdx.x >> 5 & 1) << 3; }
__device__ __forceinline__ int lane_of_x() {
  return (threadIdx.x & 1) | (threadIdx.x >> 4 & 1) << 1 | (threadIdx.x >> 6) << 2;
}

// The products of one row of words of each operand.
__device__ __forceinline__ void add_row(const word* of_w, const word* of_x, int quad, int wl, int xl,
                                        float (&sums)[TILE][TILE]) {
  word ws[TILE], xs[TILE];
  read_row(of_w, quad, wl, ws);
  read_row(of_x, quad, xl, xs);
  float a[TILE][VALUES], b[TILE][VALUES];
  for (int i = 0; i < TILE; ++i) unpack(ws[i], a[i]), unpack(xs[i], b[i]);
#pragma unroll
  for (int v = 0; v < VALUES; ++v)
    for (int i = 0; i < TILE; ++i) {
      const float factor = lifted(a[i][v]);
      for (int c = 0; c < TILE; ++c) {
        const int j = i % 2 ? TILE - 1 - c : c;  // there and back, so that a factor is used twice in turn
        sums[i][j] = __fmaf_rn(factor, b[j][v], sums[i][j]);
      }
    }
}

template <class Rows>
__device__ __forceinline__ void multiply(const Matrix& w, const Rows& x, int first, int last, float (&sums)[TILE][TILE]) {
  __shared__ Words4 stages[2][2][ROWS * SIDE / 4];
  Quad of_w[UNITS], of_x[UNITS];
  const int wl = lane_of_w(), xl = lane_of_x();
  for (int i = 0; i < TILE; ++i)
    for (int j = 0; j < TILE; ++j) sums[i][j] = 0;
  w.read(first, last, of_w);
  x.read(first, last, of_x);
  int now = 0;
  w.write(of_w, (word*)stages[0][0]);
  x.write(of_x, (word*)stages[0][1]);
  __syncthreads();
  for (int k = first; k < last; k += DEPTH) {
    const bool more = k + DEPTH < last;
    if (more) {
      w.read(k + DEPTH, last, of_w);
      x.read(k + DEPTH, last, of_x);
    }
    // Two turns of a loop, which keeps the compiler from moving the reads above to where their values are stored.
#pragma unroll 1
    for (int turn = 0; turn < 2; ++turn)
#pragma unroll
      for (int i = 0; i < ROWS / 2; ++i) {
        const int row = turn * (ROWS / 2) + i, quad = turn * (QUADS / 2) + i / WORDS;
        add_row((const word*)stages[now][0] + row * SIDE, (const word*)stages[now][1] + row * SIDE, quad, wl, xl, sums);
      }
    if (more) {
      now ^= 1;
      w.write(of_w, (word*)stages[now][0]);
      x.write(of_x, (word*)stages[now][1]);
      __syncthreads();
    }
  }
}

// Which tile of the result and which share of the sum; whole stages make a share.
struct Part {
  int w, x, first, last;
};
__device__ __forceinline__ Part part_of(int depth, int share) {
  const int first = blockIdx.z * share;
  return {(int)blockIdx.y * SIDE, (int)blockIdx.x * SIDE, first, min(first + share, depth)};
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    linear(const float* __restrict__ w, const float* __restrict__ x, float* __restrict__ y, int outputs, int rows,
           int depth, int share) {
  const Part part = part_of(depth, share);
  float sums[TILE][TILE];
  Matrix of_w, of_x;
  of_w.start(w, part.w, outputs, depth);
  of_x.start(x, part.x, rows, depth);
  multiply(of_w, of_x, part.first, part.last, sums);
  y += (size_t)blockIdx.z * rows * outputs;
  const int wl = lane_of_w(), xl = lane_of_x();
  for (int j = 0; j < TILE; ++j) {
    const int row = part.x + column_of(xl, j);
    for (int i = 0; i < TILE; ++i) {
      const int output = part.w + column_of(wl, i);
      if (row < rows && output < outputs) y[(size_t)row * outputs + output] = settled(sums[i][j]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    convolution(const float* __restrict__ w, const float* __restrict__ x, const int* __restrict__ taps,
                float* __restrict__ y, int outputs, int images, int depth, int share, int channels, int height,
                int width, int out_h, int out_w, int stride_h, int stride_w, int pad_h, int pad_w) {
  const Part part = part_of(depth, share);
  const int pixels = images * out_h * out_w;
  float sums[TILE][TILE];
  Matrix of_w;
  Windows of_x;
  of_w.start(w, part.w, outputs, depth);
  of_x.start(x, taps, part.x, pixels, channels, height, width, out_h, out_w, stride_h, stride_w, pad_h, pad_w);
  multiply(of_w, of_x, part.first, part.last, sums);
  y += (size_t)blockIdx.z * pixels * outputs;
  const int wl = lane_of_w(), xl = lane_of_x();
  for (int j = 0; j < TILE; ++j) {
    const int pixel = part.x + column_of(xl, j);
    if (pixel >= pixels) continue;
    const int image = pixel / (out_h * out_w), at = pixel % (out_h * out_w);
    for (int i = 0; i < TILE; ++i) {
      const int output = part.w + column_of(wl, i);
      if (output < outputs) y[((size_t)image * outputs + output) * out_h * out_w + at] = settled(sums[i][j]);
    }
  }
}

// The numbers that a multiplication would read, for tests: pack, then take apart.
extern "C" __global__ void through(const float* __restrict__ x, float* __restrict__ y, int words) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < words) {
    float read[VALUES];
    unpack(packed(x + i * VALUES), read);
    for (int j = 0; j < VALUES; ++j) y[i * VALUES + j] = whole(read[j]);
  }
}
