// SPDX-License-Identifier: Apache-2.0
// A stream's tasks and the thread that runs them in order, and what went wrong in them.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "settings.h"
#include "streams.h"

namespace baechi::sim {

constexpr int kPoolSize = 32;
constexpr int kStreams = kPoolSize + 1;  // of a device; the default stream has id 0

struct Entry {
  const char* name;
  Task task;
  std::int64_t duration_ns;  // to be waited for on the real clock
  bool may_be_delayed;
};

// What went wrong on a device and has not been reported.
class DeviceErrors {
 public:
  void add(std::string what);
  void report();  // throws the first of them, once

 private:
  std::mutex mutex_;
  std::atomic<bool> any_ = false;
  std::string first_;
};

std::array<DeviceErrors, kMaxDevices>& device_errors();

class Queue {
 public:
  Queue(int device, int stream) : device_(device), stream_(stream) {}

  void push(Entry entry);
  bool idle() const { return pending_ == 0; }
  // Whether all has run but the end of a task that called `pass`, as whoever waited for it may ask.
  bool all_passed() const { return idle() || passed_ == pushed_; }
  void pass() { passed_ = running_; }  // called by a task that is only a mark
  void stop();  // when all that was pushed has run; a later push starts another thread

  std::mutex clock_mutex;
  std::int64_t free_ns = 0;  // virtual time at which all that was submitted has run

 private:
  void work();
  void run(Entry& entry) const;
  void fail(const char* name, const char* what) const;

  const int device_;
  const int stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> entries_;
  std::atomic<std::int64_t> pending_ = 0;
  std::atomic<std::int64_t> pushed_ = 0;
  std::atomic<std::int64_t> passed_ = -1;  // of those pushed, counted from 1
  std::int64_t running_ = 0;
  std::thread thread_;
  bool stopping_ = false;
};

}  // namespace baechi::sim
