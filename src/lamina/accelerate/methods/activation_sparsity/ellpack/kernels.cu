// ELLPACK-DIB: memory-bound conversion in one pass, and products with weights in shared memory.
//
// WARP threads run in lockstep: a warp on a GPU, a whole block in the CPU build.

#ifdef __CUDACC__
// atomicMax of the values of a full warp.
__device__ __forceinline__ int warp_max(int value) { return __reduce_max_sync(0xffffffff, value); }
__device__ __forceinline__ void atomic_max(int* place, int value) {
  value = warp_max(value);
  if (threadIdx.x % 32 == 0) atomicMax(place, value);
}
#else
inline int warp_max(int value) { return value; }
inline void atomic_max(int* place, int value) {
  std::atomic_ref<int> there(*place);
  int was = there.load();
  while (was < value && !there.compare_exchange_weak(was, value)) {
  }
}
#endif

// All kernels are compiled together: macros that a build does not use have defaults.
#ifndef WARP
#define WARP 32
#endif
#ifndef MAP_DTYPE
#define MAP_DTYPE 0
#define THREADS 32
#define COLUMNS 32
#define GROUPS 1
#define THREAD_ROWS 1
#define TARGET_EXPONENT 14
#define CHANNELS_LAST 0
#define STAGED 0
#define SAMPLED 0
#endif
#ifndef WEIGHT_DTYPE
#define WEIGHT_DTYPE 0
#define OUT_DTYPE 0
#define WARPS 1
#define WARP_COLUMNS 4
#define THREAD_OUTPUTS 8
#define SLOTS 2
#define KW 1
#define KH 1
#define SH 1
#define SW 1
#define PH 0
#define PW 0
#define DH 1
#define DW 1
#endif

using map_t = Element<MAP_DTYPE>::type;

// 0 for values that are not finite.
__device__ __forceinline__ float magnitude(float number) {
  const float size = fabsf(number);
  return size < __int_as_float(0x7f800000) ? size : 0.0f;
}

// The finite amax of each block's partition of a map that is dense in memory, read by 16-byte loads; of every
// `every`-th piece of it when sampling. partial_amax[gridDim.x] is cleared.
extern "C" __global__ void __launch_bounds__(THREADS)
    amax(const map_t* __restrict__ x, float* __restrict__ partial_amax, int quads, int tail, int every) {
  constexpr int QUAD = 16 / sizeof(map_t);
  struct alignas(16) Quad { map_t at[QUAD]; };
  const Quad* vectors = reinterpret_cast<const Quad*>(x);
  float thread_amax = 0;
  griddepcontrol_wait();
  auto update = [&](const Quad& quad) {
#pragma unroll
    for (int j = 0; j < QUAD; ++j) thread_amax = fmaxf(thread_amax, magnitude(to_float<MAP_DTYPE>(quad.at[j])));
  };
  const int step = gridDim.x * every * THREADS;
  int i = blockIdx.x * every * THREADS + threadIdx.x;
  for (; i < quads - 3 * step; i += 4 * step) {
    const Quad four[4] = {vectors[i], vectors[i + step], vectors[i + 2 * step], vectors[i + 3 * step]};
#pragma unroll
    for (int k = 0; k < 4; ++k) update(four[k]);
  }
  for (; i < quads; i += step) update(vectors[i]);
  if (blockIdx.x == 0 && threadIdx.x < tail)
    thread_amax = fmaxf(thread_amax, magnitude(to_float<MAP_DTYPE>(x[(long long)quads * QUAD + threadIdx.x])));
  __shared__ int block_amax;
  if (threadIdx.x == 0) block_amax = 0;
  __syncthreads();
  atomic_max(&block_amax, __float_as_int(thread_amax));  // non-negative floats order as their bits
  __syncthreads();
  if (threadIdx.x == 0) partial_amax[blockIdx.x] = __int_as_float(block_amax);
  if (blockIdx.x == 0 && threadIdx.x == 0) partial_amax[gridDim.x] = 0;
}

