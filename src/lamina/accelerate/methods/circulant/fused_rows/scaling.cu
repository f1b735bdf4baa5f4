// Float32 rows as float16 under powers of two, which has the 10-bit mantissa of TF32.
//
// An item is 16 rows of ITEM_BLOCKS blocks. Each of its rows is scaled by its own amax as it is folded, so that a row
// is read once; the exponents of its items meet in shared memory, and items that were scaled further are multiplied by
// the rest, which is exact but for subnormal numbers. Exponents are even, so that most items of a row share one.
//
// Scaled elements stay below 2^TARGET. The transform multiplies them by less than 2^GROWTH, so spectra stay below 2^15.
// Values that are not finite have no exponent and keep what they are.

template <int NUMBER>
struct FloorLog2 {
  static constexpr int value = 1 + FloorLog2<NUMBER / 2>::value;
};
template <>
struct FloorLog2<1> {
  static constexpr int value = 0;
};

constexpr int GROWTH = (FloorLog2<K>::value + 1) / 2, TARGET = 15 - GROWTH;
constexpr int WEIGHT_TARGET = 15 - FloorLog2<K>::value;  // eigenvalues are sums of K weights
constexpr int NO_EXPONENT = -1000;                       // of zeros, and of values that are not finite
constexpr int LEAST_EXPONENT = -112;                     // scales of smaller rows would exceed float32

__device__ __forceinline__ float power_of_two(int exponent) {
  return __int_as_float((max(-126, min(exponent, 127)) + 127) << 23);
}

// A power of two as two factors, since it may exceed float32 where the product does not.
struct Power {
  float inner, outer;
};
__device__ __forceinline__ Power power(int exponent) {
  return {power_of_two(exponent / 2), power_of_two(exponent - exponent / 2)};
}

// The size of a finite number, else 0.
__device__ __forceinline__ float finite_size(float number) {
  return fabsf(number) < __int_as_float(0x7f800000) ? fabsf(number) : 0;
}

// An even exponent whose power of two is larger than `amax`.
__device__ __forceinline__ int exponent_of(float amax) {
  const int exponent = (__float_as_int(amax) >> 23) - 126;
  return amax == 0 ? NO_EXPONENT : max(LEAST_EXPONENT, exponent + (exponent & 1));
}

#if SCALED

// Like Rows, but as they are in memory.
struct FloatRows {
  float first[ITEM_BLOCKS][2][2 * HALF_WORDS], mirrored[ITEM_BLOCKS][2][2 * HALF_WORDS];
};

__device__ __forceinline__ void write_vector(float* to, const float* from) {
  if constexpr (VECTOR == 4) {
    *reinterpret_cast<float4*>(to) = float4{from[0], from[1], from[2], from[3]};
  } else {
    *reinterpret_cast<float2*>(to) = float2{from[0], from[1]};
  }
}

// Element `i` negated where the sign bits of `flipped` say so.
__device__ __forceinline__ float flipped_element(float number, word bits, int i) {
  return __int_as_float(__float_as_int(number) ^ (bits << (i / 2 + (i % 2 ? 0 : 16)) & 0x80000000u));
}

// Rows that were fetched to shared memory and, if `active`, pass an activation.
template <int ACTIVATION>
struct Fetched {
  const word4* units;
  bool active;
};

// Calls `use(first, mirrored, b, r, c)` with VECTOR elements of block b, row r and chunk c, and with those that mirror
// them: of rows in registers, or of those that were fetched to shared memory. With BOUNDS, numbers that are at least as
// large will do.
template <bool BOUNDS, class Use>
__device__ __forceinline__ void each_vector(const FloatRows& rows, const Use& use) {
#pragma unroll
  for (int b = 0; b < ITEM_BLOCKS; ++b)
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c)
        use(rows.first[b][r] + c * VECTOR, rows.mirrored[b][r] + c * VECTOR, b, r, c);
}
template <bool BOUNDS, int ACTIVATION, class Use>
__device__ __forceinline__ void each_vector(const Fetched<ACTIVATION>& rows, const Use& use) {
  const float* from = reinterpret_cast<const float*>(rows.units) + threadIdx.x % 32 * VECTOR;
#pragma unroll
  for (int b = 0; b < ITEM_BLOCKS; ++b)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c) {
        const int i = ((b * 2 + r) * CHUNKS + c) * 2;
        float first[VECTOR], mirrored[VECTOR];
        read_vector(first, from + i * 32 * VECTOR, true);
        read_vector(mirrored, from + (i + 1) * 32 * VECTOR, true);
        if (ACTIVATION && rows.active) {
#pragma unroll
          for (int j = 0; j < VECTOR; ++j) {
            first[j] = BOUNDS ? size_bound<ACTIVATION>(first[j]) : activated<ACTIVATION>(first[j]);
            mirrored[j] = BOUNDS ? size_bound<ACTIVATION>(mirrored[j]) : activated<ACTIVATION>(mirrored[j]);
          }
        }
        use(first, mirrored, b, r, c);
      }
      keep_order();  // also so that few elements are in registers at a time
    }
}

