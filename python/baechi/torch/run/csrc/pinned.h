// SPDX-License-Identifier: Apache-2.0
// Pinned host memory in blocks, of which storages are parts: one allocation for many tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace baechi {

// A block from PyTorch's allocator, which its parts keep.
class Block {
 public:
  explicit Block(std::size_t bytes);
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block();

  // A storage of its own for `bytes` from `offset` on, as a tensor of bytes.
  at::Tensor part(std::size_t offset, std::size_t bytes) const;
  c10::Storage storage(std::size_t offset, std::size_t bytes) const;

 private:
  void* start_;
  void* context_;
};

// Pinned memory for what is put, by size. A piece that no tensor has is given out again, and who
// writes to it then is behind the copies that were asked for.
class Pieces {
 public:
  static Pieces& all();

  // Of these sizes those for which no piece is free.
  std::vector<std::size_t> missing(const std::vector<std::size_t>& sizes);
  // Each is (offset, bytes).
  void add(const Block& block, const std::vector<std::pair<std::size_t, std::size_t>>& parts);
  // Drops those that no tensor has, nor has had since `missing` was called so often.
  void clear(std::size_t unused_for);

  // Memory on the host for a copy of a tensor that a stream writes; undefined if none is free.
  at::Tensor take(const at::Tensor& like, c10::Stream writes);
  // A stream copies to this storage, or from it, up to now.
  void note(const at::Tensor& host, c10::Stream stream);

 private:
  struct Piece {
    c10::Storage storage;
    std::vector<std::pair<c10::Stream, c10::Event>> copies;
    std::size_t taken;
  };
  using Those = std::vector<std::unique_ptr<Piece>>;

  std::mutex mutex_;
  std::size_t now_ = 0;
  std::unordered_map<std::size_t, Those> by_size_;
  std::unordered_map<const void*, Piece*> by_start_;
};

}  // namespace baechi
