// SPDX-License-Identifier: Apache-2.0
// Sparse tensors on simulated devices: what gradients of embeddings are.
//
// Indices and values are dense tensors of the device. PyTorch's own code puts them together and
// takes them apart; for all else the host waits and runs the CPU's kernel on the same memory.
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_embedding_bag_backward_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
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
#include <string>
#include <utility>
#include <vector>

#include "fallback.h"
#include "launch.h"

namespace baechi::sim {
namespace {

using torch::jit::Stack;

at::SparseTensorImpl* sparse_impl(const at::Tensor& tensor) {
  return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

at::Tensor put_together(const at::Tensor& indices, const at::Tensor& values, at::IntArrayRef sizes,
                        bool coalesced) {
  at::Tensor result = at::_sparse_coo_tensor_unsafe(indices, values, sizes);
  return result._coalesced_(coalesced);
}

// One call of one operator with a sparse tensor among its arguments or results.
class SparseCall {
 public:
  SparseCall(const c10::OperatorHandle& op, Stack* stack)
      : schema_(op.schema()),
        stack_(stack),
        first_(stack->size() - schema_.arguments().size()),
        device_(find_device()) {}

  void run(const c10::OperatorHandle& op) {
    const c10::DeviceGuard guard(sim_device(device_));
    if (settings().asynchronous) synchronize(current_stream(device_));
    Stack host = host_arguments();
    const Stack given = host;  // what is changed in place is written back from these
    {
      const HostKernelScope scope;
      op.callBoxed(&host);
    }
    Stack results;
    for (std::size_t i = 0; i < host.size(); ++i) results.push_back(result(i, host[i]));
    for (std::size_t i = 0; i < schema_.arguments().size(); ++i)
      if (writes(i) && on_sim_sparse(argument(i))) write_back(argument(i), given[i].toTensor());
    torch::jit::drop(*stack_, schema_.arguments().size());
    for (c10::IValue& value : results) stack_->push_back(std::move(value));
  }

 private:
  const c10::IValue& argument(std::size_t i) const { return (*stack_)[first_ + i]; }

  bool writes(std::size_t i) const {
    const c10::AliasInfo* info = schema_.arguments()[i].alias_info();
    return info != nullptr && info->isWrite();
  }

  static bool on_sim_sparse(const c10::IValue& value) {
    return value.isTensor() && on_sim(value.toTensor()) && value.toTensor().is_sparse();
  }

  int find_device() const {
    for (std::size_t i = 0; i < schema_.arguments().size(); ++i) {
      if (argument(i).isDevice() && argument(i).toDevice().has_index())
        return argument(i).toDevice().index();
      if (!argument(i).isTensor()) continue;
      const at::Tensor& tensor = argument(i).toTensor();
      TORCH_CHECK(!tensor.defined() || on_sim(tensor) || tensor.dim() == 0,
                  "Expected all tensors to be on the same device, but argument ",
                  schema_.arguments()[i].name(), " of ", schema_.name(), " is on ",
                  tensor.device());
      if (on_sim(tensor)) return tensor.device().index();
    }
    return current_device();
  }

  at::Tensor on_host(const at::Tensor& tensor) {
    if (!on_sim(tensor)) return tensor;
    if (!tensor.is_sparse()) return aliases_.of(tensor);
    return put_together(aliases_.of(tensor._indices()), aliases_.of(tensor._values()),
                        tensor.sizes(), tensor.is_coalesced());
  }

  Stack host_arguments() {
    Stack host;
    for (std::size_t i = 0; i < schema_.arguments().size(); ++i) {
      const c10::IValue& value = argument(i);
      if (value.isDevice())
        host.emplace_back(c10::Device(c10::DeviceType::CPU));
      else if (value.isTensor())
        host.emplace_back(on_host(value.toTensor()));
      else
        host.push_back(value);
    }
    return host;
  }

  // A copy on the device. It goes through the stream, which may have work to do on its memory.
  at::Tensor dense_copy(const at::Tensor& host) {
    at::Tensor copy = empty_like_host(device_, host);
    launch("sparse", device_, bytes_of(host),
           [source = host, target = HostAliases().of(copy)] { target.copy_(source); });
    return copy;
  }

  at::Tensor copy_of(const at::Tensor& host) {
    if (!host.defined() || !host.is_sparse()) return host.defined() ? dense_copy(host) : host;
    return put_together(dense_copy(host._indices()), dense_copy(host._values()), host.sizes(),
                        host.is_coalesced());
  }

  c10::IValue result(std::size_t i, const c10::IValue& host) {
    if (!host.isTensor()) return host;
    const c10::AliasInfo* info = schema_.returns()[i].alias_info();
    for (std::size_t a = 0; info != nullptr && a < schema_.arguments().size(); ++a) {
      const c10::AliasInfo* other = schema_.arguments()[a].alias_info();
      if (other != nullptr && other->beforeSets() == info->beforeSets()) return argument(a);
    }
    return copy_of(host.toTensor());
  }

  void write_back(const c10::IValue& value, const at::Tensor& host) {
    const at::Tensor& tensor = value.toTensor();
    sparse_impl(tensor)->raw_resize_(host.sparse_dim(), host.dense_dim(), host.sizes());
    sparse_impl(tensor)->set_indices_and_values_unsafe(dense_copy(host._indices()),
                                                       dense_copy(host._values()));
    sparse_impl(tensor)->set_coalesced(host.is_coalesced());
  }

  const c10::FunctionSchema& schema_;
  Stack* stack_;
  const std::size_t first_;
  const int device_;
  HostAliases aliases_;
};

void sparse_fallback(const c10::OperatorHandle& op, Stack* stack) { SparseCall(op, stack).run(op); }

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
