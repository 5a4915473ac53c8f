// SPDX-License-Identifier: Apache-2.0
// Sparse tensors on simulated devices: what gradients of embeddings are.
//
// Indices and values are dense tensors of the device. PyTorch's own code puts them together and
// takes them apart; for all else the host waits and runs the CPU's kernel on the same memory.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_embedding_bag_backward_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/values_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <optional>

#include "fallback.h"
#include "launch.h"

namespace baechi::sim {
namespace {

using MaybeType = std::optional<at::ScalarType>;
using MaybeLayout = std::optional<at::Layout>;
using MaybeDevice = std::optional<at::Device>;

// A new sparse tensor takes the device that is the current one, whatever it is told.
c10::DeviceGuard on(const MaybeDevice& device) {
  return c10::DeviceGuard(device.value_or(sim_device(current_device())));
}

at::Tensor empty_sparse(c10::SymIntArrayRef size, MaybeType type, MaybeLayout layout,
                        MaybeDevice device, std::optional<bool> pin,
                        std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard = on(device);
  return at::native::empty_sparse_symint(size, type, layout, device, pin, format);
}

at::Tensor with_dims(std::int64_t sparse, std::int64_t dense, at::IntArrayRef size, MaybeType type,
                     MaybeLayout layout, MaybeDevice device, std::optional<bool> pin) {
  const c10::DeviceGuard guard = on(device);
  return at::native::new_with_dims_sparse(sparse, dense, size, type, layout, device, pin);
}

at::Tensor with_tensors(std::int64_t sparse, std::int64_t dense, c10::SymIntArrayRef size,
                        const at::Tensor& indices, const at::Tensor& values, MaybeType type,
                        MaybeLayout layout, MaybeDevice device, std::optional<bool> pin,
                        std::optional<bool> coalesced) {
  const c10::DeviceGuard guard = on(values.device());
  return at::native::new_with_dims_and_tensor_sparse_symint(sparse, dense, size, indices, values,
                                                            type, layout, device, pin, coalesced);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_sparse_coo_tensor_with_dims", with_dims);
  m.impl("_sparse_coo_tensor_with_dims_and_tensors", with_tensors);
  m.impl("empty.memory_format", empty_sparse);
  m.impl("sparse_dim", at::native::sparse_dim_sparse);
  m.impl("dense_dim", at::native::dense_dim_sparse);
  m.impl("_nnz", at::native::_nnz_sparse);
  m.impl("is_coalesced", at::native::is_coalesced_sparse);
  m.impl("_coalesced_", at::native::_coalesced_sparse_);
  m.impl("_indices", at::native::_indices_sparse);
  m.impl("_values", at::native::_values_sparse);
  m.impl("indices", at::native::indices_sparse);
  m.impl("values", at::native::values_sparse);
  m.impl("copy_", at::native::copy_sparse_wrapper_);
}

// It chooses between a dense and a sparse gradient, and has no kernel of its own.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_embedding_bag_backward", at::native::_embedding_bag_backward_symint);
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&sparse_fallback>());
}

}  // namespace baechi::sim
