// A launch on the CPU: every thread of a block is a thread, blocks run one after the other.

#include "cuda_on_cpu.h"

#include <barrier>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace cuda_on_cpu {

static std::optional<std::barrier<>> together;  // the threads of the running block that have not returned

void wait_for_block() { together->arrive_and_wait(); }

void launch(void (*call_kernel)(void**), const unsigned* grid, const unsigned* block, unsigned shared, void** arguments) {
  static std::mutex launching;
  std::lock_guard alone(launching);
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  std::vector<std::byte> memory;
  const unsigned threads = block[0] * block[1] * block[2];
  const std::size_t blocks = std::size_t(grid[0]) * grid[1] * grid[2];

  // What no thread has written is NaN in every block, as it may be on a device.
  auto begin = [&]() noexcept {
    together.emplace(threads);
    memory.assign(shared, std::byte{0xff});
    dynamic = memory.data();
  };
  begin();
  std::barrier<decltype(begin)> next_block(threads, begin);

  auto thread = [&](unsigned t) {
    threadIdx = {t % block[0], t / block[0] % block[1], t / block[0] / block[1]};
    for (std::size_t b = 0; b < blocks; ++b) {
      blockIdx = {unsigned(b % grid[0]), unsigned(b / grid[0] % grid[1]), unsigned(b / grid[0] / grid[1])};
      call_kernel(arguments);
      together->arrive_and_drop();  // who has returned is not waited for
      next_block.arrive_and_wait();
    }
  };
  std::vector<std::thread> running;
  running.reserve(threads);
  for (unsigned t = 0; t < threads; ++t) running.emplace_back(thread, t);
  for (std::thread& one : running) one.join();
}

}  // namespace cuda_on_cpu
