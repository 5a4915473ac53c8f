// SPDX-License-Identifier: Apache-2.0
// What the meta function of an operator says of its results: how many, their types, sizes and
// strides. PyTorch traces programs by it, so every kernel here returns exactly that.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <string>

namespace baechi::sim {

using torch::jit::Stack;

// Calls visit(tensor) -> Tensor on every tensor of a value and returns the value with what it
// returned.
template <class Visit>
c10::IValue map_tensors(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) return visit(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> mapped;
    for (const at::Tensor& tensor : value.toTensorVector()) mapped.push_back(visit(tensor));
    return mapped;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> mapped;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList())
      mapped.push_back(tensor ? std::optional(visit(*tensor)) : std::nullopt);
    return mapped;
  }
  return value;
}

template <class Visit>
void for_each_tensor(const c10::IValue& value, Visit visit) {
  map_tensors(value, [&](const at::Tensor& tensor) {
    if (tensor.defined()) visit(tensor);
    return tensor;
  });
}

inline bool is_generator(const c10::Argument& argument) {
  const auto& type = argument.type();
  if (type->kind() == c10::TypeKind::GeneratorType) return true;
  return type->kind() == c10::TypeKind::OptionalType &&
         type->expectRef<c10::OptionalType>().getElementType()->kind() ==
             c10::TypeKind::GeneratorType;
}

// Arguments in, results out. A kernel of this kind runs on tensors of the host, for values, and on
// meta tensors, for sizes, if PyTorch has no meta function for its operator.
using Kernel = void (*)(Stack&);

// Meta tensors in the place of those of simulated devices.
Stack meta_arguments(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

// What it makes of such arguments; nothing where there is no meta function or where it fails. (The
// kernel then says what is wrong with the call.) Answers are remembered: many meta functions are
// Python, and take longer than the kernel itself.
std::optional<Stack> meta_results(const c10::OperatorHandle& op, const Stack& meta_arguments,
                                  Kernel instead = nullptr);

// Whether what kernels return is compared with that: a setting, on in tests.
void set_checked(bool on);

// What differed since the last call, a line each, and every operator once.
std::string take_mismatches();

}  // namespace baechi::sim
