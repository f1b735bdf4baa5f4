// The product of single non-zeros before the present one: one non-zero of a warp at a time, and outputs of it side by side.
//
// WARP threads run in step: on a GPU a warp, on the CPU, which has none, a whole block.

// y[m, column] = bias[m] + sum over taps and non-zeros of a[tap * rows + row, m] * value.
//
// A block takes BM = WARP * THREAD_OUTPUTS outputs of WARPS * WARP_COLUMNS neighbouring columns, a warp WARP_COLUMNS columns, a thread THREAD_OUTPUTS outputs
// of each. Panel after panel of each tap, the weights come to shared memory while those before them are used; a warp
// unpacks its columns' words there too, SLOTS of each column at a time, with the places of their weights, so that every
// non-zero is one broadcast and a contiguous read.
using weight_t = Element<WEIGHT_DTYPE>::type;
using out_t = Element<OUT_DTYPE>::type;

constexpr int BM = WARP * THREAD_OUTPUTS;
constexpr int VEC = 16 / sizeof(weight_t) < THREAD_OUTPUTS ? 16 / sizeof(weight_t) : THREAD_OUTPUTS;  // weights of one read
constexpr int READS = THREAD_OUTPUTS / VEC;

struct alignas(sizeof(weight_t) * VEC) Weights {  // words of one or two numbers, which registers hold as they are
  unsigned at[sizeof(weight_t) * VEC / 4];
};
__device__ __forceinline__ float weight_of(const Weights& w, int v) {
  if constexpr (WEIGHT_DTYPE == 0) return __int_as_float(w.at[v]);
  const unsigned word = w.at[v / 2];
  if constexpr (WEIGHT_DTYPE == 1) return __int_as_float(v % 2 ? word & 0xffff0000 : word << 16);
  return from_half(half_bits(v % 2 ? word >> 16 : word));
}
struct alignas(8) Entry {
  float value;
  int place;
};
struct alignas(16) Pair {
  Entry one, two;
};