// The power of two that scales an amax just below the largest float16.
__device__ __forceinline__ float scale_of(float most) {
  const int power = min(max((__float_as_int(most) >> 23) - 127 - TARGET_EXPONENT, -120), 120);
  return most > 0 ? __int_as_float((power + 127) << 23) : 1.0f;
}

// Blocks per multiprocessor, for enough loads in flight.
constexpr int MIN_BLOCKS = STAGED ? 24576 / (COLUMNS * GROUPS * THREAD_ROWS) : 1;

// A block converts COLUMNS adjacent columns of one panel; each thread reads THREAD_ROWS rows at a time. STAGED: the
// panel is one such step, and words are staged in shared memory for coalesced writes. The threads of a column hold
// adjacent groups of rows; the counts of the groups above give the slot of each word.
//
// With num_partials > 0 each block derives the scale from partial_amax, and the first one writes it. SAMPLED 1: these
// are sampled, and the amax of the whole map is stored behind them. SAMPLED 2, a second launch: converts again with
// that amax, or returns at once if its scale equals the sampled one.
extern "C" __global__ void __launch_bounds__(COLUMNS* GROUPS, MIN_BLOCKS)
    convert(const map_t* __restrict__ x, int* __restrict__ words, int* __restrict__ counts, float* __restrict__ scales,
            float* __restrict__ partial_amax, int num_partials, int rows, int columns, int panel, int panels,
            int capacity, int pixels, int x_n, int x_c, int x_p, int store) {
  __shared__ int group_counts[GROUPS][COLUMNS];
  __shared__ int block_amax, full_amax;
  __shared__ int rows_of[STAGED ? GROUPS * THREAD_ROWS : 1][COLUMNS];
  const int lane = threadIdx.x % COLUMNS, group = threadIdx.x / COLUMNS;
  const int column_tiles = (columns + COLUMNS - 1) / COLUMNS;
  alignas(16) map_t loaded[THREAD_ROWS];
  float inverse_scale = 1, thread_amax = 0;
  bool fitted = num_partials == 0;
  if (fitted || SAMPLED == 2) griddepcontrol_wait();
  for (int tile = blockIdx.x; tile < column_tiles * panels; tile += gridDim.x) {
    // Panels in reverse: the preceding pass over the map left its end in L2.
    const int p = panels - 1 - tile / column_tiles, first = p * panel, last = min(first + panel, rows);
    const int column = tile % column_tiles * COLUMNS + lane;
    const bool inside = column < columns;
    const map_t* from = x + (inside ? (long long)(column / pixels) * x_n + (long long)(column % pixels) * x_p : 0);
    int* to = words + (long long)p * capacity * columns + column;
    auto fetch = [&](int k0) {
      const int row = k0 + group * THREAD_ROWS, left = inside ? last - row : 0;
      const map_t* here = from + (left > 0 ? (long long)row * x_c : 0);
      if constexpr (CHANNELS_LAST) {  // rows are contiguous, and 16 bytes of them are all inside or all outside
#pragma unroll
        for (int i = 0; i < THREAD_ROWS; i += 16 / sizeof(map_t))
          *reinterpret_cast<float4*>(loaded + i) =
              i < left ? *reinterpret_cast<const float4*>(here + i) : make_float4(0, 0, 0, 0);
      } else {
#pragma unroll
        for (int i = 0; i < THREAD_ROWS; ++i) loaded[i] = i < left ? here[unsigned(i) * unsigned(x_c)] : map_t(0);
      }
    };
    if (SAMPLED != 2) fetch(first);
    if (!fitted) {
      if (SAMPLED != 2) griddepcontrol_wait();  // only here: the amax kernel has read the map, so it is complete
      if (threadIdx.x == 0) block_amax = full_amax = 0;
      __syncthreads();
      float here = 0;
      for (int i = threadIdx.x; i < num_partials; i += 4 * COLUMNS * GROUPS) {  // four loads in flight
        float four[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int at = i + k * COLUMNS * GROUPS;
          four[k] = at < num_partials ? partial_amax[at] : 0;
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) here = fmaxf(here, four[k]);
      }
      atomic_max(&block_amax, __float_as_int(here));
      __syncthreads();
      const float sampled_scale = scale_of(__int_as_float(block_amax));
      const float scale = SAMPLED == 2 ? scale_of(partial_amax[num_partials]) : sampled_scale;
      if (SAMPLED == 2 && scale == sampled_scale) return;
      inverse_scale = 1.0f / scale;
      if (blockIdx.x == 0)
        for (int i = threadIdx.x; i < panels; i += COLUMNS * GROUPS) scales[i] = scale;
      fitted = true;
    } else if (num_partials == 0 && store) {
      inverse_scale = 1.0f / scales[p];
    }
    if (SAMPLED == 2) fetch(first);
    int base_slot = 0;
    for (int k0 = first; k0 < last; k0 += GROUPS * THREAD_ROWS) {
      float value[THREAD_ROWS];
      int num_nonzeros = 0;
#pragma unroll
      for (int i = 0; i < THREAD_ROWS; ++i) {
        value[i] = to_float<MAP_DTYPE>(loaded[i]);
        num_nonzeros += value[i] != 0;
        if (SAMPLED == 1) thread_amax = fmaxf(thread_amax, magnitude(value[i]));
      }
      if (!STAGED && k0 + GROUPS * THREAD_ROWS < last) fetch(k0 + GROUPS * THREAD_ROWS);
      group_counts[group][lane] = num_nonzeros;
      __syncthreads();
      int slot = base_slot, total = 0;
#pragma unroll
      for (int g = 0; g < GROUPS; ++g) {
        const int there = group_counts[g][lane];
        slot += g < group ? there : 0;
        total += there;
      }
      base_slot += total;
      if (!STAGED) __syncthreads();
      if (store) {
#pragma unroll
        for (int i = 0; i < THREAD_ROWS; ++i) {
          const int word = (k0 - first + group * THREAD_ROWS + i) << 16 | to_half(value[i] * inverse_scale);
          const bool there = value[i] != 0;
          if constexpr (STAGED) {
            if (there) rows_of[slot][lane] = word;
          } else {
            if (there && slot < capacity) to[(long long)slot * columns] = word;
          }
          slot += there;
        }
      }
      if (STAGED) break;
    }
    if (STAGED && store) {
      // Full sectors: memory reads a sector first that is written in part.
      const int max_slots = min(warp_max(inside ? base_slot : 0), capacity);
      __syncthreads();
      if (inside)
        for (int slot = group; slot < max_slots; slot += GROUPS)
          to[(long long)slot * columns] = slot < base_slot ? rows_of[slot][lane] : 0;
    }
    if (inside && group == 0) counts[(long long)p * columns + column] = base_slot;
    __syncthreads();
  }
  if (SAMPLED == 1) {
    atomic_max(&full_amax, __float_as_int(thread_amax));
    __syncthreads();
    if (threadIdx.x < 32) atomic_max(reinterpret_cast<int*>(partial_amax + num_partials), full_amax);
  }
}

