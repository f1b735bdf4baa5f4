// A launch on the CPU: every thread of a block is a fiber, blocks run one after the other.
//
// Between two barriers the threads of a block run one after the other, from the first to the last or from the last to
// the first. The order changes with each interval, block and launch: without a barrier that is needed, one of the two
// gives another result.

#include "cuda_on_cpu.h"

#include <ucontext.h>

#include <memory>
#include <mutex>
#include <vector>

namespace cuda_on_cpu {

static constexpr std::size_t STACK = 1 << 20;  // of a thread; pages that are not touched take no memory

struct Fiber {
  ucontext_t context;
  std::unique_ptr<std::byte[]> stack{new std::byte[STACK]};
  bool returned;
};

static ucontext_t scheduler;
static Fiber* running;
static void (*kernel)(void**);
static void** parameters;

void wait_for_block() { swapcontext(&running->context, &scheduler); }

static void run() {
  kernel(parameters);
  running->returned = true;  // who has returned is not waited for
}

static void start(Fiber& fiber) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = STACK;
  fiber.context.uc_link = &scheduler;
  fiber.returned = false;
  makecontext(&fiber.context, run, 0);
}

void launch(void (*call_kernel)(void**), const unsigned* grid, const unsigned* block, unsigned shared, void** arguments) {
  static std::mutex launching;
  static std::size_t turn = 0;
  std::lock_guard alone(launching);
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  kernel = call_kernel;
  parameters = arguments;
  std::vector<std::byte> memory(shared);
  dynamic = memory.data();
  const std::size_t count = std::size_t(block[0]) * block[1] * block[2], blocks = std::size_t(grid[0]) * grid[1] * grid[2];
  static std::vector<Fiber> threads;  // of all launches: stacks are used again
  if (threads.size() < count) threads.resize(count);
  ++turn;
  for (std::size_t b = 0; b < blocks; ++b, ++turn) {
    blockIdx = {unsigned(b % grid[0]), unsigned(b / grid[0] % grid[1]), unsigned(b / grid[0] / grid[1])};
    memory.assign(shared, std::byte{0xff});  // what no thread has written is NaN, as it may be on a device
    for (std::size_t t = 0; t < count; ++t) start(threads[t]);
    for (bool waiting = true; waiting; ++turn) {
      waiting = false;
      for (std::size_t i = 0; i < count; ++i) {
        const unsigned t = turn % 2 ? count - 1 - i : i;
        running = &threads[t];
        if (running->returned) continue;
        threadIdx = {t % block[0], t / block[0] % block[1], t / block[0] / block[1]};
        swapcontext(&scheduler, &running->context);
        waiting |= !running->returned;
      }
    }
  }
}

}  // namespace cuda_on_cpu