extern "C" __global__ void __launch_bounds__(WARPS* WARP, 1)
    product(const weight_t* __restrict__ a, const float* __restrict__ bias, const int* __restrict__ words,
            const int* __restrict__ counts, const float* __restrict__ scales, out_t* __restrict__ y, int biased,
            int outputs, int stride, int columns, int rows, int panel, int panels, int capacity, int sources, int pixels,
            int out_width, int height, int width, int y_n, int y_m, int y_p) {
  extern __shared__ float4 shared[];
  griddepcontrol_wait();
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const int m0 = blockIdx.y * BM, column0 = (blockIdx.x * WARPS + warp) * WARP_COLUMNS;
  const int chunk = panel * BM;  // weights of a panel
  weight_t* held = reinterpret_cast<weight_t*>(shared);
  // Behind a warp's last list a pair is read ahead though there is none.
  constexpr int ENTRIES = WARP_COLUMNS * SLOTS + 2;
  Entry* list = reinterpret_cast<Entry*>(held + 2 * chunk) + warp * ENTRIES;
  int2* tolds = reinterpret_cast<int2*>(list + (WARPS - warp) * ENTRIES);
  int* raws = reinterpret_cast<int*>(tolds + 2 * WARPS * WARP_COLUMNS);

  // Thread i of a warp knows where column i looks.
  const int mine = column0 + lane;
  const bool looks = lane < WARP_COLUMNS && mine < columns;
  const int image = looks ? mine / pixels : 0, pixel = looks ? mine % pixels : 0;
  const int top = pixel / out_width * SH - PH, left = pixel % out_width * SW - PW;
  auto source_of = [&](int step) {
    const int tap = step / panels, h = top + tap / KW * DH, v = left + tap % KW * DW;
    return looks && h >= 0 && h < height && v >= 0 && v < width ? (image * height + h) * width + v : -1;
  };
  auto count_of = [&](int step, int source) {
    return source < 0 ? 0 : counts[(long long)(step % panels) * sources + source];
  };
  auto fetch = [&](int step) {
    const int row0 = step % panels * panel, deep = min(panel, rows - row0);
    const weight_t* from = a + (long long)(step / panels * rows + row0) * stride + m0;
    weight_t* to = held + step % 2 * chunk;
    constexpr int PIECE = 16 / sizeof(weight_t), PIECES = BM / PIECE;
    for (int i = threadIdx.x; i < deep * PIECES; i += WARPS * WARP) {
      const int row = i / PIECES, piece = i % PIECES * PIECE;
      if (m0 + piece < stride) cp_async<16>(to + row * BM + piece, from + (long long)row * stride + piece, true);
    }
  };
  auto told_of = [&](int step) { return tolds + (step % 2 * WARPS + warp) * WARP_COLUMNS; };
  auto most_of = [&](const int2* told) {
    int most = 0;
#pragma unroll
    for (int c = 0; c < WARP_COLUMNS; ++c) most = max(most, told[c].y);
    return most;
  };
  auto raw_of = [&](int step) { return raws + (step % 2 * WARPS + warp) * WARP_COLUMNS * SLOTS; };
  // A warp's words of a step, from slot `first` on, as they are: slot after slot.
  auto ask = [&](int step, int first) {
    const int2* told = told_of(step);
    const long long panel_words = (long long)(step % panels) * capacity;
    int* raw = raw_of(step);
    const int here = min(most_of(told) - first, SLOTS);
    for (int i = lane; i < here * WARP_COLUMNS; i += WARP) {
      const int2 where = told[i % WARP_COLUMNS];
      const int slot = first + i / WARP_COLUMNS;
      if (slot < where.y) cp_async<4>(raw + i, words + (panel_words + slot) * sources + where.x, true);
    }
  };

  float sums[WARP_COLUMNS][THREAD_OUTPUTS];
#pragma unroll
  for (int c = 0; c < WARP_COLUMNS; ++c)
#pragma unroll
    for (int e = 0; e < THREAD_OUTPUTS; ++e) sums[c][e] = 0;
  bool unfit = false;

  const int steps = panels * KH * KW;
  int source = source_of(0), count = count_of(0, source);
  auto tell = [&](int step) {
    unfit |= count > capacity;
    if (lane < WARP_COLUMNS) told_of(step)[lane] = make_int2(source, min(count, capacity));
    __syncwarp();
  };
  auto look = [&](int step) {
    source = step < steps ? source_of(step) : -1;
    count = step < steps ? count_of(step, source) : 0;
  };
  fetch(0);
  tell(0);
  ask(0, 0);
  cp_async_commit();
  look(1);
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<0>();
    __syncthreads();
    if (step + 1 < steps) {
      fetch(step + 1);
      tell(step + 1);
      ask(step + 1, 0);
      cp_async_commit();
      look(step + 2);
    }
    const int2* told = told_of(step);
    const int* raw = raw_of(step);
    const float scale = scales[step % panels];
    const char* weights = reinterpret_cast<const char*>(held + step % 2 * chunk + lane * VEC);
    auto add = [&](float (&sum)[THREAD_OUTPUTS], const Weights (&w)[READS], float value) {
#pragma unroll
      for (int r = 0; r < READS; ++r)
#pragma unroll
        for (int v = 0; v < VEC; ++v)
          sum[r * VEC + v] = __fmaf_rn(weight_of(w[r], v), value, sum[r * VEC + v]);
    };
    auto read = [&](Weights (&w)[READS], int place) {
#pragma unroll
      for (int r = 0; r < READS; ++r) w[r] = *reinterpret_cast<const Weights*>(weights + place + r * WARP * int(sizeof(Weights)));
    };
    const int most = most_of(told);
    for (int first = 0; first < most; first += SLOTS) {
      if (first > 0) {
        ask(step, first);
        cp_async_commit();
        cp_async_wait<0>();
        __syncwarp();
      }
      const int here = min(most - first, SLOTS);
      for (int i = lane; i < here * WARP_COLUMNS; i += WARP) {
        const unsigned word = raw[i];
        list[i % WARP_COLUMNS * SLOTS + i / WARP_COLUMNS] = {from_half(word & 0xffff) * scale,
                                             int(word >> 16) * BM * int(sizeof(weight_t))};
      }
      __syncwarp();
      // What begins a column's list is read while the one before it is used, and so is every next pair.
      Pair ahead = *reinterpret_cast<const Pair*>(list);
      int n = min(told[0].y - first, SLOTS);
#pragma unroll
      for (int c = 0; c < WARP_COLUMNS; ++c) {
        const Pair* pairs = reinterpret_cast<const Pair*>(list + c * SLOTS);
        Pair head = ahead;
        const int mine_here = n;
        if (c + 1 < WARP_COLUMNS) {
          ahead = *reinterpret_cast<const Pair*>(list + (c + 1) * SLOTS);
          n = min(told[c + 1].y - first, SLOTS);
        }
#pragma unroll AHEAD
        for (int left_over = mine_here; left_over > 0; left_over -= 2) {
          const Pair pair = head;
          Weights one[READS], two[READS];
          read(one, pair.one.place);
          if (left_over > 1) read(two, pair.two.place);
          head = *++pairs;
          add(sums[c], one, pair.one.value);
          if (left_over > 1) add(sums[c], two, pair.two.value);
        }
      }
      __syncwarp();
    }
  }

  __syncwarp();  // all have read what stood there
  int2* told = told_of(0);
  if (lane < WARP_COLUMNS) told[lane] = make_int2(unfit, image * y_n + pixel * y_p);
  __syncwarp();
  const bool even = y_p == 1 && pixels % 4 == 0 && y_n % 4 == 0 && y_m % 4 == 0 && WARP_COLUMNS % 4 == 0;
#pragma unroll
  for (int e = 0; e < THREAD_OUTPUTS; ++e) {
    const int m = m0 + (e / VEC * WARP + lane) * VEC + e % VEC;
    if (m >= outputs) continue;
    const float start = biased ? bias[m] : 0.0f;
    out_t* row = y + m * y_m;
#pragma unroll
    for (int c0 = 0; c0 < WARP_COLUMNS; c0 += 4) {
      struct alignas(4 * sizeof(out_t)) Four { out_t at[4]; } four;
#pragma unroll
      for (int c = c0; c < c0 + 4 && c < WARP_COLUMNS; ++c)
        four.at[c - c0] = from_float<OUT_DTYPE>(told[c].x ? __int_as_float(0x7fc00000) : sums[c][e] + start);
      if (even) {  // so is the number of columns
        if (column0 + c0 < columns) *reinterpret_cast<Four*>(row + told[c0].y) = four;
      } else {
#pragma unroll
        for (int c = c0; c < c0 + 4 && c < WARP_COLUMNS; ++c)
          if (column0 + c < columns) row[told[c].y] = four.at[c - c0];
      }
    }
  }
}