// y[m, column] = bias[m] + sum over taps and non-zeros of a[tap * rows + row, m] * value.
//
// A block computes BLOCK_M outputs of WARPS * WARP_COLUMNS adjacent columns; a warp WARP_COLUMNS of them, four at a
// time, one column for the threads of each lane % 4. The weights of the next panel are copied to shared memory while
// the present ones are used, and so are a warp's words, SLOTS of each column at a time; shorter columns are padded with
// zeros in row 0. The threads of a column read adjacent weights of its row, those of the next column a quarter of the
// banks further on, so that there are no bank conflicts whatever the rows are.
using weight_t = Element<WEIGHT_DTYPE>::type;
using out_t = Element<OUT_DTYPE>::type;

constexpr int QUADS = WARP_COLUMNS / 4;
constexpr int ADJACENT = QUADS % 4 == 0 ? 4 : QUADS % 2 == 0 ? 2 : 1;  // adjacent columns of a thread
constexpr int SPAN = QUADS < 4 ? QUADS : 4;                          // groups of four whose words are fetched together
constexpr int COLUMN_THREADS = WARP / 4;                                     // threads of a column
constexpr int LINE = 16 * COLUMN_THREADS;                                    // bytes of all banks
constexpr int VEC = 4;                                               // weights of one read
constexpr int VEC_BYTES = VEC * sizeof(weight_t);                         // bytes of it
constexpr int READS = THREAD_OUTPUTS / VEC;
constexpr int BLOCK_M = THREAD_OUTPUTS * COLUMN_THREADS;
constexpr int VECS_PER_LINE = 16 / VEC_BYTES;  // reads of a line

