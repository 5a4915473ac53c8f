// SPDX-License-Identifier: Apache-2.0
// Memory of the simulated devices; see memory.h.
#include "memory.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iomanip>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>
#include <vector>

#include "capture.h"
#include "streams.h"

namespace baechi::sim {
namespace {

constexpr std::size_t kGranule = 512;
constexpr std::int64_t kMostCached = std::int64_t{1} << 30;  // then all streams are waited for

// Allocated are live tensors, active those and blocks that other streams still use, reserved all
// these and blocks kept for reuse.
using Statistics = c10::CachingDeviceAllocator::DeviceStats;

struct Block {
  void* pointer;
  std::size_t bytes;
  int device;
  std::int64_t stream;
  std::uint64_t pool;                              // the capture that it is for; 0: none
  std::set<std::pair<int, std::int64_t>> used_by;  // other streams, from record_stream
};

struct Deferred {
  Block* block;
  std::vector<MarkPtr> until;

  bool done() const {
    return std::all_of(until.begin(), until.end(), [](const auto& m) { return m->passed.load(); });
  }
};

std::string in_units(std::int64_t bytes) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(2);
  if (bytes >= std::int64_t{1} << 30)
    out << static_cast<double>(bytes) / (1 << 30) << " GiB";
  else if (bytes >= 1 << 20)
    out << static_cast<double>(bytes) / (1 << 20) << " MiB";
  else
    out << bytes << " bytes";
  return out.str();
}

void poison(const Block& block) {
  const c10::Stream stream = stream_of(block.device, block.stream);
  Task fill = [p = block.pointer, n = block.bytes] { std::memset(p, 0xFF, n); };
  const auto capture = block.pool != 0 ? capture_of(stream) : nullptr;
  if (capture)
    capture->run(stream, {.name = "poison"}, std::move(fill));
  else
    submit_quietly(stream, std::move(fill));
}

class Memory {
 public:
  Block* allocate(int device, std::size_t wanted) {
    const std::size_t bytes = (wanted + kGranule - 1) / kGranule * kGranule;
    const std::int64_t stream = current_stream(device).id();
    const std::uint64_t pool = pool_of(current_stream(device));
    collect();
    if (pool == 0 && !fits(device, bytes)) {
      // Blocks whose last use has not been seen yet are the only ones that waiting can free.
      wait_for_deferred(device);
      collect();
    }
    const std::unique_lock lock(mutex_);
    Statistics& stats = of(device);
    Block* block = take_cached({device, pool, stream, bytes});
    const bool kept = block != nullptr && pool != 0;  // and counted
    if (!kept && !fits_locked(device, bytes)) {
      if (block != nullptr) give_cached(block);
      ++stats.num_ooms;
      const auto capacity = settings().capacity[static_cast<std::size_t>(device)];
      TORCH_CHECK_WITH(
          OutOfMemoryError, false, "sim:", device, " is out of memory: tried to allocate ",
          in_units(static_cast<std::int64_t>(bytes)), "; ", in_units(stats.active_bytes[0].current),
          " of ", in_units(capacity), " are in use.");
    }
    const bool fresh = block == nullptr;
    if (fresh) {
      void* pointer = std::aligned_alloc(64, bytes);
      if (pointer == nullptr) throw std::bad_alloc();
      block = new Block{pointer, bytes, device, stream, pool, {}};
      stats.reserved_bytes[0].increase(bytes);
    }
    stats.allocated_bytes[0].increase(bytes);
    if (!kept) stats.active_bytes[0].increase(bytes);
    stats.allocation[0].increase(1);
    if (fresh && settings().poison) std::memset(block->pointer, 0xFF, bytes);  // nobody has it yet
    return block;
  }

