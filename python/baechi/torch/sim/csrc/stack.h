// SPDX-License-Identifier: Apache-2.0
// The tensors in the arguments and results of an operator, as the dispatcher passes them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <optional>

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

}  // namespace baechi::sim