struct alignas(VEC_BYTES) Weights {  // one or two weights per 32-bit register
  unsigned at[VEC_BYTES / 4];
};
__device__ __forceinline__ float weight_of(const Weights& w, int v) {
  if constexpr (WEIGHT_DTYPE == 0) return __int_as_float(w.at[v]);
  const unsigned word = w.at[v / 2];
  if constexpr (WEIGHT_DTYPE == 1) return __int_as_float(v % 2 ? word & 0xffff0000 : word << 16);
  return from_half(half_bits(v % 2 ? word >> 16 : word));
}
// A value in float32, and as a tensor-core operand: a float16 is the sum of two bfloat16, exactly.
struct Value {
  float number;
  unsigned high, low;
  __device__ __forceinline__ Value(unsigned word, float scale) : number(from_half(word & 0xffff) * scale) {
    high = WEIGHT_DTYPE == 1 ? unsigned(__float_as_int(number)) >> 16 : word;
    low = unsigned(__float_as_int(number - __int_as_float(high << 16))) >> 16;
  }
};
// The column of thread t in group q of a warp, and the first output of a read of a lane.
__device__ __forceinline__ int column_of(int t, int q) {
  return q / ADJACENT * (4 * ADJACENT) + t * ADJACENT + q % ADJACENT;
}
__device__ __forceinline__ int output_of(int lane, int read) {
  const int in_line = (lane / 4 * VEC_BYTES + lane % 4 * 32 + read * COLUMN_THREADS * VEC_BYTES) % LINE;
  return (in_line + read / VECS_PER_LINE * LINE) / int(sizeof(weight_t));
}

// sum += w * value for 16-bit weights, with values of the same type in the low 16 bits of words; `add` for one or two.
//
// The mma's A rows are the weights of each thread; B is the diagonal matrix of the values. Each thread's accumulators
// thus receive the products of its own weights and values, unpacked and multiplied by one instruction.
#ifdef __CUDACC__
// The byte selector that places a thread's value on the diagonal: in the even or odd element of a column, or none.
__device__ __forceinline__ unsigned diagonal_selector(int lane) {
  const int other = lane / 4 - lane % 4 * 2;
  return other == 0 ? 0x4410 : other == 1 ? 0x1044 : 0x4444;
}
#define LAMINA_MMA(DEPTH, KIND, A, B, ...)                                                                          \
  asm("mma.sync.aligned.m16n8" DEPTH ".row.col.f32." KIND "." KIND ".f32 {%0,%1,%2,%3}, " A ", " B ", {%0,%1,%2,%3};" \
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                                      \
      : __VA_ARGS__)
