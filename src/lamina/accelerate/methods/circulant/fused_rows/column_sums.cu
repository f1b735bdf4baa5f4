// Sums over the 16 rows of an item, as gradients of biases are: a float32 for each column.

#if SCALED

// Each step adds the numbers of two lanes and leaves half of them to either, so that lanes end with different columns.
__device__ __forceinline__ void write_column_sums(float* to, const FloatRows& rows, int blocks) {
  constexpr int COUNT = 2 * CHUNKS * VECTOR, LEFT = COUNT > 8 ? COUNT / 8 : 1;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int b = 0; b < ITEM_BLOCKS; ++b) {
    float sums[COUNT];
#pragma unroll
    for (int i = 0; i < CHUNKS * VECTOR; ++i) {
      sums[i] = rows.first[b][0][i] + rows.first[b][1][i];
      sums[CHUNKS * VECTOR + i] = rows.mirrored[b][0][i] + rows.mirrored[b][1][i];
    }
    int first_left = 0;
#pragma unroll
    for (int step = 0; step < 3; ++step) {
      const int mask = 16 >> step, half = COUNT >> (step + 1);
      const bool upper = lane & mask;
      if (half == 0) {
        sums[0] += from_neighbour(sums[0], mask);
        continue;
      }
#pragma unroll
      for (int i = 0; i < half; ++i) {
        const float kept = upper ? sums[i + half] : sums[i], given = upper ? sums[i] : sums[i + half];
        sums[i] = kept + from_neighbour(given, mask);
      }
      first_left += upper ? half : 0;
    }
    if (b >= blocks) continue;
#pragma unroll
    for (int i = 0; i < LEFT; ++i) {
      const int at = first_left + i, c = at % (CHUNKS * VECTOR) / VECTOR;
      const int first = 4 * VECTOR * c + VECTOR * (lane % 4);
      to[b * K + (at < CHUNKS * VECTOR ? first : K - VECTOR - first) + at % VECTOR] = sums[i];
    }
  }
}

#else

// Tensor cores add the rows, which are transposed to be the second operand of a product with ones.
__device__ __forceinline__ void write_column_sums(float* to, const Rows& rows, int blocks) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int b = 0; b < ITEM_BLOCKS; ++b)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const word(&held)[2][HALF_WORDS] = half ? rows.mirrored[b] : rows.first[b];
      float sums[HALF_WORDS][4] = {};
#pragma unroll
      for (int i = 0; i < HALF_WORDS; ++i)
        mma16(sums[i], LAMINA_ONES, LAMINA_ONES, LAMINA_ONES, LAMINA_ONES, transposed(held[0][i]),
              transposed(held[1][i]));
      if (b >= blocks || lane / 4 != (2 * b + half) % 8) continue;  // all lanes of a column have its sum
#pragma unroll
      for (int i = 0; i < HALF_WORDS; ++i) {
        const int first = 4 * VECTOR * (2 * i / VECTOR) + VECTOR * (lane % 4);
        float* vector = to + b * K + (half ? K - VECTOR - first : first) + 2 * i % VECTOR;
        vector[0] = sums[i][0], vector[1] = sums[i][1];
      }
    }
}

#endif
