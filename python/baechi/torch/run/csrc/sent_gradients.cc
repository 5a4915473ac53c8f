// SPDX-License-Identifier: Apache-2.0
// Gradients that copies may still read; see sent_gradients.h.
#include "sent_gradients.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace baechi {
namespace {

const void* storage_of(const at::Tensor& gradient) {
  return gradient.storage().unsafeGetStorageImpl();
}

// The stream that a caller of this thread writes on.
c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// Whether anybody else holds these tensors of one storage, each of which is referred to once here.
// A view refers to the tensor that it is a view of.
bool held_elsewhere(c10::ArrayRef<at::Tensor> tensors) {
  std::unordered_map<const at::TensorImpl*, std::size_t> references;
  for (const at::Tensor& tensor : tensors) {
    ++references[tensor.unsafeGetTensorImpl()];
    if (tensor.is_view()) ++references[tensor._base().unsafeGetTensorImpl()];
  }
  const auto is_held = [&](const at::TensorBase& tensor) {
    return tensor.use_count() > references[tensor.unsafeGetTensorImpl()];
  };
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& tensor) {
                       return is_held(tensor) || (tensor.is_view() && is_held(tensor._base()));
                     }) ||
         tensors.front().storage().use_count() > references.size();
}

std::mutex registered_mutex;
std::unordered_map<int, std::weak_ptr<SentGradients>>& registered() {
  static auto* all = new std::unordered_map<int, std::weak_ptr<SentGradients>>;
  return *all;
}

}  // namespace

void SentGradients::Read::order_others_behind() const {
  event.block(maker);
  const c10::Stream callers = current_stream(maker.device());
  if (callers != maker) event.block(callers);
}

void SentGradients::sent(const at::Tensor& gradient, c10::Stream reads, c10::Stream maker) {
  if (!gradient.has_storage()) return;
  const bool shared = held_elsewhere(gradient);
  const int backward = torch::autograd::get_current_graph_task_id();
  const auto all = of_this_backward(backward, shared);
  if (all != nullptr) all->drop_unheld();
  if (!shared) return;
  Read read{c10::Event(reads.device_type()), maker};
  read.event.record(reads);
  if (all != nullptr)
    all->keep(gradient, std::move(read));
  else  // the node was called by hand: there is no end of a backward
    read.order_others_behind();
}

// The callback belongs to the backward and is its only owner, so that nothing outlives one that
// fails. A backward inside a backward has its own.
std::shared_ptr<SentGradients> SentGradients::of_this_backward(int backward, bool wanted) {
  if (backward < 0) return nullptr;
  std::shared_ptr<SentGradients> made;
  {
    const std::lock_guard lock(registered_mutex);
    const auto known = registered().find(backward);
    if (known != registered().end()) return known->second.lock();
    if (!wanted) return nullptr;
    made = std::make_shared<SentGradients>(backward);
    registered()[backward] = made;
  }
  torch::autograd::Engine::get_default_engine().queue_callback([made] { made->settle(); });
  return made;
}

void SentGradients::keep(const at::Tensor& gradient, Read read) {
  const std::lock_guard lock(mutex_);
  Sent& sent = sent_[storage_of(gradient)];
  const bool known = std::any_of(sent.gradients.begin(), sent.gradients.end(),
                                 [&](const at::Tensor& other) { return other.is_same(gradient); });
  if (!known) sent.gradients.push_back(gradient);
  sent.reads.push_back(std::move(read));
}

void SentGradients::drop_unheld() {
  const std::lock_guard lock(mutex_);
  std::erase_if(sent_, [](const auto& entry) { return !held_elsewhere(entry.second.gradients); });
}

void SentGradients::settle() {
  drop_unheld();
  const std::lock_guard lock(mutex_);
  for (const auto& [_, sent] : sent_)
    for (const Read& read : sent.reads) read.order_others_behind();
  sent_.clear();
}

SentGradients::~SentGradients() {
  try {
    settle();
  } catch (const std::exception&) {  // the device failed, which the next call on it reports
  }
  const std::lock_guard lock(registered_mutex);
  registered().erase(backward_);
}

}  // namespace baechi
