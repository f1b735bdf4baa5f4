// Partial amax of weights: one of each thread block, of finite values.
//
// Macros besides those of transforms.cu: WEIGHT_TYPE, the dtype of weights.

typedef Element<WEIGHT_TYPE>::type weight_t;

extern "C" __global__ void __launch_bounds__(THREADS)
    weight_amax(const weight_t* __restrict__ w, float* __restrict__ partial_amax, int numel) {
  __shared__ float parts[WARPS];
  griddepcontrol_wait();
  launch_dependents();
  float amax = 0;
#pragma unroll 4
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < numel; i += gridDim.x * THREADS)
    amax = fmaxf(amax, finite_size(to_float<WEIGHT_TYPE>(w[i])));
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) amax = fmaxf(amax, from_neighbour(amax, mask));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = amax;
  __syncthreads();
  if (threadIdx.x) return;
  for (int i = 1; i < WARPS; ++i) amax = fmaxf(amax, parts[i]);
  partial_amax[blockIdx.x] = amax;
}
