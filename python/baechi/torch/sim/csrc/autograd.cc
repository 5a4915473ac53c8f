// SPDX-License-Identifier: Apache-2.0
// What autograd does with operators that have no derivative. Up to some version PyTorch left that
// to the backend; since then it has a fallback of its own, and a second one is an error.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

namespace baechi::sim {
namespace {

torch::Library* register_fallback() {
  constexpr auto kKey = c10::DispatchKey::AutogradPrivateUse1;
  if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kKey)) return nullptr;
  auto* library = new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  library->fallback(torch::autograd::basicAutogradNotImplementedFallback());
  return library;  // for the length of the process
}

const torch::Library* const fallback_of_autograd = register_fallback();

}  // namespace
}  // namespace baechi::sim
