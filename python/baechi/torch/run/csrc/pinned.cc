// SPDX-License-Identifier: Apache-2.0
// Blocks of pinned memory; see pinned.h. A part has the context of its block, by which PyTorch's
// allocator notes which streams copy from it and to it, and waits for them before it gives the block
// to anybody else.
#include "pinned.h"

#include <ATen/ops/empty.h>
#include <c10/core/Storage.h>

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

at::Tensor Block::part(std::size_t offset, std::size_t bytes) const {
  {
    Register& all = the_register();
    const std::lock_guard lock(all.mutex);
    ++all.blocks.at(context_).owners;
  }
  c10::DataPtr data(static_cast<char*>(start_) + offset, context_, &let_go, at::kCPU);
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(data),
                             /*allocator=*/nullptr, /*resizable=*/false);
  return at::empty({0}, at::kByte).set_(storage, 0, {static_cast<std::int64_t>(bytes)}, {1});
}

}  // namespace baechi
