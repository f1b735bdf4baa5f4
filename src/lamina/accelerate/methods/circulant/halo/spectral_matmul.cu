// Spectra times weights over a sliding window, frequency by frequency; or output gradients times their conjugates.
//
// Layouts are those of the tile language's kernels: rows [PARTS][slots][pixels][2][blocks], weights
// [PARTS][slots][p][taps][2][q], real parts first. The result is in one part.
//
// Macros besides those of pixels.cu: BACK, whether this is the input gradient, for which taps are in reverse; WHOLE,
// whether tiles are as wide as images.

#if PARTS == 2
typedef float stored;
#else
typedef number stored;
#endif
constexpr int HELD = PARTS * EIGHTS * INPUTS * 8;  // numbers of a stage
constexpr int AT_ONCE = 2;                         // sixteens of places that a warp multiplies together
constexpr int GROUPS = (OUTPUTS + 16 * AT_ONCE - 1) / (16 * AT_ONCE);

// The factor of one number that is read and one that is made.
__device__ __forceinline__ word factor(const number* w, bool first_slot, int source, int lane_pair, int made) {
  const int place = source / EIGHTS, read = source % EIGHTS * 8 + lane_pair;
  if (source >= SOURCES || read >= READ || made >= MADE) return 0;
  // The tap that the pixel read is for the pixel made.
  const int along = TOGETHER > 1 ? place % ALONG * TOGETHER + read / (2 * SUMMED) - made / (2 * KEPT) * SW
                                 : place % ALONG * DW;
  if (along < 0 || along % DW || along > (KW - 1) * DW) return 0;
  const int tap = place / ALONG * KW + along / DW, inner = read % (2 * SUMMED), kept = made % (2 * KEPT);
  const int part = inner / SUMMED, block = inner % SUMMED, kept_part = kept / KEPT, kept_block = kept % KEPT;
  if (first_slot && part != kept_part) return 0;
  const int of_weight = first_slot ? kept_part : part != kept_part;
  const word negative = part != kept_part && part == 1 - BACK ? 0x8000 : 0;
  const int p = BACK ? block : kept_block, q = BACK ? kept_block : block;
  const int weight_tap = BACK ? TAPS - 1 - tap : tap;
  return w[(p * TAPS + weight_tap) * 2 * (BACK ? KEPT : SUMMED) + of_weight * (BACK ? KEPT : SUMMED) + q] ^ negative;
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    product(const number* __restrict__ a, const number* __restrict__ w, stored* __restrict__ out, int images,
            int height, int width, int out_height, int out_width, int top, int left, int down, int across, int share,
            double lower) {
  extern __shared__ float4 room[];
  griddepcontrol_wait();
  number* factors = reinterpret_cast<number*>(room);  // as threads hold them: [PARTS][STEPS][MADE_EIGHTS][32][4]
  number* stages = factors + PARTS * STEPS * MADE_EIGHTS * 128;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slot = blockIdx.x, slots = gridDim.x;
  const int tiles = images * down * across, begin = blockIdx.y * share, end = min(begin + share, tiles);
  const size_t read_apart = (size_t)images * height * width * 2 * SUMMED, weights = SUMMED * KEPT * TAPS * 2;
  const size_t rows = (size_t)images * out_height * out_width;
  a += slot * read_apart;
  out += slot * rows * 2 * KEPT;

  if (READ % 8) {
    clear(stages, STAGES * HELD);
    __syncthreads();
  }
  Tile at(begin, down, across), asked = at;
  auto ask = [&](int tile, int stage) {
    if (tile < end)
      fetch<SUMMED, ROWS, COLUMNS, INPUTS>(stages + stage * HELD, a, slots * read_apart, asked.image,
                                           asked.top * SH - top, asked.left * SW - left, height, width);
    asked.next();
    cp_async_commit();
  };
  for (int ahead = 0; ahead < STAGES - 1; ++ahead) ask(begin + ahead, ahead);
  for (int i = threadIdx.x; i < PARTS * STEPS * MADE_EIGHTS * 64; i += THREADS) {
    const int half = i % 2, thread = i / 2 % 32, eighth = i / 64 % MADE_EIGHTS, step = i / 64 / MADE_EIGHTS % STEPS;
    const number* from = w + (i / 64 / MADE_EIGHTS / STEPS * slots + slot) * weights;
    const int made = eighth * 8 + thread / 4;
    const word low = factor(from, slot == 0, 2 * step + half, thread % 4 * 2, made);
    const word high = factor(from, slot == 0, 2 * step + half, thread % 4 * 2 + 1, made);
    reinterpret_cast<word*>(factors)[i] = low | high << 16;
  }
  int far[STEPS];  // from the first that a place reads, of what this thread gives addresses of
#pragma unroll
  for (int s = 0; s < STEPS; ++s) far[s] = reach(2 * s + lane / 16);

  for (int tile = begin, stage = 0; tile < end; ++tile, stage = (stage + 1) % STAGES, at.next()) {
    ask(tile + STAGES - 1, (stage + STAGES - 1) % STAGES);
    cp_async_wait<STAGES - 1>();
    __syncthreads();
    for (int group = warp; group < GROUPS; group += WARPS) {
      const number* place[AT_ONCE];
      float sums[AT_ONCE][MADE_EIGHTS][4] = {};
#pragma unroll
      for (int m = 0; m < AT_ONCE; ++m)
        place[m] = stages + stage * HELD + first_of((group * AT_ONCE + m) * 16 + lane % 16);
#if PARTS == 1
#pragma unroll
      for (int s = 0; s < STEPS; ++s) {
        word b[MADE_EIGHTS][2];
#pragma unroll
        for (int n = 0; n < MADE_EIGHTS; ++n) {
          const int2 both = reinterpret_cast<const int2*>(factors)[(s * MADE_EIGHTS + n) * 32 + lane];
          b[n][0] = both.x, b[n][1] = both.y;
        }
        word x[AT_ONCE][4];
#pragma unroll
        for (int m = 0; m < AT_ONCE; ++m) {
          read4<false>(x[m], place[m] + far[s]);
          if (2 * s + 1 >= SOURCES) x[m][2] = x[m][3] = 0;  // which has no factor, but may not be finite
        }
#pragma unroll
        for (int n = 0; n < MADE_EIGHTS; ++n)
#pragma unroll
          for (int m = 0; m < AT_ONCE; ++m) multiply(sums[m][n], x[m], b[n]);
      }
#else
      // Steps of 32 numbers are added up outside the tensor cores, which cut sums off where float32 would round them.
#pragma unroll
      for (int s0 = 0; s0 < STEPS; s0 += 2) {
        float some[AT_ONCE][MADE_EIGHTS][4] = {};
#pragma unroll
        for (int s = s0; s < min(s0 + 2, STEPS); ++s) {
          word x[2][AT_ONCE][4];
#pragma unroll
          for (int part = 0; part < 2; ++part)
#pragma unroll
            for (int m = 0; m < AT_ONCE; ++m) {
              read4<false>(x[part][m], place[m] + far[s] + part * EIGHTS * INPUTS * 8);
              if (2 * s + 1 >= SOURCES) x[part][m][2] = x[part][m][3] = 0;
            }
#pragma unroll
          for (int n = 0; n < MADE_EIGHTS; ++n) {
            const int2* both = reinterpret_cast<const int2*>(factors) + (s * MADE_EIGHTS + n) * 32 + lane;
            const int2 high = both[0], rest = both[STEPS * MADE_EIGHTS * 32];
            const word b[2] = {(word)high.x, (word)high.y}, b_rest[2] = {(word)rest.x, (word)rest.y};
#pragma unroll
            for (int m = 0; m < AT_ONCE; ++m) multiply(some[m][n], x[1][m], b);
#pragma unroll
            for (int m = 0; m < AT_ONCE; ++m) multiply(some[m][n], x[0][m], b_rest);
#pragma unroll
            for (int m = 0; m < AT_ONCE; ++m) multiply(some[m][n], x[0][m], b);
          }
        }
#pragma unroll
        for (int m = 0; m < AT_ONCE; ++m)
#pragma unroll
          for (int n = 0; n < MADE_EIGHTS; ++n)
#pragma unroll
            for (int c = 0; c < 4; ++c) sums[m][n][c] += some[m][n][c];
      }
#endif
#if WHOLE
      const int known = min(HIGH, out_height - at.top) * WIDE, first = group * AT_ONCE * 16 + lane / 4;
      stored* line = out + ((size_t)(at.image * out_height + at.top) * WIDE + first) * MADE + lane % 4 * 2;
#endif
#pragma unroll
      for (int i = 0; i < 2 * AT_ONCE; ++i) {  // eights of places
#if WHOLE
        if (first + 8 * i >= known) continue;
        stored* to = line + i * 8 * MADE;
        const int inside = MADE;
#else
        const int output = group * AT_ONCE * 16 + i * 8 + lane / 4;
        const int y = at.top + output / WIDE, x = at.left + output % WIDE * TOGETHER;
        if (output >= OUTPUTS || y >= out_height || x >= out_width) continue;
        stored* to = out + ((size_t)(at.image * out_height + y) * out_width + x) * 2 * KEPT + lane % 4 * 2;
        const int inside = TOGETHER > 1 ? min(MADE, (out_width - x) * 2 * KEPT) : MADE;  // numbers, in the image
#endif
#pragma unroll
        for (int n = 0; n < MADE_EIGHTS; ++n) {
          const float* pair = sums[i / 2][n] + i % 2 * 2;
          if (n * 8 + lane % 4 * 2 >= inside) continue;
#if PARTS == 2
          *reinterpret_cast<float2*>(to + n * 8) = make_float2(pair[0] * (float)lower, pair[1] * (float)lower);
#else
          *reinterpret_cast<word*>(to + n * 8) = pair_of(pair[0] * (float)lower, pair[1] * (float)lower);
#endif
        }
      }
    }
    __syncthreads();
  }
}
