// SPDX-License-Identifier: Apache-2.0
// Runs core work without the GIL, and lets Ctrl-C stop it.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "baechi/base/cancel.h"

namespace baechi::python {

// `work(flag)` runs on a thread of its own while this one asks Python for signals every few
// milliseconds; when a handler raises, the flag is set and, once the work has ended, its exception
// (KeyboardInterrupt for Ctrl-C) goes on. The work must not touch Python objects.
template <class Work>
auto interruptible(const Work& work) {
  using Result = decltype(work(static_cast<const CancelFlag*>(nullptr)));
  CancelFlag flag;
  std::optional<Result> result;
  std::exception_ptr failure;
  std::optional<nanobind::python_error> interrupted;
  {
    nanobind::gil_scoped_release unlocked;
    std::mutex mutex;
    std::condition_variable done_changed;
    bool done = false;
    const std::jthread worker([&] {
      try {
        result.emplace(work(&flag));
      } catch (...) {
        failure = std::current_exception();
      }
      const std::scoped_lock lock(mutex);
      done = true;
      done_changed.notify_one();
    });
    std::unique_lock lock(mutex);
    while (!done_changed.wait_for(lock, std::chrono::milliseconds(20), [&] { return done; })) {
      if (interrupted.has_value()) continue;
      lock.unlock();
      {
        nanobind::gil_scoped_acquire locked;
        if (PyErr_CheckSignals() != 0) interrupted.emplace();
      }
      if (interrupted.has_value()) flag.request();
      lock.lock();
    }
  }
  if (interrupted.has_value()) throw nanobind::python_error(std::move(*interrupted));
  if (failure) std::rethrow_exception(failure);
  return *std::move(result);
}

}  // namespace baechi::python
