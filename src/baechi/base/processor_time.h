// SPDX-License-Identifier: Apache-2.0
// How much of a processor's time something may take. Unlike a clock on the wall it does not run
// while other programs have the processor.
#pragma once

#include <chrono>
#include <thread>

namespace baechi {

// What the calling thread has had of a processor since it began.
std::chrono::nanoseconds processor_time_of_thread();

// While it lives, the calling thread is at a task that it began then. Tasks may be inside others.
class ProcessorTimeOfTask {
 public:
  ProcessorTimeOfTask();
  ~ProcessorTimeOfTask();
  ProcessorTimeOfTask(const ProcessorTimeOfTask&) = delete;
  ProcessorTimeOfTask& operator=(const ProcessorTimeOfTask&) = delete;

  // When the innermost one of the calling thread began; without one, when the thread did.
  static std::chrono::nanoseconds begin();

 private:
  std::chrono::nanoseconds begin_of_outer_;
};

// A limit for each thread that works on the same: for the one that set it from then on, for others
// from when they began the task that they are at. May be asked from all threads. Asking is a call
// of the system, a few hundred nanoseconds.
class ProcessorTimeLimit {
 public:
  explicit ProcessorTimeLimit(std::chrono::nanoseconds limit)
      : owner_(std::this_thread::get_id()), begin_(processor_time_of_thread()), limit_(limit) {}

  bool reached() const {
    const std::chrono::nanoseconds now = processor_time_of_thread();
    const bool is_owner = std::this_thread::get_id() == owner_;
    return now - (is_owner ? begin_ : ProcessorTimeOfTask::begin()) >= limit_;
  }

 private:
  std::thread::id owner_;
  std::chrono::nanoseconds begin_;
  std::chrono::nanoseconds limit_;
};

}  // namespace baechi
