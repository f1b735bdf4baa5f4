// Spectra of weights as MMA operands of fused_rows, for the product and for the input gradient.
//
// If rows are SCALED, weights are scaled by their amax, of which `partial_amax` has parts, and their exponent follows
// the spectra.
//
// Macros besides those of transforms.cu: WEIGHT_TYPE, the dtype of weights; OUT_BLOCKS and IN_BLOCKS, p and q.

typedef Element<WEIGHT_TYPE>::type weight_t;

constexpr int IN_QUADS = (IN_BLOCKS + 3) / 4, OUT_QUADS = (OUT_BLOCKS + 3) / 4;
constexpr int OUT_GROUPS = (OUT_BLOCKS + 7) / 8, IN_GROUPS = (IN_BLOCKS + 7) / 8;

// A thread block has 8 by 4 blocks of weights, one a lane, and four neighbouring slots; warps share the sums.
// `eigenbasis` is [K][SLOTS][2]: of each element and slot, the real and imaginary part.
extern "C" __global__ void __launch_bounds__(THREADS)
    weight_spectra(const weight_t* __restrict__ w, const float* __restrict__ eigenbasis, word* __restrict__ forward,
                   word* __restrict__ backward
#if SCALED
                   , const float* __restrict__ partial_amax, int partials
#endif
    ) {
  __shared__ float held[32][K + 1];
  __shared__ float4 basis[K][2];
  __shared__ float parts[WARPS][8][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, four = blockIdx.z;
  for (int i = threadIdx.x; i < 2 * K; i += THREADS)
    basis[i / 2][i % 2] = reinterpret_cast<const float4*>(eigenbasis)[i / 2 * (SLOTS / 2) + four * 2 + i % 2];
  const int p0 = blockIdx.x * 8, q0 = blockIdx.y * 4;
  auto read_weights = [&] {
#pragma unroll 16
    for (int i = threadIdx.x; i < 32 * K; i += THREADS) {
      const int pair = i / K, p = p0 + pair / 4, q = q0 + pair % 4;
      const bool inside = p < OUT_BLOCKS && q < IN_BLOCKS;
      held[pair][i % K] = inside ? to_float<WEIGHT_TYPE>(w[(p * IN_BLOCKS + q) * K + i % K]) : 0;
    }
  };
  if (SCALED) read_weights();  // the preceding kernel has read them, so they are complete
  griddepcontrol_wait();
  launch_dependents();
  if (!SCALED) read_weights();
  float scale = 1;
#if SCALED
  float amax = 0;
  for (int i = lane; i < partials; i += 32) amax = fmaxf(amax, partial_amax[i]);
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) amax = fmaxf(amax, from_neighbour(amax, mask));
  const int exponent = max(LEAST_EXPONENT, exponent_of(amax));
  scale = power_of_two(WEIGHT_TARGET - exponent);
  if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x < 4) {  // all words of a unit
    forward[OUT_GROUPS * (SLOTS / 8) * IN_QUADS * 256 + threadIdx.x] = exponent;
    backward[IN_GROUPS * (SLOTS / 8) * OUT_QUADS * 256 + threadIdx.x] = exponent;
  }
#endif
  __syncthreads();
  float sums[8] = {};
#pragma unroll 8
  for (int i = 0; i < K / WARPS; ++i) {
    const int t = warp * (K / WARPS) + i;
    const float4 a = basis[t][0], b = basis[t][1];
    const float element = held[lane][t] * scale;
    sums[0] += a.x * element, sums[1] += a.y * element, sums[2] += a.z * element, sums[3] += a.w * element;
    sums[4] += b.x * element, sums[5] += b.y * element, sums[6] += b.z * element, sums[7] += b.w * element;
  }
#pragma unroll
  for (int s = 0; s < 8; ++s) parts[warp][s][lane] = sums[s];
  __syncthreads();
  const int p = p0 + lane / 4, q = q0 + lane % 4, eight = four / 2, half = four % 2;
  for (int s = warp; s < 4; s += WARPS) {
    float real = 0, imaginary = 0;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) real += parts[i][2 * s][lane], imaginary += parts[i][2 * s + 1][lane];
    const word plain = pack2(real, imaginary), conjugate = four == 0 && s == 0 ? plain : plain ^ 0x80000000u;
    if (q / 4 < IN_QUADS)
      forward[((((p / 8 * (SLOTS / 8) + eight) * IN_QUADS + q / 4) * 2 + half) * 32 + p % 8 * 4 + q % 4) * 4 + s] = plain;
    if (p / 4 < OUT_QUADS)
      backward[((((q / 8 * (SLOTS / 8) + eight) * OUT_QUADS + p / 4) * 2 + half) * 32 + q % 8 * 4 + p % 4) * 4 + s] =
          conjugate;
  }
}
