// SPDX-License-Identifier: Apache-2.0
// What the meta function of an operator says of its results: how many, their types, sizes and
// strides. PyTorch traces programs by it, so every kernel here returns exactly that.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>

#include <optional>

namespace baechi::sim {

// Arguments in, results out. A kernel of this kind runs on tensors of the host, for values, and on
// meta tensors, for sizes, if PyTorch has no meta function for its operator.
using Kernel = void (*)(torch::jit::Stack&);

// Meta tensors in the place of those of simulated devices.
torch::jit::Stack meta_arguments(const c10::OperatorHandle& op,
                                 c10::ArrayRef<c10::IValue> arguments);

// What it makes of such arguments; nothing where there is no meta function or where it fails. (The
// kernel then says what is wrong with the call.) Answers are remembered: many meta functions are
// Python, and take longer than the kernel itself.
std::optional<torch::jit::Stack> meta_results(const c10::OperatorHandle& op,
                                              const torch::jit::Stack& meta_arguments,
                                              Kernel instead = nullptr);

}  // namespace baechi::sim
