// SPDX-License-Identifier: Apache-2.0
// A tensor goes to another device, its gradient comes back: the transfers of Paper 3.2 as a node of
// autograd, on the generic streams and events of c10.
//
// Autograd runs the backward of a node on the stream that its forward ran on, so the forward runs
// under the receiving stream. Its own copy node would fill the gradient in on the default stream of
// the device it goes to, and make that device wait for every gradient.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cstdint>
#include <utility>

#include "sent_gradients.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The streams of one transfer, in the order that Python gives them.
struct Route {
  c10::Stream behind;            // on the source: what it was asked to do so far makes the tensor
  c10::Stream producer;          // where the tensor is made, on the source
  c10::Stream send;              // on the source
  c10::Stream receive;           // on the target
  c10::Stream consumer;          // where the copy is read, on the target
  c10::Stream gradient_send;     // on the target
  c10::Stream gradient_receive;  // on the source
};

c10::Stream unpack(const std::vector<std::int64_t>& parts, std::size_t i) {
  return c10::Stream::unpack3(parts[i], static_cast<c10::DeviceIndex>(parts[i + 1]),
                              static_cast<c10::DeviceType>(parts[i + 2]));
}

Route unpack(const std::vector<std::int64_t>& parts) {
  TORCH_CHECK_VALUE(parts.size() == 21, "a route is seven streams of three numbers");
  return {unpack(parts, 0),  unpack(parts, 3),  unpack(parts, 6), unpack(parts, 9),
          unpack(parts, 12), unpack(parts, 15), unpack(parts, 18)};
}

// The way of what is computed from a gradient, in the backward of a backward.
std::vector<std::int64_t> reversed(const std::vector<std::int64_t>& parts) {
  std::vector<std::int64_t> result;
  for (const std::size_t stream : {3, 4, 5, 6, 1, 2, 3})
    result.insert(result.end(), parts.begin() + 3 * stream, parts.begin() + 3 * stream + 3);
  return result;
}

struct Hop {
  c10::Stream producer, send, receive, consumer;
};

// A tensor that is conjugated or negated lazily, as it lies in memory. PyTorch's record_stream of
// the tensor itself would keep the memory of a copy, and leak it.
at::Tensor as_stored(const at::Tensor& tensor) {
  const at::NoGradGuard no_nodes;
  const at::Tensor stored = tensor.is_conj() ? tensor.conj() : tensor;
  return stored.is_neg() ? stored._neg_view() : stored;
}

// Copies `tensor` behind what the producer was asked to do so far. The result may be read on
// `receive`; a reader on another stream waits for `receive` first. It is as lazy as `tensor`:
// kernels need as much memory for either.
at::Tensor hop(const at::Tensor& tensor, const Hop& streams) {
  c10::Event ready(streams.producer.device_type());
  ready.record(streams.producer);
  ready.block(streams.send);
  const bool within = streams.send.device() == streams.receive.device();
  const at::Tensor stored = as_stored(tensor);
  at::Tensor copy;
  if (within) {
    const c10::StreamGuard guard(streams.send);
    copy = stored.clone();
    c10::Event sent(streams.send.device_type());
    sent.record(streams.send);
    sent.block(streams.receive);
    copy.record_stream(streams.receive);
  } else {
    // A copy between devices is ordered behind the current streams of both.
    const c10::StreamGuard sending(streams.send);
    const c10::StreamGuard receiving(streams.receive);
    copy = stored.to(streams.receive.device(), /*non_blocking=*/true);
  }
  // The allocators must not hand out either memory before these streams are past the copy.
  stored.record_stream(streams.send);
  copy.record_stream(streams.consumer);
  copy._set_conj(tensor.is_conj());
  copy._set_neg(tensor.is_neg());
  return copy;
}

at::Tensor transfer(const at::Tensor& tensor, at::IntArrayRef parts);

class Transfer : public torch::autograd::Function<Transfer> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor,
                            const std::vector<std::int64_t>& parts) {
    context->saved_data["route"] = parts;
    context->set_materialize_grads(false);
    const Route route = unpack(parts);
    return hop(tensor, {route.behind, route.send, route.receive, route.consumer});
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (!gradients[0].defined()) return {at::Tensor(), at::Tensor()};  // none, and not zeros
    const auto parts = context->saved_data["route"].toIntVector();
    const Route route = unpack(parts);
    // The engine ordered the gradient before the current stream, which is `receive`.
    at::Tensor gradient = transfer(gradients[0], reversed(parts));
    baechi::SentGradients::sent(gradients[0], route.gradient_send, route.consumer);
    // The engine orders who reads the result behind the current stream.
    c10::Event done(route.gradient_receive.device_type());
    done.record(route.gradient_receive);
    done.block(route.receive);
    return {gradient, at::Tensor()};
  }
};

// What the readers of a copy give back meets here, on the stream that they compute on. Autograd adds
// up on the stream of the node that wants the sum, and it asks only the host who holds a summand
// before it adds to that in place elsewhere: read on `receive`, one could be changed before.
class Arrived : public torch::autograd::Function<Arrived> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& copy) {
    context->set_materialize_grads(false);
    return copy.variable_data();  // no view: who changes it in place changes no other
  }

  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    return {gradients[0]};
  }
};

at::Tensor transfer(const at::Tensor& tensor, at::IntArrayRef parts) {
  const std::vector<std::int64_t> numbers = parts.vec();
  const Route route = unpack(numbers);
  if (!(at::GradMode::is_enabled() && tensor.requires_grad()))
    return hop(tensor, {route.behind, route.send, route.receive, route.consumer});
  // Autograd runs what was made last first: a copy that was sent long before it was read would send
  // its gradient long after that is ready.
  at::Tensor copy;
  {
    const c10::StreamGuard guard(route.receive);
    copy = Transfer::apply(tensor, numbers);
    copy.grad_fn()->set_sequence_nr(UINT64_MAX);
  }
  const c10::StreamGuard guard(route.consumer);
  copy = Arrived::apply(copy);
  copy.grad_fn()->set_sequence_nr(UINT64_MAX);
  return copy;
}

// Where the gradients of what is sent to several devices meet on their way back.
class Collection : public torch::autograd::Function<Collection> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor) {
    context->set_materialize_grads(false);
    return tensor.variable_data();  // no view: it would keep `tensor` alive
  }

  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    return {gradients[0]};
  }
};

at::Tensor collection(const at::Tensor& tensor, at::IntArrayRef stream) {
  const c10::StreamGuard guard(unpack(stream.vec(), 0));
  return Collection::apply(tensor);
}

}  // namespace

TORCH_LIBRARY(baechi, m) {
  m.def("collection(Tensor tensor, int[] stream) -> Tensor");
  m.impl("collection", c10::DispatchKey::CompositeImplicitAutograd, &collection);
  m.def("transfer(Tensor tensor, int[] route) -> Tensor");
  m.impl("transfer", c10::DispatchKey::CompositeImplicitAutograd, &transfer);
}
