// SPDX-License-Identifier: Apache-2.0
// Pinned host memory in blocks, of which storages are parts: one allocation for many tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

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

 private:
  void* start_;
  void* context_;
};

}  // namespace baechi
