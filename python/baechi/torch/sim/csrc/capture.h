// SPDX-License-Identifier: Apache-2.0
// Capture: what is launched on a stream is written down instead of run, and run later, as often as
// wanted, on the same memory. As CUDA graphs do, by PyTorch's own interface, torch.accelerator.Graph.
//
// One capture at a time, of one device. A stream takes part from when it waits for one that does, and
// has to be waited for before the end. Memory that is allocated meanwhile is the capture's own until
// it is released. What needs the results of kernels that have not run is an error.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "streams.h"

namespace baechi::sim {

class Capture {
 public:
  Capture(std::uint64_t id, c10::Stream origin);

  std::uint64_t id() const { return id_; }
  int device() const { return streams_.front().device_index(); }
  bool has(c10::Stream stream) const;

  void run(c10::Stream stream, const Submission& submission, Task task);
  MarkPtr record(c10::Stream stream);
  void wait(c10::Stream stream, const MarkPtr& mark);  // the stream takes part from now on
  void keep(std::shared_ptr<void> reference);          // as long as it may be replayed
  void before_replay(std::function<Task()> prepare);   // makes a task that runs first
  void spoil(const std::string& why);                  // it cannot be ended any more

  void finish() const;  // throws unless it can be replayed
  void replay(c10::Stream on) const;
  std::string text() const;  // a line per step

 private:
  enum class Kind { kRun, kRecord, kWait };
  using Progress = std::vector<std::int64_t>;  // of each stream: how many of its tasks have run

  struct Step {
    Kind kind;
    std::size_t stream;
    std::size_t mark = 0;
    Submission submission{};
    Task task{};
  };

  std::size_t index_of(c10::Stream stream) const;  // streams_.size(), if it does not take part

  const std::uint64_t id_;
  mutable std::mutex mutex_;
  std::vector<c10::Stream> streams_;  // the first is where it began
  std::vector<Step> steps_;
  std::vector<Progress> seen_;    // by stream: what it comes after
  std::vector<Progress> marked_;  // by mark: likewise
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<std::function<Task()>> prepares_;
  std::string spoiled_;
};

// The capture in which the stream takes part, if any.
std::shared_ptr<Capture> capture_of(c10::Stream stream);

// The capture that a device's allocations are for; an error if their stream takes no part in it.
std::uint64_t pool_of(c10::Stream stream);

// Throws, and spoils the capture, if the stream takes part in one.
void refuse_in_capture(c10::Stream stream, const char* what);
void refuse_in_capture(int device, const char* what);

// Of a mark that was recorded in a capture, or a stream that takes part in one.
void wait_in_capture(c10::Stream stream, const MarkPtr& mark);
void refuse_captured(const MarkPtr& mark, const char* what);

}  // namespace baechi::sim
