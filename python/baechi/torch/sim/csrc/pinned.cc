// SPDX-License-Identifier: Apache-2.0
// Pinned host memory; see memory.h. A register of what was allocated; the blocks are ordinary ones.
#include <ATen/core/CachingHostAllocator.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <new>

#include "memory.h"
#include "settings.h"

namespace baechi::sim {
namespace {

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(c10::DeviceType::CPU)};
    const std::lock_guard lock(mutex_);
    const auto wanted = static_cast<std::int64_t>(bytes);
    const std::int64_t limit = settings().pinned_capacity;
    TORCH_CHECK(wanted <= limit - pinned_.current, "out of memory: cannot pin ", bytes,
                " bytes of the host's memory, of which ", pinned_.current, " of ", limit,
                " bytes are pinned; pin less, or set sim.configure(pinned=...)");
    void* pointer = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (pointer == nullptr) throw std::bad_alloc();
    blocks_[pointer] = bytes;
    pinned_.increase(bytes);
    return {pointer, pointer, &PinnedAllocator::forget, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &PinnedAllocator::forget; }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
  // Copies keep what they read and write alive, and freed memory is not kept.
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override {
    at::HostStats result;
    result.allocated_bytes = result.active_bytes = pinned();
    return result;
  }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {
    const std::lock_guard lock(mutex_);
    pinned_.reset_peak();
  }

  c10::CachingAllocator::Stat pinned() {
    const std::lock_guard lock(mutex_);
    return pinned_;
  }
  bool holds(const void* pointer) {
    const std::lock_guard lock(mutex_);
    auto above = blocks_.upper_bound(pointer);
    if (above == blocks_.begin()) return false;
    const auto& [start, bytes] = *--above;
    return static_cast<const char*>(pointer) < static_cast<const char*>(start) + bytes;
  }

 private:
  static void forget(void* pointer);

  std::mutex mutex_;
  std::map<const void*, std::size_t> blocks_;
  c10::CachingAllocator::Stat pinned_;  // bytes
};

PinnedAllocator& the_allocator() {
  static auto* the = new PinnedAllocator;
  return *the;
}

void PinnedAllocator::forget(void* pointer) {
  PinnedAllocator& self = the_allocator();
  {
    const std::lock_guard lock(self.mutex_);
    const auto block = self.blocks_.find(pointer);
    self.pinned_.decrease(block->second);
    self.blocks_.erase(block);
  }
  std::free(pointer);
}

const bool registered = [] {
  at::setHostAllocator(c10::DeviceType::PrivateUse1, &the_allocator());
  return true;
}();

}  // namespace

c10::Allocator& pinned_allocator() { return the_allocator(); }
bool is_pinned(const void* pointer) { return the_allocator().holds(pointer); }
c10::CachingAllocator::Stat pinned_bytes() { return the_allocator().pinned(); }
void reset_pinned_peak() { the_allocator().reset_peak_stats(); }

}  // namespace baechi::sim