  void free(Block* block) {
    std::vector<MarkPtr> until;
    const bool captured = is_captured(*block);
    for (const auto& [device, stream] : block->used_by)
      if (!forked() && !captured) until.push_back(record_now(stream_of(device, stream)));
    {
      const std::lock_guard lock(mutex_);
      of(block->device).allocated_bytes[0].decrease(block->bytes);
      of(block->device).allocation[0].decrease(1);
      Deferred deferred{block, std::move(until)};
      if (captured && !block->used_by.empty())
        cache_[{block->device, block->pool, kUsedElsewhere, block->bytes}].push_back(block);
      else if (deferred.done())
        release_locked(block);
      else
        deferred_.push_back(std::move(deferred));
    }
    if (cached_ > kMostCached) empty_cache();
  }

  void record_stream(Block* block, c10::Stream stream) {
    const std::lock_guard lock(mutex_);
    if (stream.device_index() != block->device || stream.id() != block->stream)
      block->used_by.emplace(stream.device_index(), stream.id());
  }

  // Gives back the blocks that were kept for other streams' sake and are done with.
  void collect() {
    const std::lock_guard lock(mutex_);
    const auto first = std::stable_partition(deferred_.begin(), deferred_.end(),
                                             [](const Deferred& d) { return !d.done(); });
    for (auto it = first; it != deferred_.end(); ++it) release_locked(it->block);
    deferred_.erase(first, deferred_.end());
  }

  void empty_cache() {
    synchronize_all();
    collect();
    std::vector<Block*> blocks;
    {
      const std::lock_guard lock(mutex_);
      for (auto& [key, cached] : cache_)
        if (std::get<1>(key) == 0) {
          blocks.insert(blocks.end(), cached.begin(), cached.end());
          cached.clear();
        }
    }
    // Nobody can have these again, but what was submitted before still writes to them: the poison
    // of blocks released just now, and kernels that other threads started meanwhile.
    synchronize_all();
    const std::lock_guard lock(mutex_);
    for (Block* block : blocks) {
      of(block->device).reserved_bytes[0].decrease(block->bytes);
      cached_ -= static_cast<std::int64_t>(block->bytes);
      std::free(block->pointer);
      delete block;
    }
  }

  // What a capture kept is memory like any other.
  void release_pool(std::uint64_t pool) {
    std::vector<Block*> blocks;
    const std::lock_guard lock(mutex_);
    released_.insert(pool);
    for (auto& [key, cached] : cache_)
      if (std::get<1>(key) == pool) {
        blocks.insert(blocks.end(), cached.begin(), cached.end());
        cached.clear();
      }
    for (Block* block : blocks) release_locked(block);
  }

  Statistics statistics(int device) {
    collect();
    const std::lock_guard lock(mutex_);
    of(device).requested_bytes = of(device).allocated_bytes;
    return of(device);
  }

  void reset_peak(int device) {
    collect();
    const std::lock_guard lock(mutex_);
    Statistics& stats = of(device);
    for (auto* each : {&stats.allocated_bytes, &stats.active_bytes, &stats.reserved_bytes})
      each->front().reset_peak();
  }

  void reset_counts(int device) {
    const std::lock_guard lock(mutex_);
    of(device).allocation[0].reset_accumulated();
    of(device).num_ooms = 0;
  }

 private:
  using Key = std::tuple<int, std::uint64_t, std::int64_t, std::size_t>;  // stream after pool

  // In the place of a stream, of blocks that a capture uses on several: none of them may have it.
  static constexpr std::int64_t kUsedElsewhere = -1;

  static bool is_captured(const Block& block) {
    return block.pool != 0 && capture_of(stream_of(block.device, block.stream)) != nullptr;
  }

  bool fits_locked(int device, std::size_t bytes) const {
    const auto d = static_cast<std::size_t>(device);
    const std::int64_t used = statistics_[d].active_bytes[0].current;
    return static_cast<std::int64_t>(bytes) <= settings().capacity[d] - used;
  }

  Statistics& of(int device) { return statistics_[static_cast<std::size_t>(device)]; }

