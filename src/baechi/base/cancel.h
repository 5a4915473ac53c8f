// SPDX-License-Identifier: Apache-2.0
// Cooperative cancellation: long loops poll a flag that a signal handler or another thread sets.
#pragma once

#include <atomic>

#include "baechi/base/error.h"

namespace baechi {

// Setting it is async-signal-safe: a lock-free atomic, nothing else.
class CancelFlag {
 public:
  void request() noexcept { requested_.store(true, std::memory_order_relaxed); }
  bool requested() const noexcept { return requested_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> requested_{false};
  static_assert(std::atomic<bool>::is_always_lock_free);
};

// Throws Cancelled when `flag` is given and set. Cheap enough for once per few hundred iterations.
inline void throw_if_cancelled(const CancelFlag* flag) {
  if (flag != nullptr && flag->requested()) throw Cancelled();
}

}  // namespace baechi
