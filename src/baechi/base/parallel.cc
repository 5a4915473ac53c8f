// SPDX-License-Identifier: Apache-2.0
#include "baechi/base/parallel.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "baechi/base/processor_time.h"

namespace baechi {
namespace {

using std::chrono::nanoseconds;

// The tasks of a call of parallel_for().
struct Loop {
  const std::function<void(std::size_t)>* task;
  std::size_t count;
  const Loop* parent;         // one of whose tasks made the call
  nanoseconds opened, ended;  // by time_with_own_processor()
  std::size_t next = 0, running = 0;
  std::exception_ptr failure = {};

  bool is_in(const Loop* other) const {
    for (const Loop* loop = this; loop != nullptr; loop = loop->parent)
      if (loop == other) return true;
    return false;
  }
};

thread_local nanoseconds::rep waited = 0;  // in nanoseconds
thread_local const Loop* loop_of_thread = nullptr;
thread_local Crew::Threads* crew_of_thread = nullptr;

void advance_clock_to(nanoseconds time) {
  waited += std::max(nanoseconds(0), time - time_with_own_processor()).count();
}

}  // namespace

class Crew::Threads {
 public:
  explicit Threads(unsigned others) {
    bool more = true;
    for (unsigned i = 0; i < others && more; ++i) more = start();
  }
  ~Threads() {
    {
      const std::scoped_lock lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  void run(Loop& loop) {
    std::unique_lock lock(mutex_);
    loops_.push_back(&loop);
    changed_.notify_all();
    while (loop.next < loop.count || loop.running > 0)
      if (Loop* const open = open_loop(&loop))
        run_one(*open, lock);
      else
        changed_.wait(lock);
    std::erase(loops_, &loop);
  }

 private:
  // False where the system gives no more threads: those that there are do all of it.
  bool start() {
    try {
      threads_.emplace_back([this] { help(); });
    } catch (const std::system_error&) {
      return false;
    }
    return true;
  }

  void help() {
    crew_of_thread = this;
    std::unique_lock lock(mutex_);
    while (!ending_)
      if (Loop* const open = open_loop(nullptr))
        run_one(*open, lock);
      else
        changed_.wait(lock);
  }

  // The first that was opened, of all or of those inside another one.
  Loop* open_loop(const Loop* outer) const {
    for (Loop* const loop : loops_)
      if (loop->next < loop->count && (outer == nullptr || loop->is_in(outer))) return loop;
    return nullptr;
  }

  void run_one(Loop& loop, std::unique_lock<std::mutex>& lock) {
    const std::size_t i = loop.next++;
    ++loop.running;
    lock.unlock();
    advance_clock_to(loop.opened);
    std::exception_ptr failure;
    const Loop* const before = std::exchange(loop_of_thread, &loop);
    try {
      const ProcessorTimeOfTask time;
      (*loop.task)(i);
    } catch (...) {
      failure = std::current_exception();
    }
    loop_of_thread = before;
    const nanoseconds now = time_with_own_processor();
    lock.lock();
    if (failure) {
      loop.failure = failure;
      loop.next = loop.count;
    }
    loop.ended = std::max(loop.ended, now);
    --loop.running;
    if (loop.running == 0 && loop.next >= loop.count) changed_.notify_all();
  }

  std::mutex mutex_;  // of all below, and of the loops
  std::condition_variable changed_;
  std::vector<Loop*> loops_;
  bool ending_ = false;
  std::vector<std::jthread> threads_;  // last: they use the members above
};

Crew::Crew(unsigned threads) {
  if (threads <= 1 || crew_of_thread != nullptr) return;
  threads_ = std::make_unique<Threads>(threads - 1);
  crew_of_thread = threads_.get();
}

Crew::~Crew() {
  if (threads_ != nullptr) crew_of_thread = nullptr;
}

void parallel_for(std::size_t count, unsigned threads,
                  const std::function<void(std::size_t)>& task) {
  if (threads <= 1 || count <= 1) {
    for (std::size_t i = 0; i < count; ++i) task(i);
    return;
  }
  const Crew crew(static_cast<unsigned>(std::min<std::size_t>(threads, count)));
  const nanoseconds now = time_with_own_processor();
  Loop loop{.task = &task, .count = count, .parent = loop_of_thread, .opened = now, .ended = now};
  crew_of_thread->run(loop);
  advance_clock_to(loop.ended);
  if (loop.failure) std::rethrow_exception(loop.failure);
}

nanoseconds time_with_own_processor() { return processor_time_of_thread() + nanoseconds(waited); }

}  // namespace baechi
