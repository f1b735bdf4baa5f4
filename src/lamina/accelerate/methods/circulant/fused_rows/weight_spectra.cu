// Spectra of weights as MMA operands of fused_rows, for the product and for the input gradient.
//
// Macros besides those of transforms.cu: WEIGHT_TYPE, the dtype of weights; OUT_BLOCKS and IN_BLOCKS, p and q.

typedef Element<WEIGHT_TYPE>::type weight_t;

constexpr int IN_QUADS = (IN_BLOCKS + 3) / 4, OUT_QUADS = (OUT_BLOCKS + 3) / 4;
constexpr int IN_GROUPS = (IN_BLOCKS + 7) / 8, OUT_GROUPS = (OUT_BLOCKS + 7) / 8;

// A thread block has 8 by 4 blocks of weights, one a lane; each thread computes four neighbouring slots.
// `eigenbasis` is [K][SLOTS][2]: of each element and slot, the real and imaginary part.
extern "C" __global__ void __launch_bounds__(THREADS)
    weight_spectra(const weight_t* __restrict__ w, const float* __restrict__ eigenbasis, word4* __restrict__ forward,
                   word4* __restrict__ backward) {
  __shared__ float held[32][K + 1];
  griddepcontrol_wait();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int p0 = blockIdx.x * 8, q0 = blockIdx.y * 4;
  for (int i = threadIdx.x; i < 32 * K; i += THREADS) {
    const int pair = i / K, p = p0 + pair / 4, q = q0 + pair % 4;
    held[pair][i % K] = p < OUT_BLOCKS && q < IN_BLOCKS ? to_float<WEIGHT_TYPE>(w[(p * IN_BLOCKS + q) * K + i % K]) : 0;
  }
  __syncthreads();
  const int p = p0 + lane / 4, q = q0 + lane % 4;
  for (int four = warp; four < SLOTS / 4; four += WARPS) {
    float sums[8] = {};
#pragma unroll 8
    for (int t = 0; t < K; ++t) {
      const float4* row = reinterpret_cast<const float4*>(eigenbasis + (t * SLOTS + four * 4) * 2);
      const float4 a = row[0], b = row[1];
      const float element = held[lane][t];
      sums[0] += a.x * element, sums[1] += a.y * element, sums[2] += a.z * element, sums[3] += a.w * element;
      sums[4] += b.x * element, sums[5] += b.y * element, sums[6] += b.z * element, sums[7] += b.w * element;
    }
    word4 plain, conjugate;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      plain.at[s] = pack2(sums[2 * s], sums[2 * s + 1]);
      conjugate.at[s] = four == 0 && s == 0 ? plain.at[s] : plain.at[s] ^ 0x80000000u;
    }
    const int eight = four / 2, half = four % 2;
    if (q / 4 < IN_QUADS)
      forward[(((p / 8 * (SLOTS / 8) + eight) * IN_QUADS + q / 4) * 2 + half) * 32 + p % 8 * 4 + q % 4] = plain;
    if (p / 4 < OUT_QUADS)
      backward[(((q / 8 * (SLOTS / 8) + eight) * OUT_QUADS + p / 4) * 2 + half) * 32 + q % 8 * 4 + p % 4] = conjugate;
  }
}
