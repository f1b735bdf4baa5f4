// A product of few rows with 8-bit weights, on tensor cores: y[n, m] = sum over k of w[m, k] * x[n, k], where reading
// the weights is what takes time.
//
// A warp has 16 * HIGH outputs, and WARPS warps of a block share the sums of each, so that nothing is left to add up
// between blocks; warps of different tiles find x in the first cache. Each thread reads 16 neighbouring codes of a row at
// once and widens them to bfloat16 in registers: which value of k a tensor core sees where does not matter, as long as x
// comes in the same order. Of many rows a warp has so much to do that its operands come to shared memory ahead of it,
// where a thread finds what it asked for itself; the compiler moves loads into registers down to where they are used.
//
// Macros: EXPONENT, bits of a code; HIGH; TILES, of 16 * HIGH outputs; ROWS, of x, 8 or 16; WARPS; STAGES, steps whose
// operands are in shared memory, or 0; LIFT, bits of the bfloat16 that x is multiplied by; BIAS, whether there is one.

#define THREADS (32 * WARPS * TILES)
#define OUTPUTS (16 * HIGH * TILES)
#define CHUNK 64          // values of k of a warp's step
#define STEP (WARPS * CHUNK)
#define PITCH (OUTPUTS + 4)  // keeps apart the banks of threads that store at a time
#define EIGHTS (ROWS / 8)
#define SLOTS (2 * HIGH + 2 * EIGHTS)  // of a Step

typedef unsigned int word;
struct alignas(16) Words {
  word at[4];
};

__device__ __forceinline__ Words streamed(const unsigned char* from) {
  Words w;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.at[0]), "=r"(w.at[1]), "=r"(w.at[2]), "=r"(w.at[3])
               : "l"(from));
  return w;
}

__device__ __forceinline__ Words shared_by_blocks(const unsigned short* from) {
  Words w;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.at[0]), "=r"(w.at[1]), "=r"(w.at[2]), "=r"(w.at[3])
               : "l"(from));
  return w;
}

// Copies 16 bytes to shared memory, or zeros; nothing waits for it.
__device__ __forceinline__ void fetch_streamed(Words* to, const void* from, bool known) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
               "l"(from), "r"(known ? 16 : 0));
}
__device__ __forceinline__ void fetch_cached(Words* to, const void* from, bool known) {
  asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
               "l"(from), "r"(known ? 16 : 0));
}

// Codes 0 and 2, or 1 and 3, of a word as bfloat16 that are too small by a constant power of two. The products count
// as shifts to the left on units that are idle otherwise.
__device__ __forceinline__ word even_codes(word w) {
  return (w & 0x007f007fu) * (1u << EXPONENT) + (w & 0x00800080u) * 256u;
}
__device__ __forceinline__ word odd_codes(word w) {
  return (w & 0x7f007f00u) >> (8 - EXPONENT) | (w & 0x80008000u);
}

__device__ __forceinline__ word lifted(word pair) {
  word product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(pair), "r"(LIFT * 0x10001u));
  return product;
}

__device__ __forceinline__ void multiply(float (&sums)[4], const word (&w)[4], word x0, word x1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x0), "r"(x1));
}

