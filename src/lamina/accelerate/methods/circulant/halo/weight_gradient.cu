// The weight gradient of a convolution of spectra, for each frequency: output gradients times conjugate inputs,
// summed over all pixels.
//
// ldmatrix transposes both operands, so packs are the K dimension. Thread blocks sum some of the tiles each; their
// split-K partials [split_k][slots][p][taps][2][q] are reduced afterwards, in a fixed order.
//
// Macros besides those of tiles.cu: WARPS_M, warps that divide the rows of the matmul among them; WARPS / WARPS_M
// divide the packs.

constexpr int PADDED = (TILE_PACKS + 31) / 32 * 32;
constexpr int STAGE_ELEMENTS = TERMS * (IN_VECTORS * INPUT_PACKS + OUT_VECTORS * PADDED) * 8;
constexpr int M_TILES = (K_STEPS + WARPS_M - 1) / WARPS_M;  // MMA tiles of 16 source elements of a warp
constexpr int WARPS_K = WARPS / WARPS_M;
constexpr int OUT_COLUMNS = OUT_VECTORS * 8;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    weight_gradient(const element* __restrict__ dy, const element* __restrict__ x, float* __restrict__ out, int images,
                    int height, int width, int out_height, int out_width, int top, int left, int tiles_y, int tiles_x,
                    int tiles_per_block) {
  extern __shared__ float4 shared[];
  griddepcontrol_wait();
  element* stages = reinterpret_cast<element*>(shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slot = blockIdx.x, slots = gridDim.x;
  const int tiles = images * tiles_y * tiles_x;
  const int begin = blockIdx.y * tiles_per_block, end = min(begin + tiles_per_block, tiles);
  const size_t x_slot_stride = (size_t)images * height * width * 2 * IN_BLOCKS;
  const size_t dy_slot_stride = (size_t)images * out_height * out_width * 2 * OUT_BLOCKS;
  x += slot * x_slot_stride;
  dy += slot * dy_slot_stride;
  zero(stages, STAGES * STAGE_ELEMENTS);
  __syncthreads();
  Tile next(begin, tiles_y, tiles_x);
  auto load_stage = [&](int tile, int stage) {
    if (tile < end) {
      element* to = stages + stage * STAGE_ELEMENTS;
      load_tile<IN_BLOCKS, INPUT_HEIGHT, INPUT_WIDTH, INPUT_PACKS>(
          to, x, slots * x_slot_stride, next.image, next.top * SH - top, next.left * SW - left, height, width);
      load_tile<OUT_BLOCKS, TILE_HEIGHT, TILE_WIDTH, PADDED>(
          to + TERMS * IN_VECTORS * INPUT_PACKS * 8, dy, slots * dy_slot_stride, next.image, next.top, next.left,
          out_height, out_width);
    }
    next.next();
    cp_async_commit();
  };
  // Rows of the matmul are the vectors of a window, two per MMA tile; columns are elements of output gradients.
  const int first = warp % WARPS_M * M_TILES;
  int offsets[M_TILES];
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) offsets[m] = source_offset(2 * (first + m) + lane / 8 % 2);
  float sums[M_TILES][OUT_VECTORS][4] = {};

  for (int ahead = 0; ahead < STAGES - 1; ++ahead) load_stage(begin + ahead, ahead);
  for (int tile = begin, stage = 0; tile < end; ++tile, stage = (stage + 1) % STAGES) {
    load_stage(tile + STAGES - 1, (stage + STAGES - 1) % STAGES);
    cp_async_wait<STAGES - 1>();
    __syncthreads();
    const element* inputs = stages + stage * STAGE_ELEMENTS;
    const element* gradients = inputs + TERMS * IN_VECTORS * INPUT_PACKS * 8;
    for (int group = warp / WARPS_M; group < PADDED / 32; group += WARPS_K) {
      word b[TERMS][OUT_VECTORS][4];  // of 32 packs
#pragma unroll
      for (int term = 0; term < TERMS; ++term)
#pragma unroll
        for (int n = 0; n < OUT_VECTORS; ++n)
          ldmatrix_x4<true>(b[term][n], gradients + ((term * OUT_VECTORS + n) * PADDED + group * 32 + lane) * 8);
      const element* pack[2];
#pragma unroll
      for (int s = 0; s < 2; ++s) pack[s] = inputs + pack_offset(group * 32 + s * 16 + lane / 16 * 8 + lane % 8);
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) {
#if TERMS == 1
        word a[2][4];
#pragma unroll
        for (int s = 0; s < 2; ++s) ldmatrix_x4<true>(a[s], pack[s] + offsets[m]);
#pragma unroll
        for (int s = 0; s < 2; ++s)
#pragma unroll
          for (int n = 0; n < OUT_VECTORS; ++n) mma(sums[m][n], a[s], b[0][n] + 2 * s);
#else
        float partial[OUT_VECTORS][4] = {};
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          word a[2][4];
#pragma unroll
          for (int term = 0; term < 2; ++term)
            ldmatrix_x4<true>(a[term], pack[s] + offsets[m] + term * IN_VECTORS * INPUT_PACKS * 8);
#pragma unroll
          for (int n = 0; n < OUT_VECTORS; ++n) {
            mma(partial[n], a[1], b[0][n] + 2 * s);
            mma(partial[n], a[0], b[1][n] + 2 * s);
            mma(partial[n], a[0], b[0][n] + 2 * s);
          }
        }
#pragma unroll
        for (int n = 0; n < OUT_VECTORS; ++n)
#pragma unroll
          for (int c = 0; c < 4; ++c) sums[m][n][c] += partial[n][c];
#endif
      }
    }
    __syncthreads();
  }

  cp_async_wait<0>();
  float* total = reinterpret_cast<float*>(shared);  // [K_STEPS * 16][OUT_COLUMNS], accumulated by one warp after the other
  for (int warp_k = 0; warp_k < WARPS_K; ++warp_k) {
    __syncthreads();
    if (warp / WARPS_M != warp_k) continue;
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
      for (int n = 0; n < OUT_VECTORS; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          float* sum = total + ((first + m) * 16 + c / 2 * 8 + lane / 4) * OUT_COLUMNS + n * 8 + lane % 4 * 2 + c % 2;
          if (first + m < K_STEPS) *sum = warp_k ? *sum + sums[m][n][c] : sums[m][n][c];
        }
  }
  __syncthreads();
  out += ((size_t)blockIdx.y * slots + slot) * OUT_BLOCKS * TAPS * 2 * IN_BLOCKS;
  for (int i = threadIdx.x; i < OUT_BLOCKS * TAPS * IN_BLOCKS; i += THREADS) {
    const int q = i % IN_BLOCKS, tap = i / IN_BLOCKS % TAPS, p = i / IN_BLOCKS / TAPS;
    auto sum_of = [&](int part, int gradient_part) {
      float sum = 0;
      for (int pixel = 0; pixel < PACK_SIZE; ++pixel) {  // of the output pack
        const int source = PACK_SIZE > 1 ? tap % KW * DW + pixel * SW : tap % KW;  // the input pixel of its tap
        const int row = (source % PACK_SIZE * 2 + part) * IN_BLOCKS + q;
        const int column = (pixel * 2 + gradient_part) * OUT_BLOCKS + p;
        sum += total[((tap / KW * WINDOW_PACKS + source / PACK_SIZE) * IN_VECTORS * 8 + row) * OUT_COLUMNS + column];
      }
      return sum;
    };
    // The first slot holds two real frequencies.
    float* to = out + (p * TAPS + tap) * 2 * IN_BLOCKS + q;
    to[0] = slot ? sum_of(0, 0) + sum_of(1, 1) : sum_of(0, 0);
    to[IN_BLOCKS] = slot ? sum_of(0, 1) - sum_of(1, 0) : sum_of(1, 1);
  }
}