  bool fits(int device, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    return fits_locked(device, bytes);
  }

  void wait_for_deferred(int device) {
    std::vector<MarkPtr> marks;
    {
      const std::lock_guard lock(mutex_);
      for (const Deferred& deferred : deferred_)
        if (deferred.block->device == device)
          marks.insert(marks.end(), deferred.until.begin(), deferred.until.end());
    }
    for (const MarkPtr& mark : marks) mark->wait();
  }

  // A capture's memory stays in use, by its replays.
  void release_locked(Block* block) {
    if (released_.count(block->pool) > 0) block->pool = 0;
    block->used_by.clear();
    if (settings().poison) poison(*block);
    if (block->pool == 0) of(block->device).active_bytes[0].decrease(block->bytes);
    give_cached(block);
  }

  void give_cached(Block* block) {
    cache_[{block->device, block->pool, block->stream, block->bytes}].push_back(block);
    if (block->pool == 0) cached_ += static_cast<std::int64_t>(block->bytes);
  }

  Block* take_cached(const Key& key) {
    const auto found = cache_.find(key);
    if (found == cache_.end() || found->second.empty()) return nullptr;
    Block* block = found->second.back();
    found->second.pop_back();
    if (block->pool == 0) cached_ -= static_cast<std::int64_t>(block->bytes);
    return block;
  }

  std::mutex mutex_;
  std::map<Key, std::vector<Block*>> cache_;
  std::set<std::uint64_t> released_;  // captures that are gone
  std::vector<Deferred> deferred_;
  std::array<Statistics, kMaxDevices> statistics_{};
  std::atomic<std::int64_t> cached_ = 0;
};

Memory& memory() {
  static auto* the = new Memory;  // tensors may outlive every static
  return *the;
}

void free_block(void* context) {
  if (context != nullptr) memory().free(static_cast<Block*>(context));
}

class SimAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override { return allocate_on(current_device(), bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    const auto stream = current_stream(current_device());
    submit(stream, {.name = "copy_data"},
           [target, source, bytes] { std::memcpy(target, source, bytes); });
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { memory().empty_cache(); }
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
    if (pointer.get_context() != nullptr)
      memory().record_stream(static_cast<Block*>(pointer.get_context()), stream);
  }
  Statistics getDeviceStats(c10::DeviceIndex device) override {
    return memory().statistics(checked_device(device));
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { memory().reset_counts(device); }
  void resetPeakStats(c10::DeviceIndex device) override { memory().reset_peak(device); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const std::int64_t used = memory().statistics(checked_device(device)).active_bytes[0].current;
    const std::int64_t total = settings().capacity[static_cast<std::size_t>(device)];
    const std::int64_t free = total - used;
    return {static_cast<std::size_t>(free), static_cast<std::size_t>(total)};
  }
};

}  // namespace

c10::DeviceAllocator& device_allocator() {
  static auto* the = new SimAllocator;
  return *the;
}

void release_pool(std::uint64_t pool) { memory().release_pool(pool); }

c10::DataPtr allocate_on(int device, std::size_t bytes) {
  if (bytes == 0) return {nullptr, sim_device(device)};
  Block* block = memory().allocate(device, bytes);
  return {block->pointer, block, &free_block, sim_device(device)};
}

void resize_storage(const c10::Storage& storage, std::size_t bytes) {
  const int device = storage.device().index();
  const auto stream = current_stream(device);
  c10::DataPtr fresh = allocate_on(device, bytes);
  if (const std::size_t kept = std::min(bytes, storage.nbytes()); kept > 0) {
    device_allocator().recordStream(storage.data_ptr(), stream);
    submit(stream, {.name = "resize_"},
           [from = storage.data(), to = fresh.get(), kept] { std::memcpy(to, from, kept); });
  }
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

namespace {
const c10::AllocatorRegisterer<c10::DeviceType::PrivateUse1> registerer(&device_allocator());
}

}  // namespace baechi::sim
