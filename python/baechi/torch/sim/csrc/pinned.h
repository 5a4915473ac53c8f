// SPDX-License-Identifier: Apache-2.0
// Pinned host memory: what devices copy from and to while the host goes on. There may be a limit.
#pragma once

#include <c10/core/Allocator.h>

namespace baechi::sim {

c10::Allocator& pinned_allocator();
bool is_pinned(const void* pointer);
c10::CachingAllocator::Stat pinned_bytes();
void reset_pinned_peak();

}  // namespace baechi::sim
