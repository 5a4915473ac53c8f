// SPDX-License-Identifier: Apache-2.0
// Blocks of pinned memory; see pinned.h. A part has the context of its block, by which PyTorch's
// allocator notes which streams copy from it and to it, and waits for them before it gives the block
// to anybody else.
#include "pinned.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace baechi {
namespace {

struct Owned {
  at::Tensor memory;
  std::size_t owners;
};

struct Register {
  std::mutex mutex;
  std::unordered_map<void*, Owned> blocks;  // by their contexts
};

Register& the_register() {
  static auto* the = new Register;
  return *the;
}

void let_go(void* context) {
  at::Tensor memory;  // outlives the lock
  Register& all = the_register();
  const std::lock_guard lock(all.mutex);
  const auto block = all.blocks.find(context);
  if (--block->second.owners > 0) return;
  memory = std::move(block->second.memory);
  all.blocks.erase(block);
}

}  // namespace

Block::Block(std::size_t bytes) {
  const auto options = at::TensorOptions(at::kByte).device(at::kCPU).pinned_memory(true);
  at::Tensor memory = at::empty({static_cast<std::int64_t>(bytes)}, options);
  start_ = memory.mutable_data_ptr();
  context_ = memory.storage().data_ptr().get_context();
  Register& all = the_register();
  const std::lock_guard lock(all.mutex);
  all.blocks.emplace(context_, Owned{std::move(memory), 1});
}

Block::~Block() { let_go(context_); }

c10::Storage Block::storage(std::size_t offset, std::size_t bytes) const {
  {
    Register& all = the_register();
    const std::lock_guard lock(all.mutex);
    ++all.blocks.at(context_).owners;
  }
  c10::DataPtr data(static_cast<char*>(start_) + offset, context_, &let_go, at::kCPU);
  return {c10::Storage::use_byte_size_t(), bytes, std::move(data), /*allocator=*/nullptr,
          /*resizable=*/false};
}

at::Tensor Block::part(std::size_t offset, std::size_t bytes) const {
  const auto count = static_cast<std::int64_t>(bytes);
  return at::empty({0}, at::kByte).set_(storage(offset, bytes), 0, {count}, {1});
}

Pieces& Pieces::all() {
  static auto* the = new Pieces;
  return *the;
}

std::vector<std::size_t> Pieces::missing(const std::vector<std::size_t>& sizes) {
  std::unordered_map<std::size_t, std::size_t> wanted;
  for (const std::size_t size : sizes) ++wanted[size];
  std::vector<std::size_t> result;
  const std::lock_guard lock(mutex_);
  ++now_;
  for (const auto& [size, count] : wanted) {
    std::size_t free = 0;
    if (const auto found = by_size_.find(size); found != by_size_.end())
      for (const auto& piece : found->second) free += piece->storage.use_count() == 1 ? 1 : 0;
    if (free < count) result.insert(result.end(), count - free, size);
  }
  return result;
}

void Pieces::add(const Block& block,
                 const std::vector<std::pair<std::size_t, std::size_t>>& parts) {
  const std::lock_guard lock(mutex_);
  for (const auto& [offset, bytes] : parts) {
    Those& those = by_size_[bytes];
    those.push_back(std::make_unique<Piece>(Piece{block.storage(offset, bytes), {}, now_}));
    by_start_[those.back()->storage.data()] = those.back().get();
  }
}

void Pieces::clear(std::size_t unused_for) {
  Those dropped;  // without the lock
  const std::lock_guard lock(mutex_);
  for (auto& [size, those] : by_size_)
    std::erase_if(those, [&](std::unique_ptr<Piece>& piece) {
      if (piece->storage.use_count() > 1 || piece->taken + unused_for > now_) return false;
      by_start_.erase(piece->storage.data());
      dropped.push_back(std::move(piece));
      return true;
    });
}

at::Tensor Pieces::take(const at::Tensor& like, c10::Stream writes) {
  if (like.layout() != at::kStrided || like.is_conj() || like.is_neg()) return {};
  const std::lock_guard lock(mutex_);
  const auto found = by_size_.find(like.nbytes());
  if (found == by_size_.end()) return {};
  for (const auto& piece : found->second) {
    if (piece->storage.use_count() > 1) continue;
    for (const auto& [stream, event] : piece->copies)
      if (!event.query()) event.block(writes);
    piece->copies.clear();
    piece->taken = now_;
    const at::Tensor dense = at::empty_like(like, like.options().device(at::kMeta));
    const auto options = like.options().device(at::kCPU).pinned_memory(false);
    return at::empty({0}, options).set_(piece->storage, 0, dense.sizes(), dense.strides());
  }
  return {};
}

void Pieces::note(const at::Tensor& host, c10::Stream stream) {
  if (!host.has_storage()) return;
  const std::lock_guard lock(mutex_);
  const auto found = by_start_.find(host.storage().data());
  if (found == by_start_.end()) return;
  auto& copies = found->second->copies;
  std::erase_if(copies, [&](const auto& copy) { return copy.first == stream; });
  copies.emplace_back(stream, c10::Event(stream.device_type()));
  copies.back().second.record(stream);
}

}  // namespace baechi
