// SPDX-License-Identifier: Apache-2.0
// Memory of the simulated devices: host memory with a cap per device, ordered by streams.
//
// A block belongs to the stream that was current when it was allocated. When it is freed, a later
// allocation on that stream may get it at once, since work is ordered there; any other stream that
// still uses it must have been named by record_stream, or it reads what came next. Pages are
// returned to the system only when all streams are idle, so that such a bug shows as wrong values
// (poison makes them NaN) and never as a crash. The cap counts live blocks, each rounded up to 512
// bytes: an allocator without fragmentation.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <cstdint>

namespace baechi::sim {

c10::DeviceAllocator& device_allocator();

void release_pool(std::uint64_t pool);  // the memory of a capture that is not replayed any more

// A block of the given device, whichever device is current.
c10::DataPtr allocate_on(int device, std::size_t bytes);

// Pinned host memory: what devices copy from and to while the host goes on. There may be a limit.
c10::Allocator& pinned_allocator();
bool is_pinned(const void* pointer);
c10::CachingAllocator::Stat pinned_bytes();
void reset_pinned_peak();

// Moves what fits of a storage's contents into a new block of its device.
void resize_storage(const c10::Storage& storage, std::size_t bytes);

}  // namespace baechi::sim
