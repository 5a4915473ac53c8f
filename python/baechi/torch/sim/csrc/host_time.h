// SPDX-License-Identifier: Apache-2.0
// What asking for work costs the host on the virtual clock: given, or measured.
#pragma once

#include <cstdint>

namespace baechi::sim {

// What a call costs, or a copy. Where that is measured: the processor time that this thread took
// since it asked the last time.
std::int64_t host_cost_ns(bool copy);

// Nothing has been measured yet, in any thread.
void restart_host_time();

// What the calling thread does in its lifetime is not the host's work: kernels, looking up sizes.
class NotHostTime {
 public:
  NotHostTime();
  ~NotHostTime();
};

}  // namespace baechi::sim