__device__ __forceinline__ void add(float* sum, const Weights& w, unsigned value, unsigned diagonal_selector) {
  value = __byte_perm(value, 0, diagonal_selector);
  if constexpr (WEIGHT_DTYPE == 1)
    LAMINA_MMA("k8", "bf16", "{%4,%5}", "{%6}", "r"(w.at[0]), "r"(w.at[1]), "r"(value));
  else
    LAMINA_MMA("k8", "f16", "{%4,%5}", "{%6}", "r"(w.at[0]), "r"(w.at[1]), "r"(value));
}
__device__ __forceinline__ void add(float* sum, const Weights& w, unsigned value, const Weights& w2, unsigned value2,
                                    unsigned diagonal_selector) {
  value = __byte_perm(value, 0, diagonal_selector);
  value2 = __byte_perm(value2, 0, diagonal_selector);
  if constexpr (WEIGHT_DTYPE == 1)
    LAMINA_MMA("k16", "bf16", "{%4,%5,%6,%7}", "{%8,%9}", "r"(w.at[0]), "r"(w.at[1]), "r"(w2.at[0]), "r"(w2.at[1]),
               "r"(value), "r"(value2));
  else
    LAMINA_MMA("k16", "f16", "{%4,%5,%6,%7}", "{%8,%9}", "r"(w.at[0]), "r"(w.at[1]), "r"(w2.at[0]), "r"(w2.at[1]),
               "r"(value), "r"(value2));
}
#else
inline unsigned diagonal_selector(int) { return 0; }
inline void add(float* sum, const Weights& w, unsigned value, unsigned) {
  const float number = WEIGHT_DTYPE == 1 ? __int_as_float(value << 16) : from_half(half_bits(value));
  for (int v = 0; v < VEC; ++v) sum[v] = __fmaf_rn(weight_of(w, v), number, sum[v]);
}
inline void add(float* sum, const Weights& w, unsigned value, const Weights& w2, unsigned value2, unsigned) {
  add(sum, w, value, 0);
  add(sum, w2, value2, 0);
}
#endif

struct alignas(16) Origin {
  int image, top, left, pixel;
};
// A warp's shared memory: words of two fetches, each with two more slots that prefetches may read; the source and
// length of each column for three steps; the maximum length of each group of four and of each span; column origins.
struct alignas(16) WarpBuffers {
  int words[2][SLOTS + 2][4 * SPAN];
  int2 column_info[3][WARP_COLUMNS];
  Origin origins[WARP_COLUMNS];
  int most[2][QUADS];
  int longest[2][QUADS / SPAN];
};

