// The spectral matmul of a convolution, one matmul per frequency: spectra times weights, or with BACKWARD_DATA
// output gradients times conjugate weights.
//
// Layouts are those of the Triton kernels: rows [TERMS][slots][pixels][2][blocks], weights
// [TERMS][slots][p][taps][2][q], real parts first. The result has one term.
//
// Macros besides those of tiles.cu: BACKWARD_DATA, whether this is the input gradient, which reverses the taps;
// FULL_LINES, whether tiles are as wide as images.

#if TERMS == 2
typedef float stored;
#else
typedef element stored;
#endif
constexpr int STAGE_ELEMENTS = TERMS * IN_VECTORS * INPUT_PACKS * 8;
constexpr int M_TILES = 2;  // MMA tiles of 16 packs that a warp computes together
constexpr int M_GROUPS = (TILE_PACKS + 16 * M_TILES - 1) / (16 * M_TILES);

// The weight from one input element of a pack to one output element of a pack.
__device__ __forceinline__ word weight_of(const element* w, bool first_slot, int source, int lane_pair, int made) {
  const int pack = source / IN_VECTORS, read = source % IN_VECTORS * 8 + lane_pair;
  if (source >= SOURCE_VECTORS || read >= IN_ELEMENTS || made >= OUT_ELEMENTS) return 0;
  // The distance in the line between the input pixel and the window of the output pixel, which determines the tap.
  const int distance = PACK_SIZE > 1
                           ? pack % WINDOW_PACKS * PACK_SIZE + read / (2 * IN_BLOCKS) - made / (2 * OUT_BLOCKS) * SW
                           : pack % WINDOW_PACKS * DW;
  if (distance < 0 || distance % DW || distance > (KW - 1) * DW) return 0;
  const int tap = pack / WINDOW_PACKS * KW + distance / DW;
  // Real (0) or imaginary (1) parts of input, output and weight.
  const int part = read % (2 * IN_BLOCKS) / IN_BLOCKS, block = read % IN_BLOCKS;
  const int out_part = made % (2 * OUT_BLOCKS) / OUT_BLOCKS, out_block = made % OUT_BLOCKS;
  if (first_slot && part != out_part) return 0;
  const int weight_part = first_slot ? out_part : part != out_part;
  const word sign = part != out_part && part == 1 - BACKWARD_DATA ? 0x8000 : 0;
  const int p = BACKWARD_DATA ? block : out_block, q = BACKWARD_DATA ? out_block : block;
  const int weight_tap = BACKWARD_DATA ? TAPS - 1 - tap : tap, blocks = BACKWARD_DATA ? OUT_BLOCKS : IN_BLOCKS;
  return w[(p * TAPS + weight_tap) * 2 * blocks + weight_part * blocks + q] ^ sign;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    spectral_matmul(const element* __restrict__ a, const element* __restrict__ w, stored* __restrict__ out, int images,
                    int height, int width, int out_height, int out_width, int top, int left, int tiles_y, int tiles_x,
                    int tiles_per_block, double output_scale) {
  extern __shared__ float4 shared[];
  griddepcontrol_wait();
  element* weight_tiles = reinterpret_cast<element*>(shared);  // in MMA register layout: [TERMS][K_STEPS][OUT_VECTORS][32][4]
  element* stages = weight_tiles + TERMS * K_STEPS * OUT_VECTORS * 128;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slot = blockIdx.x, slots = gridDim.x;
  const int tiles = images * tiles_y * tiles_x;
  const int begin = blockIdx.y * tiles_per_block, end = min(begin + tiles_per_block, tiles);
  const size_t slot_stride = (size_t)images * height * width * 2 * IN_BLOCKS;
  const size_t weights = IN_BLOCKS * OUT_BLOCKS * TAPS * 2;
  const size_t rows = (size_t)images * out_height * out_width;
  a += slot * slot_stride;
  out += slot * rows * 2 * OUT_BLOCKS;

  if (IN_ELEMENTS % 8) {
    zero(stages, STAGES * STAGE_ELEMENTS);
    __syncthreads();
  }
  Tile current(begin, tiles_y, tiles_x), next = current;
  auto load_stage = [&](int tile, int stage) {
    if (tile < end)
      load_tile<IN_BLOCKS, INPUT_HEIGHT, INPUT_WIDTH, INPUT_PACKS>(
          stages + stage * STAGE_ELEMENTS, a, slots * slot_stride, next.image, next.top * SH - top, next.left * SW - left,
          height, width);
    next.next();
    cp_async_commit();
  };
  for (int ahead = 0; ahead < STAGES - 1; ++ahead) load_stage(begin + ahead, ahead);
  for (int i = threadIdx.x; i < TERMS * K_STEPS * OUT_VECTORS * 64; i += THREADS) {
    const int half = i % 2, thread = i / 2 % 32, vector = i / 64 % OUT_VECTORS, step = i / 64 / OUT_VECTORS % K_STEPS;
    const element* from = w + (i / 64 / OUT_VECTORS / K_STEPS * slots + slot) * weights;
    const int made = vector * 8 + thread / 4;
    const word low = weight_of(from, slot == 0, 2 * step + half, thread % 4 * 2, made);
    const word high = weight_of(from, slot == 0, 2 * step + half, thread % 4 * 2 + 1, made);
    reinterpret_cast<word*>(weight_tiles)[i] = low | high << 16;
  }
  int offsets[K_STEPS];  // of the vectors whose addresses this thread passes to ldmatrix
#pragma unroll
  for (int s = 0; s < K_STEPS; ++s) offsets[s] = source_offset(2 * s + lane / 16);

  for (int tile = begin, stage = 0; tile < end; ++tile, stage = (stage + 1) % STAGES, current.next()) {
    load_stage(tile + STAGES - 1, (stage + STAGES - 1) % STAGES);
    cp_async_wait<STAGES - 1>();
    __syncthreads();
    for (int group = warp; group < M_GROUPS; group += WARPS) {
      const element* pack[M_TILES];
      float sums[M_TILES][OUT_VECTORS][4] = {};
#pragma unroll
      for (int m = 0; m < M_TILES; ++m)
        pack[m] = stages + stage * STAGE_ELEMENTS + pack_offset((group * M_TILES + m) * 16 + lane % 16);
#if TERMS == 1
#pragma unroll
      for (int s = 0; s < K_STEPS; ++s) {
        word b[OUT_VECTORS][2];
#pragma unroll
        for (int n = 0; n < OUT_VECTORS; ++n) {
          const int2 both = reinterpret_cast<const int2*>(weight_tiles)[(s * OUT_VECTORS + n) * 32 + lane];
          b[n][0] = both.x, b[n][1] = both.y;
        }
        word x[M_TILES][4];
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
          ldmatrix_x4<false>(x[m], pack[m] + offsets[s]);
          if (2 * s + 1 >= SOURCE_VECTORS) x[m][2] = x[m][3] = 0;  // no weight, but possibly nonfinite
        }
#pragma unroll
        for (int n = 0; n < OUT_VECTORS; ++n)
#pragma unroll
          for (int m = 0; m < M_TILES; ++m) mma(sums[m][n], x[m], b[n]);
      }
#else
      // Sums of 32 products are accumulated outside the tensor cores, which truncate sums where float32 rounds them.
#pragma unroll
      for (int s0 = 0; s0 < K_STEPS; s0 += 2) {
        float partial[M_TILES][OUT_VECTORS][4] = {};
#pragma unroll
        for (int s = s0; s < min(s0 + 2, K_STEPS); ++s) {
          word x[2][M_TILES][4];
#pragma unroll
          for (int term = 0; term < 2; ++term)
#pragma unroll
            for (int m = 0; m < M_TILES; ++m) {
              ldmatrix_x4<false>(x[term][m], pack[m] + offsets[s] + term * IN_VECTORS * INPUT_PACKS * 8);
              if (2 * s + 1 >= SOURCE_VECTORS) x[term][m][2] = x[term][m][3] = 0;
            }
#pragma unroll
          for (int n = 0; n < OUT_VECTORS; ++n) {
            const int2* both = reinterpret_cast<const int2*>(weight_tiles) + (s * OUT_VECTORS + n) * 32 + lane;
            const int2 hi = both[0], lo = both[K_STEPS * OUT_VECTORS * 32];
            const word b[2] = {(word)hi.x, (word)hi.y}, b_lo[2] = {(word)lo.x, (word)lo.y};
#pragma unroll
            for (int m = 0; m < M_TILES; ++m) mma(partial[m][n], x[1][m], b);
#pragma unroll
            for (int m = 0; m < M_TILES; ++m) mma(partial[m][n], x[0][m], b_lo);
#pragma unroll
            for (int m = 0; m < M_TILES; ++m) mma(partial[m][n], x[0][m], b);
          }
        }
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
#pragma unroll
          for (int n = 0; n < OUT_VECTORS; ++n)
#pragma unroll
            for (int c = 0; c < 4; ++c) sums[m][n][c] += partial[m][n][c];
      }
#endif
#if FULL_LINES
      const int valid = min(TILE_HEIGHT, out_height - current.top) * TILE_WIDTH, first = group * M_TILES * 16 + lane / 4;
      stored* line =
          out + ((size_t)(current.image * out_height + current.top) * TILE_WIDTH + first) * OUT_ELEMENTS + lane % 4 * 2;
#endif
#pragma unroll
      for (int i = 0; i < 2 * M_TILES; ++i) {  // 8 packs
#if FULL_LINES
        if (first + 8 * i >= valid) continue;
        stored* to = line + i * 8 * OUT_ELEMENTS;
        const int elements = OUT_ELEMENTS;
#else
        const int output = group * M_TILES * 16 + i * 8 + lane / 4;
        const int y = current.top + output / TILE_WIDTH, x = current.left + output % TILE_WIDTH * PACK_SIZE;
        if (output >= TILE_PACKS || y >= out_height || x >= out_width) continue;
        stored* to = out + ((size_t)(current.image * out_height + y) * out_width + x) * 2 * OUT_BLOCKS + lane % 4 * 2;
        // Elements of the pack within the image.
        const int elements = PACK_SIZE > 1 ? min(OUT_ELEMENTS, (out_width - x) * 2 * OUT_BLOCKS) : OUT_ELEMENTS;
#endif
#pragma unroll
        for (int n = 0; n < OUT_VECTORS; ++n) {
          const float* pair = sums[i / 2][n] + i % 2 * 2;
          if (n * 8 + lane % 4 * 2 >= elements) continue;
#if TERMS == 2
          *reinterpret_cast<float2*>(to + n * 8) =
              make_float2(pair[0] * (float)output_scale, pair[1] * (float)output_scale);
#else
          *reinterpret_cast<word*>(to + n * 8) = pack2(pair[0] * (float)output_scale, pair[1] * (float)output_scale);
#endif
        }
      }
    }
    __syncthreads();
  }
}
