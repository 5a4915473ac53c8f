// SPDX-License-Identifier: Apache-2.0
// Queues of tasks; see task_queue.h.
#include "task_queue.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <exception>
#include <random>
#include <utility>

namespace baechi::sim {

void DeviceErrors::add(std::string what) {
  const std::lock_guard lock(mutex_);
  if (!any_) first_ = std::move(what);
  any_ = true;
}

void DeviceErrors::report() {
  if (!any_) return;
  std::string what;
  {
    const std::lock_guard lock(mutex_);
    what = std::exchange(first_, {});
    any_ = false;
  }
  TORCH_CHECK(false, what);
}

std::array<DeviceErrors, kMaxDevices>& device_errors() {
  static auto* all = new std::array<DeviceErrors, kMaxDevices>;  // outlives every thread
  return *all;
}

void Queue::push(Entry entry) {
  pending_.fetch_add(1);
  {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
    entries_.push_back(std::move(entry));
    pushed_.fetch_add(1);
  }
  changed_.notify_one();
}

void Queue::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) return;
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
  thread_ = {};
  stopping_ = false;
}

void Queue::work() {
  std::mt19937_64 random(settings().delay_seed * 1000003 +
                         static_cast<std::uint64_t>(device_ * kStreams + stream_));
  for (;;) {
    Entry entry;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || !entries_.empty(); });
      if (entries_.empty()) return;
      entry = std::move(entries_.front());
      entries_.pop_front();
    }
    const std::int64_t longest = settings().longest_delay_ns;
    if (longest > 0 && entry.may_be_delayed)
      std::this_thread::sleep_for(
          std::chrono::nanoseconds(random() % static_cast<std::uint64_t>(longest)));
    ++running_;
    run(entry);
    entry = {};
    pending_.fetch_sub(1);
  }
}

void Queue::run(Entry& entry) const {
  const auto start = Clock::now();
  try {
    entry.task();
  } catch (const c10::Error& error) {
    fail(entry.name, error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(entry.name, error.what());
  }
  if (entry.duration_ns > 0)
    std::this_thread::sleep_until(start + std::chrono::nanoseconds(entry.duration_ns));
}

void Queue::fail(const char* name, const char* what) const {
  device_errors()[static_cast<std::size_t>(device_)].add(
      std::string(what) + " (raised by " + name + " on stream " + std::to_string(stream_) +
      " of sim:" + std::to_string(device_) + ", reported by a later call)");
}

}  // namespace baechi::sim
