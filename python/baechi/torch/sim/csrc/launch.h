// SPDX-License-Identifier: Apache-2.0
// From a tensor of a simulated device to a CPU kernel that works on the same memory.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "streams.h"

namespace baechi::sim {

inline constexpr c10::DispatchKeySet kSimKeys(c10::DispatchKey::PrivateUse1);

inline bool on_sim(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1;
}

// A sparse tensor of its parts, in other respects like `like`.
at::Tensor sparse_tensor(const at::Tensor& indices, const at::Tensor& values,
                         const at::Tensor& like);

// Makes CPU tensors of the same memory, sizes and strides. They own nothing: like a kernel's
// pointers, they are valid as long as streams and record_stream keep the memory so. Tensors that
// share a storage get aliases that share one, too.
class HostAliases {
 public:
  at::Tensor of(const at::Tensor& tensor);

 private:
  std::vector<std::pair<const c10::StorageImpl*, c10::Storage>> storages_;
};

// In effect while a CPU kernel runs for a simulated device: no autograd, no autocast, no modes.
class HostKernelScope {
 public:
  HostKernelScope();

 private:
  c10::impl::ExcludeDispatchKeyGuard excluded_;
};

std::int64_t bytes_of(const at::Tensor& tensor);

// Runs `kernel` on the current stream of `device`; see `submit`. `bytes` are read or written.
void launch(const char* name, int device, std::int64_t bytes, Task kernel);

// A tensor of a device with the sizes and, where nothing overlaps, the strides of another tensor; its
// contents are undefined.
at::Tensor empty_like_host(int device, const at::Tensor& host);

// Random numbers: a seed and a counter per device, so that results depend on the order in which
// operators were called, never on when streams ran them.
const at::Generator& default_generator(int device);
at::Generator make_generator(int device);

// A host generator for the next operator that draws from `generator`, which moves on by one.
at::Generator host_generator_for_next_operator(const at::Generator& generator);

}  // namespace baechi::sim
