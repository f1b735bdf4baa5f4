// Weight gradients from the split-K partials of weight_gradient.cu.
//
// Macros besides those of transforms.cu: WEIGHT_TYPE, the dtype of weights; OUT_BLOCKS and IN_BLOCKS, p and q; OUT_TILES and
// IN_TILES of weight_gradient.cu.

typedef Element<WEIGHT_TYPE>::type weight_t;

constexpr int IN_GROUPS = (IN_BLOCKS + 4 * IN_TILES - 1) / (4 * IN_TILES);

// Adds partials in a fixed order and transforms the sums back: 4 by 4 blocks of weights a thread block.
// `eigenbasis` is [K][SLOTS][2].
extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_weight_gradient(const float* __restrict__ partials, const float* __restrict__ eigenbasis,
                           weight_t* __restrict__ dw, int splits, int tiles) {
  __shared__ float sums[SLOTS][32];
  griddepcontrol_wait();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int half = blockIdx.x % 2, n = blockIdx.x / 2 % IN_TILES, m = blockIdx.x / 2 / IN_TILES % OUT_TILES;
  const int tile = blockIdx.x / (2 * IN_TILES * OUT_TILES);
  constexpr int TILE = SLOTS * OUT_TILES * IN_TILES * 64;
  for (int slot = warp; slot < SLOTS; slot += WARPS) {
    const float* from = partials + (size_t)tile * TILE + (((slot * OUT_TILES + m) * IN_TILES + n) * 2 + half) * 32 + lane;
    float sum = 0;
#pragma unroll 8
    for (int s = 0; s < splits; ++s) sum += from[(size_t)s * tiles * TILE];
    sums[slot][lane] = sum;
  }
  __syncthreads();
  const int p0 = (tile / IN_GROUPS * OUT_TILES + m) * 8 + half * 4, q0 = (tile % IN_GROUPS * IN_TILES + n) * 4;
  for (int i = threadIdx.x; i < 16 * K; i += THREADS) {
    const int pair = i / K, t = i % K, p = p0 + pair / 4, q = q0 + pair % 4;
    const int real = pair / 4 * 8 + pair % 4, imaginary = real + 4;
    if (p >= OUT_BLOCKS || q >= IN_BLOCKS) continue;
    const float2* basis = reinterpret_cast<const float2*>(eigenbasis) + t * SLOTS;
    float sum = 0;
#pragma unroll 8
    for (int f = 0; f < SLOTS; ++f) sum += basis[f].x * sums[f][real] + basis[f].y * sums[f][imaginary];
    dw[(p * IN_BLOCKS + q) * K + t] = from_float<WEIGHT_TYPE>(sum);
  }
}
