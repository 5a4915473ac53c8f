// SPDX-License-Identifier: Apache-2.0
// Any operator on simulated devices, by its CPU kernel or by one of ours.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <cstddef>
#include <tuple>
#include <utility>

#include "meta.h"

namespace baechi::sim {

// By its CPU kernel.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// By its CPU kernel, with a sparse tensor among its arguments or results.
void sparse_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// By `kernel`, with results as the operator's meta function says, or, with `sizes_too`, as the
// kernel makes them of meta tensors: for operators without such a function.
void run_by(const c10::OperatorHandle& op, torch::jit::Stack* stack, Kernel kernel, bool sizes_too);

template <Kernel kKernel, bool kSizesToo = false>
void by(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  run_by(op, stack, kKernel, kSizesToo);
}

// A kernel from a function that takes and returns (a tuple of) values.
template <auto kFunction>
struct Unboxed;

template <class... Results, class... Arguments, std::tuple<Results...> (*kFunction)(Arguments...)>
struct Unboxed<kFunction> {
  static void kernel(torch::jit::Stack& stack) {
    auto results = call(stack, std::index_sequence_for<Arguments...>());
    stack.clear();
    std::apply([&](auto&... each) { (stack.emplace_back(std::move(each)), ...); }, results);
  }

 private:
  template <std::size_t... kIndex>
  static std::tuple<Results...> call(torch::jit::Stack& stack, std::index_sequence<kIndex...>) {
    return kFunction(stack[kIndex].template to<std::decay_t<Arguments>>()...);
  }
};

template <auto kFunction, bool kSizesToo = false>
torch::CppFunction boxed() {
  return torch::CppFunction::makeFromBoxedFunction<&by<&Unboxed<kFunction>::kernel, kSizesToo>>();
}

}  // namespace baechi::sim