// The exponents of this thread's two rows over an item. NaN never counts; infinities are left out in a second pass.
template <class Source>
__device__ __forceinline__ void find_exponents(int (&exponents)[2], const Source& source) {
  float amax[2] = {};
  auto share = [&] {
#pragma unroll
    for (int mask = 1; mask < 4; mask *= 2)
#pragma unroll
      for (int r = 0; r < 2; ++r) amax[r] = fmaxf(amax[r], from_neighbour(amax[r], mask));
  };
  each_vector<true>(source, [&](const float* first, const float* mirrored, int, int r, int) {
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) amax[r] = fmaxf(amax[r], fmaxf(fabsf(first[i]), fabsf(mirrored[i])));
  });
  share();
  if (bits_of_lanes(fmaxf(amax[0], amax[1]) == __int_as_float(0x7f800000))) {
    amax[0] = amax[1] = 0;
    each_vector<true>(source, [&](const float* first, const float* mirrored, int, int r, int) {
#pragma unroll
      for (int i = 0; i < VECTOR; ++i) amax[r] = fmaxf(amax[r], fmaxf(finite_size(first[i]), finite_size(mirrored[i])));
    });
    share();
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) exponents[r] = exponent_of(amax[r]);
}

// Sums and differences of mirrored elements, scaled by the exponents of rows and, if FLIP, times the signs in `bits`.
template <bool FLIP, class Source>
__device__ __forceinline__ void fold_scaled(Rows& to, const int (&exponents)[2], word bits, const Source& source) {
  float scales[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) scales[r] = exponents[r] == NO_EXPONENT ? 1 : power_of_two(TARGET - exponents[r]);
  each_vector<false>(source, [&](const float* first, const float* mirrored, int b, int r, int c) {
    auto of = [&](const float* from, int i, int half) {
      return FLIP ? flipped_element(from[i], bits, 2 * (half * HALF_WORDS) + c * VECTOR + i) : from[i];
    };
#pragma unroll
    for (int i = 0; i < VECTOR; i += 2) {
      float sums[2], differences[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float one = scales[r] * of(first, i + j, 0), other = of(mirrored, VECTOR - 1 - i - j, 1);
        sums[j] = __fmaf_rn(scales[r], other, one), differences[j] = __fmaf_rn(-scales[r], other, one);
      }
      to.first[b][r][(c * VECTOR + i) / 2] = pack2(sums[0], sums[1]);
      to.mirrored[b][r][(c * VECTOR + i) / 2] = pack2(differences[0], differences[1]);
    }
  });
}

// Two halves of 2^-steps; 0 where that underflows.
__device__ __forceinline__ word shift_down(int steps) {
  const word half = steps < 15 ? (15 - steps) << 10 : steps < 25 ? 1 << (24 - steps) : 0;
  return half << 16 | half;
}

// Folded rows times powers of two.
__device__ __forceinline__ void shift(Rows& rows, const int (&steps)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const word factor = shift_down(steps[r]);
#pragma unroll
    for (int b = 0; b < ITEM_BLOCKS; ++b)
#pragma unroll
      for (int i = 0; i < HALF_WORDS; ++i) {
        rows.first[b][r][i] = multiply2(rows.first[b][r][i], factor);
        rows.mirrored[b][r][i] = multiply2(rows.mirrored[b][r][i], factor);
      }
  }
}

#endif