__device__ __forceinline__ unsigned short rounded(float x) {
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

struct Step {
  Words w[HIGH][2], x[EIGHTS][2];
};

extern "C" __global__ void __launch_bounds__(THREADS)
    linear(const unsigned char* __restrict__ codes, const unsigned short* __restrict__ x,
           const float* __restrict__ scale, const unsigned short* __restrict__ bias, unsigned short* __restrict__ y,
           int outputs, int rows, int inputs, double lower) {
#if STAGES
  extern __shared__ Words slots[];  // a Step of each thread for every stage; and later the sums
  float(*shares)[ROWS][PITCH] = reinterpret_cast<float(*)[ROWS][PITCH]>(slots);
#else
  __shared__ float shares[WARPS][ROWS][PITCH];
#endif
  const int warp = threadIdx.x / 32 % WARPS, tile = threadIdx.x / 32 / WARPS;
  const int group = threadIdx.x % 32 / 4, within = threadIdx.x % 4;
  const int first = blockIdx.x * OUTPUTS, row0 = blockIdx.y * ROWS;

  // Asked for now, needed last.
  const int m = threadIdx.x % OUTPUTS, n = threadIdx.x / OUTPUTS, output = first + m;
  const bool writes = n < ROWS && output < outputs && row0 + n < rows;
  const float scaled = writes ? scale[output] * (float)lower : 0;
#if BIAS
  const float offset = writes ? __int_as_float(bias[output] << 16) : 0;
#else
  const float offset = 0;
#endif

  const unsigned char* from[HIGH][2];
  const unsigned short* of_x[EIGHTS];
  for (int t = 0; t < HIGH; ++t)
    for (int h = 0; h < 2; ++h)
      from[t][h] = codes + (size_t)min(first + (tile * HIGH + t) * 16 + h * 8 + group, outputs - 1) * inputs;
  for (int i = 0; i < EIGHTS; ++i) of_x[i] = x + (size_t)min(row0 + i * 8 + group, rows - 1) * inputs;
  float sums[HIGH][EIGHTS][4] = {};

  auto use = [&](const Step& step) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      word x[EIGHTS][2];
      for (int i = 0; i < EIGHTS; ++i) {
        const Words& four = step.x[i][j / 2];
        const word here = four.at[j % 2 * 2], there = four.at[j % 2 * 2 + 1];
        x[i][0] = lifted(__byte_perm(here, there, 0x5410));
        x[i][1] = lifted(__byte_perm(here, there, 0x7632));
      }
      for (int t = 0; t < HIGH; ++t) {
        const word low = step.w[t][0].at[j], high = step.w[t][1].at[j];
        const word w[4] = {even_codes(low), even_codes(high), odd_codes(low), odd_codes(high)};
        for (int i = 0; i < EIGHTS; ++i) multiply(sums[t][i], w, x[i][0], x[i][1]);
      }
    }
  };

#if STAGES
  auto fetch = [&](int k0, int stage) {
    const int k = k0 + 16 * within;
    Words* to = slots + stage * SLOTS * THREADS + threadIdx.x;
    for (int t = 0; t < HIGH; ++t)
      for (int h = 0; h < 2; ++h, to += THREADS) fetch_streamed(to, from[t][h] + k, k < inputs);
    for (int i = 0; i < EIGHTS; ++i)
      for (int h = 0; h < 2; ++h, to += THREADS) fetch_cached(to, of_x[i] + k + 8 * h, k < inputs);
    asm volatile("cp.async.commit_group;");
  };
  auto fetched = [&](int stage) {
    Step step;
    const Words* at = slots + stage * SLOTS * THREADS + threadIdx.x;
    for (int t = 0; t < HIGH; ++t)
      for (int h = 0; h < 2; ++h, at += THREADS) step.w[t][h] = *at;
    for (int i = 0; i < EIGHTS; ++i)
      for (int h = 0; h < 2; ++h, at += THREADS) step.x[i][h] = *at;
    return step;
  };
  int ahead = warp * CHUNK, stage = 0;
  for (int s = 0; s < STAGES - 1; ++s, ahead += STEP) fetch(ahead, s);
  for (int k0 = warp * CHUNK; k0 < inputs; k0 += STEP, ahead += STEP) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    fetch(ahead, stage ? stage - 1 : STAGES - 1);
    use(fetched(stage));
    stage = stage == STAGES - 1 ? 0 : stage + 1;
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
#else
  const Words none = {};
  auto read = [&](int k0, Step& step) {
    const int k = k0 + 16 * within;
    const bool known = k < inputs;
    for (int t = 0; t < HIGH; ++t)
      for (int h = 0; h < 2; ++h) step.w[t][h] = known ? streamed(from[t][h] + k) : none;
    for (int i = 0; i < EIGHTS; ++i)
      for (int h = 0; h < 2; ++h) step.x[i][h] = known ? shared_by_blocks(of_x[i] + k + 8 * h) : none;
  };
  Step now, next;
  read(warp * CHUNK, now);
  for (int k0 = warp * CHUNK; k0 < inputs; k0 += STEP) {
    read(k0 + STEP, next);
    use(now);
    now = next;
  }
#endif

  for (int t = 0; t < HIGH; ++t)
    for (int i = 0; i < EIGHTS; ++i)
      for (int c = 0; c < 4; ++c)
        shares[warp][i * 8 + within * 2 + c % 2][(tile * HIGH + t) * 16 + c / 2 * 8 + group] = sums[t][i][c];
  __syncthreads();
  if (!writes) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) sum += shares[w][n][m];
  y[(size_t)(row0 + n) * outputs + output] = rounded(sum * scaled + offset);
}
