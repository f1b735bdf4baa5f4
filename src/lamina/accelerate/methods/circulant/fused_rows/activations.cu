// Activations of inputs, computed as rows are read, and their derivatives, which multiply input gradients.
//
// An activation is a code: 0 for none, and those below, in the order of `ACTIVATIONS` in activations.py.

constexpr int RELU_CODE = 1, GELU_CODE = 2, TANH_GELU_CODE = 3;

// The part of the normal distribution beyond |x|, by formula 7.1.26 of Abramowitz and Stegun: an error below 1e-7, with two
// instructions of the special function unit, of which the density is one.
struct Normal {
  float beyond, density;
};
__device__ __forceinline__ Normal normal(float x) {
  const float t = reciprocal(__fmaf_rn(0.3275911f * 0.70710678f, fabsf(x), 1.0f));
  const float power = exp2_of(-0.72134752f * x * x);
  float sum = __fmaf_rn(0.5f * 1.061405429f, t, -0.5f * 1.453152027f);
  sum = __fmaf_rn(sum, t, 0.5f * 1.421413741f);
  sum = __fmaf_rn(sum, t, -0.5f * 0.284496736f);
  sum = __fmaf_rn(sum, t, 0.5f * 0.254829592f);
  return {sum * (t * power), 0.39894228f * power};
}

// The tanh approximation of the normal distribution at x, as (1 + tanh(u / 2)) / 2 = 1 / (1 + e^-u), and its derivative.
struct TanhNormal {
  float below, density;
};
__device__ __forceinline__ TanhNormal tanh_normal(float x) {
  constexpr float SCALE = 1.5957691216f, CUBIC = 0.044715f, LOG2_E = 1.4426950409f;
  const float square = x * x;
  const float below = reciprocal(1 + exp2_of(-LOG2_E * SCALE * x * __fmaf_rn(CUBIC, square, 1.0f)));
  return {below, below * (1 - below) * (SCALE * __fmaf_rn(3 * CUBIC, square, 1.0f))};
}

// An activation of a number; NaN stays.
template <int ACTIVATION>
__device__ __forceinline__ float activated(float x) {
  if constexpr (ACTIVATION == RELU_CODE) return larger(x, 0);
  if constexpr (ACTIVATION == GELU_CODE) return __fmaf_rn(-fabsf(x), normal(x).beyond, fmaxf(x, 0));
  if constexpr (ACTIVATION == TANH_GELU_CODE) return x * tanh_normal(x).below;
  return x;
}
template <int ACTIVATION>
__device__ __forceinline__ word activated(word pair) {
  if constexpr (ACTIVATION == RELU_CODE) return positive(pair);
  return pack2(activated<ACTIVATION>(to_float<TYPE>(element(pair))),
               activated<ACTIVATION>(to_float<TYPE>(element(pair >> 16))));
}

// The derivative of GELU.
template <int ACTIVATION>
__device__ __forceinline__ float derivative(float x) {
  if constexpr (ACTIVATION == TANH_GELU_CODE) {
    const TanhNormal n = tanh_normal(x);
    return __fmaf_rn(x, n.density, n.below);
  }
  const Normal n = normal(x);
  const float mirrored = __fmaf_rn(-fabsf(x), n.density, n.beyond);  // at -|x|
  return x < 0 ? mirrored : 1 - mirrored;
}

// Rows in registers behind an activation, in place.
template <int ACTIVATION, class Held>
__device__ __forceinline__ void activate(Held& rows) {
  each_element(rows, [](auto each, int) { return activated<ACTIVATION>(each); });
}

// At least the size of an activation, without computing GELU, whose values are above -0.1701.
template <int ACTIVATION>
__device__ __forceinline__ float size_bound(float x) {
  if constexpr (ACTIVATION == 0) return fabsf(x);
  return fmaxf(x, ACTIVATION == RELU_CODE ? 0 : fminf(-x, 0.1701f));
}

// Derivatives of an activation for the elements of one row of a block that a thread holds: the first VECTOR of a block,
// those that mirror them, and so on. A bit each says where ReLU is flat; GELU's are pairs of float16. Both take few
// registers, so that all are read at once.
template <int ACTIVATION>
struct Derivatives {
  static constexpr int WORDS = ACTIVATION < GELU_CODE ? 1 : CHUNKS * VECTOR;
  word at[WORDS];
};

// Of the inputs of an activation at `from`. A derivative of ReLU is 1 where its input is NaN, as PyTorch has it.
template <int ACTIVATION>
__device__ __forceinline__ void read_derivatives(Derivatives<ACTIVATION>& to, const value_t* from, bool inside) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < Derivatives<ACTIVATION>::WORDS; ++i) to.at[i] = 0;
#pragma unroll
  for (int c = 0; c < 2 * CHUNKS; ++c) {
    const int first = 4 * VECTOR * (c / 2) + VECTOR * (lane % 4);
    const value_t* vector = from + (c % 2 ? K - VECTOR - first : first);
    float inputs[VECTOR];
#if SCALED
    read_vector(inputs, vector, inside);
#else
    word pairs[VECTOR / 2];
    read_vector(pairs, vector, inside);
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) inputs[i] = to_float<TYPE>(element(pairs[i / 2] >> i % 2 * 16));
#endif
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) {
      if constexpr (ACTIVATION == RELU_CODE) {
        to.at[0] |= word(inputs[i] <= 0) << (c * VECTOR + i);
      } else {
        to.at[(c * VECTOR + i) / 2] |= word(to_half(derivative<ACTIVATION>(inputs[i]))) << i % 2 * 16;
      }
    }
  }
}

// Element `i` of an input gradient behind the activation.
template <int ACTIVATION>
__device__ __forceinline__ float through(float gradient, const Derivatives<ACTIVATION>& derivatives, int i) {
  if constexpr (ACTIVATION == 0) return gradient;
  if constexpr (ACTIVATION == RELU_CODE) return derivatives.at[0] >> i & 1 ? 0 : gradient;
  if constexpr (ACTIVATION >= GELU_CODE) return gradient * from_half(half_bits(derivatives.at[i / 2] >> i % 2 * 16));
}
