// SPDX-License-Identifier: Apache-2.0
// Copies: on a device, between devices and to and from the host, at the speed of their link.
#include <ATen/core/Tensor.h>
#include <ATen/ops/copy.h>
#include <torch/library.h>

#include <memory>

#include "launch.h"
#include "memory.h"

namespace baechi::sim {
namespace {

std::int64_t link_ns(int source, int target, std::int64_t bytes) {
  const auto from = static_cast<std::size_t>(source), to = static_cast<std::size_t>(target);
  return settings().links[from][to].duration_ns(bytes);
}

Task copy_task(const at::Tensor& source, const at::Tensor& target) {
  HostAliases aliases;
  return [from = aliases.of(source), to = aliases.of(target)] {
    const HostKernelScope scope;
    to.copy_(from);
  };
}

std::shared_ptr<void> reference_to(const at::Tensor& host) {
  return std::make_shared<c10::Storage>(host.storage());
}

void copy_between_devices(const at::Tensor& source, const at::Tensor& target) {
  const int from = source.device().index(), to = target.device().index();
  submit_copy(current_stream(from), current_stream(to),
              {.name = "copy between devices",
               .duration_ns = link_ns(from, to, bytes_of(target)),
               .copy = true},
              copy_task(source, target));
}

// The host goes on only if its memory is pinned: else it may change, or go away, too early.
void finish_copy(c10::Stream stream, const at::Tensor& host, bool non_blocking) {
  if (non_blocking && is_pinned(host.storage().data()))
    keep_alive_until_done(stream, reference_to(host));
  else
    synchronize(stream);
}

void copy_from_or_to_host(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  const bool comes = on_sim(target);
  const at::Tensor& here = comes ? target : source;
  const at::Tensor& host = comes ? source : target;
  TORCH_CHECK(host.device().is_cpu(), "cannot copy from ", source.device(), " to ",
              target.device());
  const int device = here.device().index();
  const c10::Stream stream = current_stream(device);
  submit(stream,
         {.name = comes ? "copy from the host" : "copy to the host",
          .duration_ns = link_ns(comes ? kHost : device, comes ? device : kHost, bytes_of(here)),
          .copy = true},
         copy_task(source, target));
  finish_copy(stream, host, non_blocking);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool non_blocking) {
  if (target.numel() == 0) return target;
  const at::Tensor source = self.sizes() == target.sizes() ? self : self.expand(target.sizes());
  if (on_sim(source) && on_sim(target)) {
    if (source.device() == target.device())
      launch("copy_", target.device().index(), bytes_of(source) + bytes_of(target),
             copy_task(source, target));
    else
      copy_between_devices(source, target);
  } else {
    copy_from_or_to_host(source, target, non_blocking);
  }
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& target) {
  if (target.sizes() != self.sizes()) target.resize_(self.sizes());
  return copy_from(self, target, false);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
}

// The host's kernels read conjugated and negated tensors themselves; to resolve the copy's source
// first would mean to copy it.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace baechi::sim
