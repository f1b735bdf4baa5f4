// ELLPACK-DIB at the speed of the memory that it reads: conversion in one pass, products from weights in shared memory.
//
// WARP threads run in step: on a GPU a warp, on the CPU, which has none, a whole block.

#ifdef __CUDACC__
// The larger of what is there and the values of a warp that is whole.
__device__ __forceinline__ int most_of_warp(int value) { return __reduce_max_sync(0xffffffff, value); }
__device__ __forceinline__ void raise(int* place, int value) {
  value = most_of_warp(value);
  if (threadIdx.x % 32 == 0) atomicMax(place, value);
}
#else
inline int most_of_warp(int value) { return value; }
inline void raise(int* place, int value) {
  std::atomic_ref<int> there(*place);
  int was = there.load();
  while (was < value && !there.compare_exchange_weak(was, value)) {
  }
}
#endif

// What no kernel of a build uses has some value all the same, since they are compiled together.
#ifndef WARP
#define WARP 32
#endif
#ifndef MAP
#define MAP 0
#define THREADS 32
#define COLUMNS 32
#define GROUPS 1
#define DEEP 1
#define LARGEST 14
#define LAST 0
#define STAGED 0
#define GUESSED 0
#endif
#ifndef WEIGHT
#define WEIGHT 0
#define OUT 0
#define WARPS 1
#define WIDE 4
#define EACH 8
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

using map_t = Element<MAP>::type;

// Of a number that is not finite, 0.
__device__ __forceinline__ float magnitude(float number) {
  const float size = fabsf(number);
  return size < __int_as_float(0x7f800000) ? size : 0.0f;
}

// The largest finite magnitude of each block's share of a map without gaps, which is read as 16 bytes at a time, or of
// one of `every` pieces of it; and behind these of nothing, which is 0.
extern "C" __global__ void __launch_bounds__(THREADS)
    largest(const map_t* __restrict__ x, float* __restrict__ found, int quads, int rest, int every) {
  constexpr int QUAD = 16 / sizeof(map_t);
  struct alignas(16) Quad { map_t at[QUAD]; };
  const Quad* wide = reinterpret_cast<const Quad*>(x);
  float most = 0;
  griddepcontrol_wait();
  auto see = [&](const Quad& quad) {
#pragma unroll
    for (int j = 0; j < QUAD; ++j) most = fmaxf(most, magnitude(to_float<MAP>(quad.at[j])));
  };
  const int step = gridDim.x * every * THREADS;
  int i = blockIdx.x * every * THREADS + threadIdx.x;
  for (; i < quads - 3 * step; i += 4 * step) {
    const Quad four[4] = {wide[i], wide[i + step], wide[i + 2 * step], wide[i + 3 * step]};
#pragma unroll
    for (int k = 0; k < 4; ++k) see(four[k]);
  }
  for (; i < quads; i += step) see(wide[i]);
  if (blockIdx.x == 0 && threadIdx.x < rest)
    most = fmaxf(most, magnitude(to_float<MAP>(x[(long long)quads * QUAD + threadIdx.x])));
  __shared__ int top;
  if (threadIdx.x == 0) top = 0;
  __syncthreads();
  raise(&top, __float_as_int(most));  // magnitudes are in the order of their bits
  __syncthreads();
  if (threadIdx.x == 0) found[blockIdx.x] = __int_as_float(top);
  if (blockIdx.x == 0 && threadIdx.x == 0) found[gridDim.x] = 0;
}

// The power of two that brings a largest magnitude just below float16's.
__device__ __forceinline__ float scale_of(float most) {
  const int power = min(max((__float_as_int(most) >> 23) - 127 - LARGEST, -120), 120);
  return most > 0 ? __int_as_float((power + 127) << 23) : 1.0f;
}

// Blocks of a multiprocessor, so that each reads enough.
constexpr int BLOCKS = STAGED ? 24576 / (COLUMNS * GROUPS * DEEP) : 1;

