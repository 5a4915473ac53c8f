// SPDX-License-Identifier: Apache-2.0
// Independent tasks on several threads. Tasks may run tasks in turn: all share the same threads.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

namespace baechi {

// While it lives, so many threads share the tasks of the calling one, itself included. A thread that
// shares in such tasks already has the threads that it has.
class Crew {
 public:
  explicit Crew(unsigned threads);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  class Threads;

 private:
  std::unique_ptr<Threads> threads_;  // absent where there is one, or the caller's are used
};

// Runs `task(i)` for all i < count on so many threads, the caller's included: on those of the crew
// if it has one and more than one is asked for. When tasks throw, the exception of one of them is
// rethrown after all have ended. Who waits for the last of its tasks takes part in what they run.
void parallel_for(std::size_t count, unsigned threads,
                  const std::function<void(std::size_t)>& task);

// The clock of the calling thread, had every thread a processor of its own: it runs while the thread
// does, and where it waited for tasks of others goes on from when the last of them ended.
std::chrono::nanoseconds time_with_own_processor();

}  // namespace baechi
