// SPDX-License-Identifier: Apache-2.0
// From a tensor of a simulated device to a CPU kernel on the same memory; see launch.h.
#include "launch.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/Parallel.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

namespace baechi::sim {
namespace {

c10::DispatchKeySet keys_above_kernels() {
  static const c10::DispatchKeySet keys =
      c10::autograd_dispatch_keyset_with_ADInplaceOrView |
      c10::DispatchKeySet({c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastPrivateUse1,
                           c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});
  return keys;
}

}  // namespace

at::Tensor sparse_tensor(const at::Tensor& indices, const at::Tensor& values,
                         const at::Tensor& like) {
  return at::_sparse_coo_tensor_unsafe(indices, values, like.sizes())
      ._coalesced_(like.is_coalesced());
}

at::Tensor HostAliases::of(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (tensor.is_sparse()) return sparse_tensor(of(tensor._indices()), of(tensor._values()), tensor);
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const c10::Storage* alias = nullptr;
  for (const auto& [known, its_alias] : storages_)
    if (known == storage) alias = &its_alias;
  if (alias == nullptr) {
    c10::DataPtr pointer(storage->mutable_data_ptr().get(), c10::Device(c10::DeviceType::CPU));
    storages_.emplace_back(storage, c10::Storage(c10::Storage::use_byte_size_t(), storage->nbytes(),
                                                 std::move(pointer), nullptr, false));
    alias = &storages_.back().second;
  }
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(*alias), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  if (tensor.is_conj()) impl->_set_conj(true);
  if (tensor.is_neg()) impl->_set_neg(true);
  return at::Tensor(std::move(impl));
}

HostKernelScope::HostKernelScope() : excluded_(keys_above_kernels()) {}

std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.numel() * static_cast<std::int64_t>(tensor.itemsize()) : 0;
}

void launch(const char* name, int device, std::int64_t bytes, Task kernel) {
  const int threads = at::get_num_threads();
  submit(current_stream(device), {.name = name, .duration_ns = operator_duration_ns(bytes)},
         [threads, kernel = std::move(kernel)] {
           // As many as the caller would use, so that sums are split the same way.
           if (at::get_num_threads() != threads) at::set_num_threads(threads);
           const HostKernelScope scope;
           kernel();
         });
}

at::Tensor empty_like_host(int device, const at::Tensor& host) {
  if (!host.defined()) return host;
  const auto options = at::dtype(host.scalar_type()).device(sim_device(device));
  return at::has_internal_overlap(host) != at::MemOverlap::Yes
             ? at::empty_strided(host.sizes(), host.strides(), options)
             : at::empty(host.sizes(), options);
}

}  // namespace baechi::sim
