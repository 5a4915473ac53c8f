// SPDX-License-Identifier: Apache-2.0
// Any operator on simulated devices, by its CPU kernel.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace baechi::sim {

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace baechi::sim
