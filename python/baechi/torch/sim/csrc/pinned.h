// SPDX-License-Identifier: Apache-2.0
// Pinned host memory: what devices copy from and to while the host goes on. There may be a limit.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>

namespace baechi::sim {

struct PinnedStatistics {
  std::int64_t allocated = 0;  // bytes
  std::int64_t peak = 0;       // since the last reset
};

c10::Allocator& pinned_allocator();
bool is_pinned(const void* pointer);
PinnedStatistics pinned_statistics();
void reset_pinned_peak();

}  // namespace baechi::sim