extern "C" __global__ void __launch_bounds__(WARPS* WARP, 1)
    product(const weight_t* __restrict__ a, const float* __restrict__ bias, const int* __restrict__ words,
            const int* __restrict__ counts, const float* __restrict__ scales, out_t* __restrict__ y, int biased,
            int outputs, int stride, int columns, int rows, int panel, int panels, int capacity, int sources,
            int pixels, int out_width, int height, int width, int y_n, int y_m, int y_p) {
  extern __shared__ float4 shared[];
  griddepcontrol_wait();
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, t = lane % 4;
  const int m0 = blockIdx.y * BLOCK_M, column0 = (blockIdx.x * WARPS + warp) * WARP_COLUMNS;
  const int chunk = panel * BLOCK_M;  // weights of a panel
  weight_t* weight_panels = reinterpret_cast<weight_t*>(shared);
  WarpBuffers& buffers = reinterpret_cast<WarpBuffers*>(weight_panels + 2 * chunk)[warp];

  // Thread i of a warp holds the origin of column i.
  auto origin_of = [&](int column) {
    const int image = column / pixels, pixel = column % pixels;
    return Origin{image, pixel / out_width * SH - PH, pixel % out_width * SW - PW, pixel};
  };
  auto source_at = [&](const Origin& at, int tap) {
    const int h = at.top + tap / KW * DH, v = at.left + tap % KW * DW;
    return h >= 0 && h < height && v >= 0 && v < width ? (at.image * height + h) * width + v : -1;
  };
  const int own_column = column0 + lane;
  const bool has_column = lane < WARP_COLUMNS && own_column < columns;
  if (has_column) buffers.origins[lane] = origin_of(own_column);

  auto fetch = [&](int into, int tap, int p) {
    const int row0 = p * panel, deep = min(panel, rows - row0);
    const weight_t* from = a + (long long)(tap * rows + row0) * stride + m0;
    weight_t* to = weight_panels + into * chunk;
    constexpr int PIECE = 16 / sizeof(weight_t), PIECES = BLOCK_M / PIECE, ROWS = WARPS * WARP / PIECES;
    static_assert(WARPS * WARP % PIECES == 0, "a thread copies the same piece of every row");
    const int above = threadIdx.x / PIECES, piece = threadIdx.x % PIECES * PIECE;
    const bool there = m0 + piece < stride;
    from += there ? (long long)above * stride + piece : 0;
    to += above * BLOCK_M + piece;
#pragma unroll 2
    for (int row = above; row < deep; row += ROWS, to += ROWS * BLOCK_M, from += there ? ROWS * (long long)stride : 0)
      cp_async<16>(to, there ? from : a, there);
  };
  // Fetches the words of a span of groups of a step, from slot `first` on, slot by slot.
  auto fetch_words = [&](int step, int p, int span, int first, int into) {
    constexpr int ACROSS = 4 * SPAN, TOGETHER = WARP / ACROSS;
    const int c = lane % ACROSS, last = min(buffers.longest[step % 2][span], first + SLOTS);
    const int2 where = buffers.column_info[step % 3][span * ACROSS + c];
    int slot = first + lane / ACROSS;
    const int* from = words + ((long long)p * capacity + slot) * sources + where.x;
    int* to = &buffers.words[into][lane / ACROSS][c];
#pragma unroll 2
    for (; slot < last; slot += TOGETHER, to += TOGETHER * ACROSS, from += (long long)TOGETHER * sources)
      cp_async<4>(to, slot < where.y ? from : words, slot < where.y);
  };

  float sums[QUADS][THREAD_OUTPUTS];
#pragma unroll
  for (int q = 0; q < QUADS; ++q)
#pragma unroll
    for (int e = 0; e < THREAD_OUTPUTS; ++e) sums[q][e] = 0;
  bool overflow = false;

  const int steps = panels * KH * KW;
  // Fetches the source and length of the columns of a step; reduce_counts then computes the maximum lengths.
  auto fetch_counts = [&](int step, int tap, int p) {
    if (lane >= WARP_COLUMNS || step >= steps) return;
    const int source = has_column ? source_at(buffers.origins[lane], tap) : -1;
    int2* column_info = &buffers.column_info[step % 3][lane];
    column_info->x = max(source, 0);
    cp_async<4>(&column_info->y, counts + (long long)p * sources + column_info->x, source >= 0);
  };
  auto reduce_counts = [&](int step) {
    int2* column_info = buffers.column_info[step % 3];
    if (lane < WARP_COLUMNS) {
      overflow |= column_info[lane].y > capacity;
      column_info[lane].y = min(column_info[lane].y, capacity);
    }
    __syncwarp();
    if (lane < QUADS) {
      int most = 0;
#pragma unroll
      for (int t = 0; t < 4; ++t) most = max(most, column_info[column_of(t, lane)].y);
      buffers.most[step % 2][lane] = most;
    }
    __syncwarp();
    if (lane < QUADS / SPAN) {
      int longest = 0;
#pragma unroll
      for (int q = 0; q < SPAN; ++q) longest = max(longest, buffers.most[step % 2][lane * SPAN + q]);
      buffers.longest[step % 2][lane] = longest;
    }
    __syncwarp();
  };
  const unsigned to = diagonal_selector(lane);
  int p = 0, next_p = panels > 1, next_tap = panels == 1, turn = 0;
  fetch_counts(0, 0, 0);
  fetch_counts(1, next_tap, next_p);
  cp_async_commit();
  fetch(0, 0, 0);
  cp_async_commit();
  cp_async_wait<1>();
  reduce_counts(0);
  fetch_words(0, 0, 0, 0, 0);
  cp_async_commit();
  for (int step = 0; step < steps; ++step) {
    const int now = step % 2;
    cp_async_wait<0>();
    __syncthreads();
    const bool more = step + 1 < steps;
    if (more) {
      reduce_counts(step + 1);
      const bool wraps = next_p + 1 == panels;
      fetch_counts(step + 2, wraps ? next_tap + 1 : next_tap, wraps ? 0 : next_p + 1);
    }
    const int* most = buffers.most[now];
    const char* weights = reinterpret_cast<const char*>(weight_panels + now * chunk);
    const float scale = WEIGHT_DTYPE == 0 ? scales[p] : 1.0f;
    auto read = [&](Weights (&w)[READS], unsigned word) {
      const int offset = (word >> 16) * (BLOCK_M * int(sizeof(weight_t))) + output_of(lane, 0) * int(sizeof(weight_t));
#pragma unroll
      for (int r = 0; r < READS; ++r)  // the other half of a line
        w[r] = *reinterpret_cast<const Weights*>(weights + (offset ^ r % VECS_PER_LINE * (LINE / 2)) +
                                                 r / VECS_PER_LINE * LINE);
    };
    auto add_one = [&](float (&sums)[THREAD_OUTPUTS], const Weights (&w)[READS], unsigned word) {
      const Value value(word, scale);
#pragma unroll
      for (int r = 0; r < READS; ++r) {
        float* sum = sums + r * VEC;
        if constexpr (WEIGHT_DTYPE == 0)
#pragma unroll
          for (int v = 0; v < VEC; ++v) sum[v] = __fmaf_rn(weight_of(w[r], v), value.number, sum[v]);
        else
          add(sum, w[r], value.high, to);
        if constexpr (WEIGHT_DTYPE == 1) add(sum, w[r], value.low, to);
      }
    };
    auto add_two = [&](float (&sums)[THREAD_OUTPUTS], const Weights (&w)[READS], unsigned word,
                       const Weights (&w2)[READS], unsigned word2) {
      if constexpr (WEIGHT_DTYPE == 0) {
        add_one(sums, w, word);
        add_one(sums, w2, word2);
      } else {
        __syncwarp();  // issues all reads before the first use
        const Value value(word, scale), value2(word2, scale);
#pragma unroll
        for (int r = 0; r < READS; ++r) {
          add(sums + r * VEC, w[r], value.high, w2[r], value2.high, to);
          if constexpr (WEIGHT_DTYPE == 1) add(sums + r * VEC, w[r], value.low, w2[r], value2.low, to);
        }
      }
    };
#pragma unroll
    for (int span = 0; span < QUADS / SPAN; ++span) {
      const int longest = buffers.longest[now][span];
      int first = 0;
      do {
        const int* raw = buffers.words[turn][0] + t * ADJACENT;
        turn ^= 1;
        if (first + SLOTS < longest)
          fetch_words(step, p, span, first + SLOTS, turn);
        else if (span + 1 < QUADS / SPAN)
          fetch_words(step, p, span + 1, 0, turn);
        else if (more)
          fetch_words(step + 1, next_p, 0, 0, turn);
        cp_async_commit();
        if (span == 0 && first == 0) {
          if (more) fetch(1 - now, next_tap, next_p);
          cp_async_commit();
        }
        // Prefetches the next words while these are used, also those of the next group and its length.
        unsigned one = raw[0], two = raw[4 * SPAN];
        int ahead = most[span * SPAN];
#pragma unroll
        for (int i = 0; i < SPAN; ++i) {
          const int q = span * SPAN + i;
          const int* list = raw + column_of(0, i);
          int left = min(ahead - first, SLOTS);
          if (i + 1 < SPAN) ahead = most[q + 1];
#pragma unroll 1
          for (; left > 1; left -= 2) {
            const unsigned word = one, word2 = two;
            list += 8 * SPAN;
            one = list[0];
            two = list[4 * SPAN];
            Weights w[READS], w2[READS];
            read(w, word);
            read(w2, word2);
            add_two(sums[q], w, word, w2, word2);
          }
          const unsigned word = one;
          if (i + 1 < SPAN) {
            one = raw[column_of(0, i + 1)];
            two = raw[4 * SPAN + column_of(0, i + 1)];
          }
          if (left > 0) {
            Weights w[READS];
            read(w, word);
            add_one(sums[q], w, word);
          }
        }
        first += SLOTS;
        if (first < longest || span + 1 < QUADS / SPAN) {
          if (span == 0 && first == SLOTS)
            cp_async_wait<1>();  // all but the weights of the next step
          else
            cp_async_wait<0>();
        }
        __syncwarp();
      } while (first < longest);
    }
    p = next_p;
    if (++next_p == panels) next_p = 0, ++next_tap;
  }

  int2* column_info = buffers.column_info[0];
  if (has_column) {
    const Origin& at = buffers.origins[lane];
    column_info[lane] = make_int2(overflow, at.image * y_n + at.pixel * y_p);
  }
  __syncwarp();
  const float scale = WEIGHT_DTYPE == 0 ? 1.0f : scales[0];
  bool same = true, finite = true;
  for (int p = 1; WEIGHT_DTYPE != 0 && p < panels; ++p) same &= scales[p] == scale;
  // Adjacent columns are adjacent pixels of a row if all sizes are multiples of ADJACENT: one vectorized store.
  const bool even = y_p == 1 && pixels % ADJACENT == 0 && y_n % ADJACENT == 0 && y_m % ADJACENT == 0;
#pragma unroll
  for (int e = 0; e < THREAD_OUTPUTS; ++e) {
    const int m = m0 + output_of(lane, e / VEC) + e % VEC;
    if (m >= outputs) continue;
    const float start = biased ? bias[m] : 0.0f;
    out_t* row = y + m * y_m;
#pragma unroll
    for (int q0 = 0; q0 < QUADS; q0 += ADJACENT) {
      const int column = column_of(t, q0);
      struct alignas(ADJACENT * sizeof(out_t)) Adjacent { out_t at[ADJACENT]; } adjacent;
#pragma unroll
      for (int b = 0; b < ADJACENT; ++b) {
        const float sum = sums[q0 + b][e];
        finite &= fabsf(sum) < __int_as_float(0x7f800000);
        const bool invalid = column_info[column + b].x;
        adjacent.at[b] = from_float<OUT_DTYPE>(invalid ? __int_as_float(0x7fc00000) : __fmaf_rn(sum, scale, start));
      }
      if (even) {
        if (column0 + column < columns) *reinterpret_cast<Adjacent*>(row + column_info[column].y) = adjacent;
      } else {
#pragma unroll
        for (int b = 0; b < ADJACENT; ++b)
          if (column0 + column + b < columns) row[column_info[column + b].y] = adjacent.at[b];
      }
    }
  }
  // Off-diagonal zeros times non-finite weights of other columns give NaN, and panels may differ in scale. Such sums
  // are computed again, one product at a time.
  if (WEIGHT_DTYPE == 0 || (same && finite)) return;
  for (int i = 0; i < QUADS * THREAD_OUTPUTS; ++i) {
    const int e = i % THREAD_OUTPUTS, column = column_of(t, i / THREAD_OUTPUTS);
    const int m = m0 + output_of(lane, e / VEC) + e % VEC;
    if (m >= outputs || column0 + column >= columns || column_info[column].x) continue;
    out_t* place = y + m * y_m + column_info[column].y;
    if (same && fabsf(to_float<OUT_DTYPE>(*place)) < __int_as_float(0x7f800000)) continue;
    const Origin at = origin_of(column0 + column);
    float sum = biased ? bias[m] : 0.0f;
    for (int step = 0; step < steps; ++step) {
      const int tap = step / panels, p = step % panels, from = source_at(at, tap);
      const int there = from < 0 ? 0 : counts[(long long)p * sources + from];
      for (int slot = 0; slot < there; ++slot) {
        const unsigned word = words[((long long)p * capacity + slot) * sources + from];
        const int row = tap * rows + p * panel + (word >> 16);
        const float value = from_half(word & 0xffff) * scales[p];
        sum = __fmaf_rn(to_float<WEIGHT_DTYPE>(a[(long long)row * stride + m]), value, sum);
      }
    }
    *place = from_float<OUT_DTYPE>(sum);
  }
}
