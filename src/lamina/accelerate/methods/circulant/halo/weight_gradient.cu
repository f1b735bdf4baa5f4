// Output gradients times conjugate spectra over a sliding window, summed over all pixels, frequency by frequency.
//
// Tensor cores turn both factors while they read them, so places are what they sum. Blocks have shares of the tiles,
// [shares][slots][p][taps][2][q], which are added afterwards, in a fixed order.
//
// Macros besides those of pixels.cu: SHARES, warps that share out the rows of the product among them; the others share
// out places.

constexpr int PADDED = (OUTPUTS + 31) / 32 * 32;
constexpr int HELD = PARTS * (EIGHTS * INPUTS + MADE_EIGHTS * PADDED) * 8;
constexpr int SUMS = (STEPS + SHARES - 1) / SHARES;  // sixteens of sources of a warp
constexpr int SIDE = WARPS / SHARES;                 // warps that share out the places
constexpr int ACROSS = MADE_EIGHTS * 8;

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    weight_gradient(const number* __restrict__ dy, const number* __restrict__ x, float* __restrict__ out, int images,
                    int height, int width, int out_height, int out_width, int top, int left, int down, int across,
                    int share) {
  extern __shared__ float4 room[];
  griddepcontrol_wait();
  number* stages = reinterpret_cast<number*>(room);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slot = blockIdx.x, slots = gridDim.x;
  const int tiles = images * down * across, begin = blockIdx.y * share, end = min(begin + share, tiles);
  const size_t x_apart = (size_t)images * height * width * 2 * SUMMED;
  const size_t dy_apart = (size_t)images * out_height * out_width * 2 * KEPT;
  x += slot * x_apart;
  dy += slot * dy_apart;
  clear(stages, STAGES * HELD);
  __syncthreads();
  Tile asked(begin, down, across);
  auto ask = [&](int tile, int stage) {
    if (tile < end) {
      number* to = stages + stage * HELD;
      fetch<SUMMED, ROWS, COLUMNS, INPUTS>(to, x, slots * x_apart, asked.image, asked.top * SH - top,
                                           asked.left * SW - left, height, width);
      fetch<KEPT, HIGH, WIDE, PADDED>(to + PARTS * EIGHTS * INPUTS * 8, dy, slots * dy_apart, asked.image, asked.top,
                                      asked.left, out_height, out_width);
    }
    asked.next();
    cp_async_commit();
  };
  // Rows of the products are the eights of a window's places, two to a tile; columns are those of output gradients.
  const int first = warp % SHARES * SUMS;
  int far[SUMS];
#pragma unroll
  for (int m = 0; m < SUMS; ++m) far[m] = reach(2 * (first + m) + lane / 8 % 2);
  float sums[SUMS][MADE_EIGHTS][4] = {};

  for (int ahead = 0; ahead < STAGES - 1; ++ahead) ask(begin + ahead, ahead);
  for (int tile = begin, stage = 0; tile < end; ++tile, stage = (stage + 1) % STAGES) {
    ask(tile + STAGES - 1, (stage + STAGES - 1) % STAGES);
    cp_async_wait<STAGES - 1>();
    __syncthreads();
    const number* inputs = stages + stage * HELD;
    const number* gradients = inputs + PARTS * EIGHTS * INPUTS * 8;
    for (int group = warp / SHARES; group < PADDED / 32; group += SIDE) {
      word b[PARTS][MADE_EIGHTS][4];  // of 32 places
#pragma unroll
      for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int n = 0; n < MADE_EIGHTS; ++n)
          read4<true>(b[part][n], gradients + ((part * MADE_EIGHTS + n) * PADDED + group * 32 + lane) * 8);
      const number* place[2];
#pragma unroll
      for (int s = 0; s < 2; ++s) place[s] = inputs + first_of(group * 32 + s * 16 + lane / 16 * 8 + lane % 8);
#pragma unroll
      for (int m = 0; m < SUMS; ++m) {
#if PARTS == 1
        word a[2][4];
#pragma unroll
        for (int s = 0; s < 2; ++s) read4<true>(a[s], place[s] + far[m]);
#pragma unroll
        for (int s = 0; s < 2; ++s)
#pragma unroll
          for (int n = 0; n < MADE_EIGHTS; ++n) multiply(sums[m][n], a[s], b[0][n] + 2 * s);
#else
        float some[MADE_EIGHTS][4] = {};
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          word a[2][4];
#pragma unroll
          for (int part = 0; part < 2; ++part)
            read4<true>(a[part], place[s] + far[m] + part * EIGHTS * INPUTS * 8);
#pragma unroll
          for (int n = 0; n < MADE_EIGHTS; ++n) {
            multiply(some[n], a[1], b[0][n] + 2 * s);
            multiply(some[n], a[0], b[1][n] + 2 * s);
            multiply(some[n], a[0], b[0][n] + 2 * s);
          }
        }
#pragma unroll
        for (int n = 0; n < MADE_EIGHTS; ++n)
#pragma unroll
          for (int c = 0; c < 4; ++c) sums[m][n][c] += some[n][c];
#endif
      }
    }
    __syncthreads();
  }

  cp_async_wait<0>();
  float* total = reinterpret_cast<float*>(room);  // [STEPS * 16][ACROSS], of warps in turn
  for (int turn = 0; turn < SIDE; ++turn) {
    __syncthreads();
    if (warp / SHARES != turn) continue;
#pragma unroll
    for (int m = 0; m < SUMS; ++m)
#pragma unroll
      for (int n = 0; n < MADE_EIGHTS; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          float* at = total + ((first + m) * 16 + c / 2 * 8 + lane / 4) * ACROSS + n * 8 + lane % 4 * 2 + c % 2;
          if (first + m < STEPS) *at = turn ? *at + sums[m][n][c] : sums[m][n][c];
        }
  }
  __syncthreads();
  out += ((size_t)blockIdx.y * slots + slot) * KEPT * TAPS * 2 * SUMMED;
  for (int i = threadIdx.x; i < KEPT * TAPS * SUMMED; i += THREADS) {
    const int q = i % SUMMED, tap = i / SUMMED % TAPS, p = i / SUMMED / TAPS;
    auto of = [&](int part, int gradient_part) {
      float sum = 0;
      for (int pixel = 0; pixel < TOGETHER; ++pixel) {  // the one that its tap reads, and itself
        const int met = TOGETHER > 1 ? tap % KW * DW + pixel * SW : tap % KW;
        const int read = (met % TOGETHER * 2 + part) * SUMMED + q, made = (pixel * 2 + gradient_part) * KEPT + p;
        sum += total[((tap / KW * ALONG + met / TOGETHER) * EIGHTS * 8 + read) * ACROSS + made];
      }
      return sum;
    };
    // The first slot holds two real frequencies.
    float* to = out + (p * TAPS + tap) * 2 * SUMMED + q;
    to[0] = slot ? of(0, 0) + of(1, 1) : of(0, 0);
    to[SUMMED] = slot ? of(0, 1) - of(1, 0) : of(1, 1);
  }
}