// COLUMNS neighbouring columns of one panel, DEEP rows of each by every thread, in turn; STAGED, the panel is a single
// turn, and words are put in order before they are written, many side by side. Threads that share a column hold
// neighbouring groups of rows; what those above have found says where each one's words go.
//
// Of `known` largest magnitudes, if there are any, each block makes the scale, and the first one of a panel writes it.
// GUESSED 1, they are a guess, and the largest of all is found behind them; GUESSED 2, that one's scale is right, and
// where it is what was guessed there is nothing left to do.
extern "C" __global__ void __launch_bounds__(COLUMNS* GROUPS, BLOCKS)
    convert(const map_t* __restrict__ x, int* __restrict__ words, int* __restrict__ counts, float* __restrict__ scales,
            float* __restrict__ found, int known, int rows, int columns, int panel, int panels, int capacity, int pixels,
            int x_n, int x_c, int x_p, int store) {
  __shared__ int taken[GROUPS][COLUMNS];
  __shared__ int top, seen;
  __shared__ int rows_of[STAGED ? GROUPS * DEEP : 1][COLUMNS];
  const int lane = threadIdx.x % COLUMNS, group = threadIdx.x / COLUMNS;
  const int across = (columns + COLUMNS - 1) / COLUMNS;
  alignas(16) map_t ahead[DEEP];
  float inverse = 1, most = 0;
  bool fitted = known == 0;
  if (fitted || GUESSED == 2) griddepcontrol_wait();
  for (int tile = blockIdx.x; tile < across * panels; tile += gridDim.x) {
    // From the end, which a pass over the map before this one has left in the cache.
    const int p = panels - 1 - tile / across, first = p * panel, last = min(first + panel, rows);
    const int column = tile % across * COLUMNS + lane;
    const bool inside = column < columns;
    const map_t* from = x + (inside ? (long long)(column / pixels) * x_n + (long long)(column % pixels) * x_p : 0);
    int* to = words + (long long)p * capacity * columns + column;
    auto fetch = [&](int k0) {
      const int row = k0 + group * DEEP, left = inside ? last - row : 0;
      const map_t* here = from + (left > 0 ? (long long)row * x_c : 0);
      if constexpr (LAST) {  // rows lie side by side, and as many as fit in 16 bytes are all there or all beyond
#pragma unroll
        for (int i = 0; i < DEEP; i += 16 / sizeof(map_t))
          *reinterpret_cast<float4*>(ahead + i) =
              i < left ? *reinterpret_cast<const float4*>(here + i) : make_float4(0, 0, 0, 0);
      } else {
#pragma unroll
        for (int i = 0; i < DEEP; ++i) ahead[i] = i < left ? here[unsigned(i) * unsigned(x_c)] : map_t(0);
      }
    };
    if (GUESSED != 2) fetch(first);
    if (!fitted) {
      if (GUESSED != 2) griddepcontrol_wait();  // here: what found the magnitudes has read the map, so all that made it had ended
      if (threadIdx.x == 0) top = seen = 0;
      __syncthreads();
      float here = 0;
      for (int i = threadIdx.x; i < known; i += 4 * COLUMNS * GROUPS) {  // four at once: all blocks wait for them
        float four[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int at = i + k * COLUMNS * GROUPS;
          four[k] = at < known ? found[at] : 0;
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) here = fmaxf(here, four[k]);
      }
      raise(&top, __float_as_int(here));
      __syncthreads();
      const float guess = scale_of(__int_as_float(top)), scale = GUESSED == 2 ? scale_of(found[known]) : guess;
      if (GUESSED == 2 && scale == guess) return;
      inverse = 1.0f / scale;
      if (blockIdx.x == 0)
        for (int i = threadIdx.x; i < panels; i += COLUMNS * GROUPS) scales[i] = scale;
      fitted = true;
    } else if (known == 0 && store) {
      inverse = 1.0f / scales[p];
    }
    if (GUESSED == 2) fetch(first);
    int before = 0;
    for (int k0 = first; k0 < last; k0 += GROUPS * DEEP) {
      float value[DEEP];
      int mine = 0;
#pragma unroll
      for (int i = 0; i < DEEP; ++i) {
        value[i] = to_float<MAP>(ahead[i]);
        mine += value[i] != 0;
        if (GUESSED == 1) most = fmaxf(most, magnitude(value[i]));
      }
      if (!STAGED && k0 + GROUPS * DEEP < last) fetch(k0 + GROUPS * DEEP);
      taken[group][lane] = mine;
      __syncthreads();
      int slot = before, total = 0;
#pragma unroll
      for (int g = 0; g < GROUPS; ++g) {
        const int there = taken[g][lane];
        slot += g < group ? there : 0;
        total += there;
      }
      before += total;
      if (!STAGED) __syncthreads();
      if (store) {
#pragma unroll
        for (int i = 0; i < DEEP; ++i) {
          const int word = (k0 - first + group * DEEP + i) << 16 | to_half(value[i] * inverse);
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
      // What is written together is written whole, since memory first reads what is written in part.
      const int deepest = min(most_of_warp(inside ? before : 0), capacity);
      __syncthreads();
      if (inside)
        for (int slot = group; slot < deepest; slot += GROUPS)
          to[(long long)slot * columns] = slot < before ? rows_of[slot][lane] : 0;
    }
    if (inside && group == 0) counts[(long long)p * columns + column] = before;
    __syncthreads();
  }
  if (GUESSED == 1) {
    raise(&seen, __float_as_int(most));
    __syncthreads();
    if (threadIdx.x < 32) raise(reinterpret_cast<int*>(found + known), seen);
  }
}

// y[m, column] = bias[m] + sum over taps and non-zeros of a[tap * rows + row, m] * value.
//
// A block takes BM outputs of WARPS * WIDE neighbouring columns, a warp WIDE columns, four of them at a time: each four
// has a column for the threads of each lane % 4. Panel after panel of each tap, the weights come to shared memory while
// those before them are used, and so do a warp's words, SLOTS of each column at a time; what a column lacks are zeros in
// row 0. The threads of a column read its row of weights side by side, those of the next column a quarter of all banks
// further on: whatever the rows, what is read together lies in banks of its own.
using weight_t = Element<WEIGHT>::type;
using out_t = Element<OUT>::type;

constexpr int QUADS = WIDE / 4;
constexpr int BESIDE = QUADS % 4 == 0 ? 4 : QUADS % 2 == 0 ? 2 : 1;  // neighbouring columns of a thread
constexpr int SPAN = QUADS < 4 ? QUADS : 4;                          // fours whose words come together
constexpr int CHUNKS = WARP / 4;                                     // threads of a column
constexpr int LINE = 16 * CHUNKS;                                    // bytes: all banks
constexpr int VEC = 4;                                               // weights of one read
constexpr int PART = VEC * sizeof(weight_t);                         // bytes of it
constexpr int READS = EACH / VEC;
constexpr int BM = EACH * CHUNKS;
constexpr int TURNS = 16 / PART;  // reads until a line is read

struct alignas(PART) Weights {  // words of one or two numbers, which registers hold as they are
  unsigned at[PART / 4];
};
__device__ __forceinline__ float weight_of(const Weights& w, int v) {
  if constexpr (WEIGHT == 0) return __int_as_float(w.at[v]);
  const unsigned word = w.at[v / 2];
  if constexpr (WEIGHT == 1) return __int_as_float(v % 2 ? word & 0xffff0000 : word << 16);
  return from_half(half_bits(v % 2 ? word >> 16 : word));
}
// A value as it is, and as the tensor core takes it: a float16 is two bfloat16, exactly.
struct Value {
  float number;
  unsigned high, low;
  __device__ __forceinline__ Value(unsigned word, float scale) : number(from_half(word & 0xffff) * scale) {
    high = WEIGHT == 1 ? unsigned(__float_as_int(number)) >> 16 : word;
    low = unsigned(__float_as_int(number - __int_as_float(high << 16))) >> 16;
  }
};
// The column of a warp that threads have in a four, and the first of the outputs that they read in their turn.
__device__ __forceinline__ int column_of(int t, int q) { return q / BESIDE * (4 * BESIDE) + t * BESIDE + q % BESIDE; }
__device__ __forceinline__ int output_of(int lane, int read) {
  return ((lane / 4 * PART + lane % 4 * 32 + read * CHUNKS * PART) % LINE + read / TURNS * LINE) / int(sizeof(weight_t));
}

// sum += w * value, for weights of 16 bits and values of the same type in the low halves of words; `add` of two at once.
//
// The tensor core has a row of weights from each thread of a column, and of the values a column for each: a diagonal of
// them, all else zeros. So what a thread gets are the sums of its own products, unpacked and multiplied in one go.
#ifdef __CUDACC__
// Where a thread's value goes: to the even outputs of a column, to the odd ones, or to none.
__device__ __forceinline__ unsigned own(int lane) {
  const int other = lane / 4 - lane % 4 * 2;
  return other == 0 ? 0x4410 : other == 1 ? 0x1044 : 0x4444;
}
#define LAMINA_MMA(DEPTH, KIND, A, B, ...)                                                                          \
  asm("mma.sync.aligned.m16n8" DEPTH ".row.col.f32." KIND "." KIND ".f32 {%0,%1,%2,%3}, " A ", " B ", {%0,%1,%2,%3};" \
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                                      \
      : __VA_ARGS__)
__device__ __forceinline__ void add(float* sum, const Weights& w, unsigned value, unsigned own) {
  value = __byte_perm(value, 0, own);
  if constexpr (WEIGHT == 1)
    LAMINA_MMA("k8", "bf16", "{%4,%5}", "{%6}", "r"(w.at[0]), "r"(w.at[1]), "r"(value));
  else
    LAMINA_MMA("k8", "f16", "{%4,%5}", "{%6}", "r"(w.at[0]), "r"(w.at[1]), "r"(value));
}
__device__ __forceinline__ void add(float* sum, const Weights& w, unsigned value, const Weights& w2, unsigned value2,
                                    unsigned own) {
  value = __byte_perm(value, 0, own);
  value2 = __byte_perm(value2, 0, own);
  if constexpr (WEIGHT == 1)
    LAMINA_MMA("k16", "bf16", "{%4,%5,%6,%7}", "{%8,%9}", "r"(w.at[0]), "r"(w.at[1]), "r"(w2.at[0]), "r"(w2.at[1]),
               "r"(value), "r"(value2));
  else
    LAMINA_MMA("k16", "f16", "{%4,%5,%6,%7}", "{%8,%9}", "r"(w.at[0]), "r"(w.at[1]), "r"(w2.at[0]), "r"(w2.at[1]),
               "r"(value), "r"(value2));
}
#else
inline unsigned own(int) { return 0; }
inline void add(float* sum, const Weights& w, unsigned value, unsigned) {
  const float number = WEIGHT == 1 ? __int_as_float(value << 16) : from_half(half_bits(value));
  for (int v = 0; v < VEC; ++v) sum[v] = __fmaf_rn(weight_of(w, v), number, sum[v]);
}
inline void add(float* sum, const Weights& w, unsigned value, const Weights& w2, unsigned value2, unsigned) {
  add(sum, w, value, 0);
  add(sum, w2, value2, 0);
}
#endif

struct alignas(16) Place {
  int image, top, left, pixel;
};
// What a warp has in shared memory: the words of two fetches, behind which two are read ahead though there are none; of
// three steps the source and length of each column, and the longest of each four and of all; and where its columns are.
struct alignas(16) Room {
  int words[2][SLOTS + 2][4 * SPAN];
  int2 told[3][WIDE];
  Place places[WIDE];
  int most[2][QUADS];
  int longest[2][QUADS / SPAN];
};

extern "C" __global__ void __launch_bounds__(WARPS* WARP, 1)
    product(const weight_t* __restrict__ a, const float* __restrict__ bias, const int* __restrict__ words,
            const int* __restrict__ counts, const float* __restrict__ scales, out_t* __restrict__ y, int biased,
            int outputs, int stride, int columns, int rows, int panel, int panels, int capacity, int sources, int pixels,
            int out_width, int height, int width, int y_n, int y_m, int y_p) {
  extern __shared__ float4 shared[];
  griddepcontrol_wait();
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, t = lane % 4;
  const int m0 = blockIdx.y * BM, column0 = (blockIdx.x * WARPS + warp) * WIDE;
  const int chunk = panel * BM;  // weights of a panel
  weight_t* held = reinterpret_cast<weight_t*>(shared);
  Room& room = reinterpret_cast<Room*>(held + 2 * chunk)[warp];

  // Thread i of a warp knows where column i looks.
  auto place_of = [&](int column) {
    const int image = column / pixels, pixel = column % pixels;
    return Place{image, pixel / out_width * SH - PH, pixel % out_width * SW - PW, pixel};
  };
  auto source_at = [&](const Place& at, int tap) {
    const int h = at.top + tap / KW * DH, v = at.left + tap % KW * DW;
    return h >= 0 && h < height && v >= 0 && v < width ? (at.image * height + h) * width + v : -1;
  };
  const int mine = column0 + lane;
  const bool looks = lane < WIDE && mine < columns;
  if (looks) room.places[lane] = place_of(mine);

  auto fetch = [&](int into, int tap, int p) {
    const int row0 = p * panel, deep = min(panel, rows - row0);
    const weight_t* from = a + (long long)(tap * rows + row0) * stride + m0;
    weight_t* to = held + into * chunk;
    constexpr int PIECE = 16 / sizeof(weight_t), PIECES = BM / PIECE, ROWS = WARPS * WARP / PIECES;
    static_assert(WARPS * WARP % PIECES == 0, "a thread copies the same piece of every row");
    const int above = threadIdx.x / PIECES, piece = threadIdx.x % PIECES * PIECE;
    const bool there = m0 + piece < stride;
    from += there ? (long long)above * stride + piece : 0;
    to += above * BM + piece;
#pragma unroll 2
    for (int row = above; row < deep; row += ROWS, to += ROWS * BM, from += there ? ROWS * (long long)stride : 0)
      cp_async<16>(to, there ? from : a, there);
  };
  // The words of some fours of a step, from slot `first` on, as they are: slot after slot.
  auto ask = [&](int step, int p, int span, int first, int into) {
    constexpr int ACROSS = 4 * SPAN, TOGETHER = WARP / ACROSS;
    const int c = lane % ACROSS, last = min(room.longest[step % 2][span], first + SLOTS);
    const int2 where = room.told[step % 3][span * ACROSS + c];
    int slot = first + lane / ACROSS;
    const int* from = words + ((long long)p * capacity + slot) * sources + where.x;
    int* to = &room.words[into][lane / ACROSS][c];
#pragma unroll 2
    for (; slot < last; slot += TOGETHER, to += TOGETHER * ACROSS, from += (long long)TOGETHER * sources)
      cp_async<4>(to, slot < where.y ? from : words, slot < where.y);
  };

  float sums[QUADS][EACH];
#pragma unroll
  for (int q = 0; q < QUADS; ++q)
#pragma unroll
    for (int e = 0; e < EACH; ++e) sums[q][e] = 0;
  bool unfit = false;

  const int steps = panels * KH * KW;
  // Where the columns of a step lie, and how long they are, which comes later; and then what is to be known of that.
  auto look = [&](int step, int tap, int p) {
    if (lane >= WIDE || step >= steps) return;
    const int source = looks ? source_at(room.places[lane], tap) : -1;
    int2* told = &room.told[step % 3][lane];
    told->x = max(source, 0);
    cp_async<4>(&told->y, counts + (long long)p * sources + told->x, source >= 0);
  };
  auto tell = [&](int step) {
    int2* told = room.told[step % 3];
    if (lane < WIDE) {
      unfit |= told[lane].y > capacity;
      told[lane].y = min(told[lane].y, capacity);
    }
    __syncwarp();
    if (lane < QUADS) {
      int most = 0;
#pragma unroll
      for (int t = 0; t < 4; ++t) most = max(most, told[column_of(t, lane)].y);
      room.most[step % 2][lane] = most;
    }
    __syncwarp();
    if (lane < QUADS / SPAN) {
      int longest = 0;
#pragma unroll
      for (int q = 0; q < SPAN; ++q) longest = max(longest, room.most[step % 2][lane * SPAN + q]);
      room.longest[step % 2][lane] = longest;
    }
    __syncwarp();
  };
  const unsigned to = own(lane);
  int p = 0, next_p = panels > 1, next_tap = panels == 1, turn = 0;
  look(0, 0, 0);
  look(1, next_tap, next_p);
  cp_async_commit();
  fetch(0, 0, 0);
  cp_async_commit();
  cp_async_wait<1>();
  tell(0);
  ask(0, 0, 0, 0, 0);
  cp_async_commit();
  for (int step = 0; step < steps; ++step) {
    const int now = step % 2;
    cp_async_wait<0>();
    __syncthreads();
    const bool more = step + 1 < steps;
    if (more) {
      tell(step + 1);
      const bool wraps = next_p + 1 == panels;
      look(step + 2, wraps ? next_tap + 1 : next_tap, wraps ? 0 : next_p + 1);
    }
    const int* most = room.most[now];
    const char* weights = reinterpret_cast<const char*>(held + now * chunk);
    const float scale = WEIGHT == 0 ? scales[p] : 1.0f;
    auto read = [&](Weights (&w)[READS], unsigned word) {
      const int place = (word >> 16) * (BM * int(sizeof(weight_t))) + output_of(lane, 0) * int(sizeof(weight_t));
#pragma unroll
      for (int r = 0; r < READS; ++r)  // the other half of a line
        w[r] = *reinterpret_cast<const Weights*>(weights + (place ^ r % TURNS * (LINE / 2)) + r / TURNS * LINE);
    };
    auto add_one = [&](float (&sums)[EACH], const Weights (&w)[READS], unsigned word) {
      const Value value(word, scale);
#pragma unroll
      for (int r = 0; r < READS; ++r) {
        float* sum = sums + r * VEC;
        if constexpr (WEIGHT == 0)
#pragma unroll
          for (int v = 0; v < VEC; ++v) sum[v] = __fmaf_rn(weight_of(w[r], v), value.number, sum[v]);
        else
          add(sum, w[r], value.high, to);
        if constexpr (WEIGHT == 1) add(sum, w[r], value.low, to);
      }
    };
    auto add_two = [&](float (&sums)[EACH], const Weights (&w)[READS], unsigned word, const Weights (&w2)[READS],
                       unsigned word2) {
      if constexpr (WEIGHT == 0) {
        add_one(sums, w, word);
        add_one(sums, w2, word2);
      } else {
        __syncwarp();  // all reads are on their way before the first is needed
        const Value value(word, scale), value2(word2, scale);
#pragma unroll
        for (int r = 0; r < READS; ++r) {
          add(sums + r * VEC, w[r], value.high, w2[r], value2.high, to);
          if constexpr (WEIGHT == 1) add(sums + r * VEC, w[r], value.low, w2[r], value2.low, to);
        }
      }
    };
#pragma unroll
    for (int span = 0; span < QUADS / SPAN; ++span) {
      const int longest = room.longest[now][span];
      int first = 0;
      do {
        const int* raw = room.words[turn][0] + t * BESIDE;
        turn ^= 1;
        if (first + SLOTS < longest)
          ask(step, p, span, first + SLOTS, turn);
        else if (span + 1 < QUADS / SPAN)
          ask(step, p, span + 1, 0, turn);
        else if (more)
          ask(step + 1, next_p, 0, 0, turn);
        cp_async_commit();
        if (span == 0 && first == 0) {
          if (more) fetch(1 - now, next_tap, next_p);
          cp_async_commit();
        }
        // The next words are read while these are used, those of the next four too, and so is its length.
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
            cp_async_wait<1>();  // but for the weights of the next step
          else
            cp_async_wait<0>();
        }
        __syncwarp();
      } while (first < longest);
    }
    p = next_p;
    if (++next_p == panels) next_p = 0, ++next_tap;
  }

  int2* told = room.told[0];
  if (looks) told[lane] = make_int2(unfit, room.places[lane].image * y_n + room.places[lane].pixel * y_p);
  __syncwarp();
  const float scale = WEIGHT == 0 ? 1.0f : scales[0];
  bool same = true, finite = true;
  for (int p = 1; WEIGHT != 0 && p < panels; ++p) same &= scales[p] == scale;
  // As many columns as are neighbours are as many pixels of one row, if all sizes are multiples.
  const bool even = y_p == 1 && pixels % BESIDE == 0 && y_n % BESIDE == 0 && y_m % BESIDE == 0;
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    const int m = m0 + output_of(lane, e / VEC) + e % VEC;
    if (m >= outputs) continue;
    const float start = biased ? bias[m] : 0.0f;
    out_t* row = y + m * y_m;
#pragma unroll
    for (int q0 = 0; q0 < QUADS; q0 += BESIDE) {
      const int column = column_of(t, q0);
      struct alignas(BESIDE * sizeof(out_t)) Beside { out_t at[BESIDE]; } beside;
#pragma unroll
      for (int b = 0; b < BESIDE; ++b) {
        const float sum = sums[q0 + b][e];
        finite &= fabsf(sum) < __int_as_float(0x7f800000);
        beside.at[b] = from_float<OUT>(told[column + b].x ? __int_as_float(0x7fc00000) : __fmaf_rn(sum, scale, start));
      }
      if (even) {
        if (column0 + column < columns) *reinterpret_cast<Beside*>(row + told[column].y) = beside;
      } else {
#pragma unroll
        for (int b = 0; b < BESIDE; ++b)
          if (column0 + column + b < columns) row[told[column + b].y] = beside.at[b];
      }
    }
  }
  // Zeros of the tensor core's values meet weights of other columns, and those that are not finite make NaN of them; and
  // panels may have other scales. Then, what is not finite is summed anew, one product after the other.
  if (WEIGHT == 0 || (same && finite)) return;
  for (int i = 0; i < QUADS * EACH; ++i) {
    const int e = i % EACH, m = m0 + output_of(lane, e / VEC) + e % VEC, column = column_of(t, i / EACH);
    if (m >= outputs || column0 + column >= columns || told[column].x) continue;
    out_t* place = y + m * y_m + told[column].y;
    if (same && fabsf(to_float<OUT>(*place)) < __int_as_float(0x7f800000)) continue;
    const Place at = place_of(column0 + column);
    float sum = biased ? bias[m] : 0.0f;
    for (int step = 0; step < steps; ++step) {
      const int tap = step / panels, p = step % panels, from = source_at(at, tap);
      const int there = from < 0 ? 0 : counts[(long long)p * sources + from];
      for (int slot = 0; slot < there; ++slot) {
        const unsigned word = words[((long long)p * capacity + slot) * sources + from];
        const int row = tap * rows + p * panel + (word >> 16);
        const float value = from_half(word & 0xffff) * scales[p];
        sum = __fmaf_rn(to_float<WEIGHT>(a[(long long)row * stride + m]), value, sum);
      }
    }
    *place = from_float<OUT>(sum);
  }
}
