// SPDX-License-Identifier: Apache-2.0
// Gradients that copies may still read while somebody else holds them (Paper 3.2).
//
// Autograd hands one tensor to several nodes, and asks only the host who holds it: a buffer that is
// the last holder is added to in place, `.grad` takes over what nobody else refers to.
// record_stream keeps memory from being used again, not from being written by those who hold it. So
// what is sent is referred to from here until nobody else holds it. What others hold when the
// backward ends, they may change from then on: their streams are ordered behind the copies.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace baechi {

class SentGradients {
 public:
  // To be called while autograd runs the node that sends `gradient`, when the copy is submitted to
  // the stream `reads`. `maker` is the stream that its device computes on.
  static void sent(const at::Tensor& gradient, c10::Stream reads, c10::Stream maker);

  explicit SentGradients(int backward) : backward_(backward) {}
  SentGradients(const SentGradients&) = delete;
  SentGradients& operator=(const SentGradients&) = delete;
  ~SentGradients();  // also where the backward fails: its callbacks never run then

 private:
  struct Read {
    c10::Event event;
    c10::Stream maker;

    void order_others_behind() const;
  };
  struct Sent {                         // of one storage
    std::vector<at::Tensor> gradients;  // distinct ones
    std::vector<Read> reads;
  };

  static std::shared_ptr<SentGradients> of_this_backward(int backward, bool wanted);
  void keep(const at::Tensor& gradient, Read read);
  void drop_unheld();
  void settle();

  const int backward_;
  std::mutex mutex_;
  std::unordered_map<const void*, Sent> sent_;  // by storage
};

}  // namespace baechi
