// SPDX-License-Identifier: Apache-2.0
// Making tensors, viewing them, reading one number: what has no CPU kernel to fall back to.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "capture.h"
#include "fallback.h"
#include "launch.h"
#include "memory.h"

namespace baechi::sim {
namespace {

using OptionalType = std::optional<at::ScalarType>;

at::Tensor empty(at::IntArrayRef size, OptionalType type, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool> pin,
                 std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(c10::layout_or_default(layout) == at::kStrided,
              "simulated devices hold strided tensors only");
  TORCH_CHECK(!pin.value_or(false), "only tensors on the CPU can be pinned");
  const c10::DeviceGuard guard(device.value_or(sim_device(current_device())));
  return at::Tensor(at::detail::empty_generic(size, &device_allocator(), kSimKeys,
                                              c10::dtype_or_default(type), format));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, OptionalType type,
                         std::optional<at::Layout>, std::optional<at::Device> device,
                         std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(sim_device(current_device())));
  return at::Tensor(at::detail::empty_strided_generic(size, stride, &device_allocator(), kSimKeys,
                                                      c10::dtype_or_default(type)));
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size,
                          std::optional<at::MemoryFormat> format) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  const std::size_t needed = at::detail::computeStorageNbytes(
      self.sizes(), self.strides(), self.itemsize(), static_cast<size_t>(self.storage_offset()));
  if (needed > self.storage().nbytes()) resize_storage(self.storage(), needed);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto size = static_cast<std::int64_t>(source.nbytes() / self.itemsize());
  return at::native::set_storage_cpu_(self, std::move(source), 0, {size}, {});
}

at::Tensor& set_empty(at::Tensor& self) {
  at::Storage storage(at::Storage::use_byte_size_t(), 0, allocate_on(self.device().index(), 0),
                      &device_allocator(), true);
  return at::native::set_storage_cpu_(self, std::move(storage), 0, {0}, {});
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  refuse_in_capture(current_stream(self.device().index()), "cannot read a number on the host");
  synchronize(current_stream(self.device().index()));
  const HostKernelScope scope;
  return at::_local_scalar_dense(HostAliases().of(self));
}

void record_stream(at::Tensor& self, at::Stream stream) {
  device_allocator().recordStream(self.storage().data_ptr(), stream);
}

// `parameter.data = other` may move a parameter between the host and a simulated device.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto plain = [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && !tensor.is_quantized() &&
           (on_sim(tensor) || tensor.device().is_cpu());
  };
  return plain(self) && plain(from);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize_);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(at::native::view));
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_", set_empty);
  m.impl("_local_scalar_dense", local_scalar_dense);
  m.impl("record_stream", record_stream);
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
  // These have decompositions, which would be preferred to the fallback and round differently.
  for (const char* name :
       {"native_layer_norm", "native_group_norm", "_stack", "_stack.out", "addr", "addr.out",
        "all.dims", "all.dims_out", "any.dims", "any.dims_out", "linalg__powsum", "linalg_lstsq",
        // And these are laid out otherwise than their meta functions say.
        "_softmax_backward_data", "_log_softmax_backward_data", "mul.Tensor"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace baechi::sim
