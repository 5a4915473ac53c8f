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

// How work ended. Work that was interrupted may have a result all the same.
template <class Result>
struct Outcome {
  std::optional<Result> result;
  std::exception_ptr failure;
  std::optional<nanobind::python_error> interrupted;

  Result value() && {
    if (interrupted.has_value()) throw nanobind::python_error(std::move(*interrupted));
    if (failure) std::rethrow_exception(failure);
    return *std::move(result);
  }
};

// `work(flag)` runs on a thread of its own while this one asks Python for signals every few
// milliseconds and, about once a second, calls `meanwhile` with the GIL; when a handler or that
// raises, the flag is set. The work must not touch Python objects.
template <class Work, class Meanwhile>
auto outcome_of(const Work& work, const Meanwhile& meanwhile) {
  Outcome<decltype(work(static_cast<const CancelFlag*>(nullptr)))> outcome;
  constexpr std::chrono::milliseconds kTurn(20);
  constexpr int kTurnsOfASecond = 50;
  CancelFlag flag;
  nanobind::gil_scoped_release unlocked;
  std::mutex mutex;
  std::condition_variable done_changed;
  bool done = false;
  const std::jthread worker([&] {
    try {
      outcome.result.emplace(work(&flag));
    } catch (...) {
      outcome.failure = std::current_exception();
    }
    const std::scoped_lock lock(mutex);
    done = true;
    done_changed.notify_one();
  });
  std::unique_lock lock(mutex);
  for (int turn = 1; !done_changed.wait_for(lock, kTurn, [&] { return done; }); ++turn) {
    if (outcome.interrupted.has_value()) continue;
    lock.unlock();
    {
      nanobind::gil_scoped_acquire locked;
      try {
        if (turn % kTurnsOfASecond == 0) meanwhile();
        if (PyErr_CheckSignals() != 0) outcome.interrupted.emplace();
      } catch (nanobind::python_error& error) {
        outcome.interrupted.emplace(std::move(error));
      }
    }
    if (outcome.interrupted.has_value()) flag.request();
    lock.lock();
  }
  return outcome;
}

// The result; or, once the work has ended, the handler's exception (KeyboardInterrupt for Ctrl-C).
template <class Work>
auto interruptible(const Work& work) {
  return outcome_of(work, [] {}).value();
}

// The same for work whose result may be cut short: after Ctrl-C a warning comes with it.
template <class Result>
Result as_far_as_it_got(Outcome<Result> outcome, const char* warning) {
  const bool cut = outcome.interrupted.has_value() && outcome.result.has_value() &&
                   outcome.interrupted->matches(PyExc_KeyboardInterrupt);
  if (!cut) return std::move(outcome).value();
  outcome.interrupted.reset();
  if (PyErr_WarnEx(PyExc_UserWarning, warning, 2) != 0) throw nanobind::python_error();
  return *std::move(outcome.result);
}

}  // namespace baechi::python
