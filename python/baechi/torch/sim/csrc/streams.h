// SPDX-License-Identifier: Apache-2.0
// Streams, events and clocks: a stream is a queue of tasks and a thread that runs them in order.
//
// Two clocks run side by side. The real one is the host's. The virtual one is computed when work is
// submitted: a task starts when its stream is free, the streams and events that it waits for have
// passed, and the host has submitted it. The host's own time passes when it waits, and by what each
// call and copy costs it. Unless that is measured, virtual times thus depend on what was submitted,
// never on how fast this machine ran it.
#pragma once

#include <c10/core/Stream.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "settings.h"

namespace baechi::sim {

using Clock = std::chrono::steady_clock;
using Task = std::function<void()>;

// A point in a stream's order; the event that marks it is shared by all who wait for it.
struct Mark {
  std::atomic<bool> passed = false;
  Clock::time_point when;  // valid once passed
  std::int64_t virtual_ns = 0;
  std::uint64_t capture = 0;   // in which it was recorded: then it never passes
  std::size_t in_capture = 0;  // which of that capture's marks it is

  void wait() const { passed.wait(false); }
};
using MarkPtr = std::shared_ptr<Mark>;

struct Submission {
  const char* name;              // of the operator, for error messages; lives for ever
  std::int64_t duration_ns = 0;  // the least the task takes, on the clock in use
  bool delayed_by_race = true;   // race mode may hold it up
  bool copy = false;             // to or from another device or the host
  bool charged = true;           // costs the host what a call or a copy costs
};

c10::Device sim_device(int index);
c10::Stream stream_of(int device, std::int64_t id);  // the default one has id 0
c10::Stream pool_stream(int device);                 // one of 32 per device, in turn
c10::Stream current_stream(int device);
c10::Stream exchange_current_stream(c10::Stream stream);

int current_device();
void set_current_device(int device);
int checked_device(c10::DeviceIndex index);  // which is there; a negative one is the current

// What one call costs the host, where a replay asks for many tasks at once.
void charge_host_call();
void charge_host(std::int64_t duration);  // for work of its own

// What the calling thread does in its lifetime is not the host's work: kernels, looking up sizes.
class NotHostTime {
 public:
  NotHostTime();
  ~NotHostTime();
};

// Runs the task after everything submitted to the stream before: now, if streams are synchronous.
// Throws what a former task of the device threw and nobody has been told yet. In a capture the task
// is written down instead, as are marks and waits below.
void submit(c10::Stream stream, const Submission& submission, Task task);

// For memory that is filled while it is freed: reports nothing, throws nothing.
void submit_quietly(c10::Stream stream, Task task) noexcept;

// A copy between two devices: it occupies both streams.
void submit_copy(c10::Stream source, c10::Stream target, const Submission& submission, Task task);

MarkPtr record(c10::Stream stream);
MarkPtr record_now(c10::Stream stream);                  // also in a capture
void wait_for(c10::Stream stream, const MarkPtr& mark);  // the stream waits, the caller does not
bool is_idle(c10::Stream stream);

// The host waits, then throws what a task of the device threw.
void synchronize(const MarkPtr& mark, int device);
void synchronize(c10::Stream stream);
void synchronize_device(int device);
void synchronize_all() noexcept;

// Keeps a reference until the tasks submitted to the stream so far have run. It is dropped by a
// thread of the caller's, never by a stream's.
void keep_alive_until_done(c10::Stream stream, std::shared_ptr<void> reference);

// The least time a task takes that reads and writes so many bytes.
std::int64_t operator_duration_ns(std::int64_t bytes);

std::int64_t virtual_now_ns();   // when everything submitted so far will have run
std::int64_t virtual_host_ns();  // what the host has waited for and was charged
void reset_virtual_clock();
void stop_threads() noexcept;  // at exit: waits for all work, ends all threads
bool forked() noexcept;        // this process is a child without the parent's threads

}  // namespace baechi::sim
