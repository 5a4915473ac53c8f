// SPDX-License-Identifier: Apache-2.0
// Remembers what meta kernels said: many are Python, and take longer than the kernel itself.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace baechi::sim {

// A call of an operator as far as the sizes and types of its results depend on it.
using CallKey = std::vector<std::int64_t>;

// Nothing if an argument is of a kind whose part in that is not known.
std::optional<CallKey> key_of(const c10::OperatorHandle& op,
                              const torch::jit::Stack& meta_arguments);

// What was remembered: nothing, or the results, which are nothing where the meta kernel failed.
std::optional<std::optional<torch::jit::Stack>> remembered(const CallKey& key);

void remember(CallKey key, std::optional<torch::jit::Stack> results);

}  // namespace baechi::sim
