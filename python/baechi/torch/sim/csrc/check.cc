// SPDX-License-Identifier: Apache-2.0
// Compares what kernels return with what their meta functions say; see meta.h.
//
// PyTorch calls an observer before and after every operator, whoever called it and whatever kernel
// it has. Those that PyTorch takes apart into others are left out: programs are traced below them.
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <vector>

#include "launch.h"
#include "meta.h"

namespace baechi::sim {
namespace {

struct Found {
  std::mutex mutex;
  std::map<std::string, std::string> lines;  // by operator
};

Found& found() {
  static auto* the = new Found;
  return *the;
}

// What was called, from before the kernel has changed its arguments.
struct Observed final : at::ObserverContext {
  std::optional<c10::OperatorHandle> op;
  Stack arguments;
};

// Of a device, and not a wrapper around a tensor of one (a fake, functional or batched tensor).
bool is_plain(const at::Tensor& tensor) {
  const c10::DispatchKeySet keys = tensor.key_set();
  return keys.has(c10::DispatchKey::PrivateUse1) && !keys.has(c10::DispatchKey::Python) &&
         !keys.has(c10::DispatchKey::Functionalize);
}

bool on_plain_devices(c10::ArrayRef<const c10::IValue> values) {
  bool any = false, all = true;
  for (const c10::IValue& value : values)
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (!on_sim(tensor)) return;
      any = true;
      all = all && is_plain(tensor);
    });
  return any && all;
}

bool is_checked(const c10::OperatorHandle& op) {
  return !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

// Autocast calls the operator again with what it has cast: that call is compared.
bool is_cast_first() {
  return at::autocast::is_autocast_enabled(at::kPrivateUse1) &&
         !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutocastPrivateUse1);
}

std::unique_ptr<at::ObserverContext> before(const at::RecordFunction& call) {
  const auto inputs = call.inputs();
  if (c10::impl::TorchDispatchModeTLS::any_modes_set() || !on_plain_devices(inputs)) return nullptr;
  if (is_cast_first()) return nullptr;
  const auto name = call.operator_name();
  if (!name) return nullptr;
  const auto op = c10::Dispatcher::singleton().findOp(*name);
  if (!op || !is_checked(*op) || inputs.size() != op->schema().arguments().size()) return nullptr;
  const at::DisableRecordFunctionGuard unobserved;
  auto observed = std::make_unique<Observed>();
  observed->op = *op;
  observed->arguments =
      meta_arguments(*op, c10::ArrayRef<c10::IValue>(inputs.data(), inputs.size()));
  return observed;
}

std::vector<at::Tensor> tensors_of(c10::ArrayRef<c10::IValue> values) {
  std::vector<at::Tensor> found;
  for (const c10::IValue& value : values)
    map_tensors(value, [&](const at::Tensor& tensor) { return found.emplace_back(tensor); });
  return found;
}

std::string described(const std::vector<at::Tensor>& tensors) {
  std::ostringstream out;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) {
      out << " (no tensor)";
      continue;
    }
    out << " (" << tensor.scalar_type() << " of sizes " << tensor.sizes();
    if (tensor.layout() == at::kStrided) out << " and strides " << tensor.strides();
    out << ')';
  }
  return out.str();
}

// Strides of dimensions of length 1 mean nothing.
bool same(const at::Tensor& one, const at::Tensor& other) {
  if (one.defined() != other.defined()) return false;
  if (!one.defined()) return true;
  if (one.scalar_type() != other.scalar_type() || one.sizes() != other.sizes()) return false;
  if (one.layout() != at::kStrided || one.numel() == 0) return true;
  for (std::int64_t d = 0; d < one.dim(); ++d)
    if (one.size(d) != 1 && one.stride(d) != other.stride(d)) return false;
  return true;
}

void compare(const Observed& observed, const std::vector<c10::IValue>& results) {
  const auto expected = meta_results(*observed.op, observed.arguments);
  if (!expected) return;
  const auto here = tensors_of(results), there = tensors_of(*expected);
  if (std::equal(here.begin(), here.end(), there.begin(), there.end(), same)) return;
  std::ostringstream line;
  line << observed.op->operator_name() << ": returns" << described(here) << ", by its meta function"
       << described(there) << "; arguments:" << described(tensors_of(observed.arguments));
  const std::lock_guard lock(found().mutex);
  found().lines.try_emplace(toString(observed.op->operator_name()), line.str());
}

void after(const at::RecordFunction& call, at::ObserverContext* context) {
  const auto* observed = static_cast<const Observed*>(context);
  if (observed == nullptr) return;
  const auto results = call.outputs();
  if (results.empty()) return;  // it returns nothing, or threw
  const at::DisableRecordFunctionGuard unobserved;
  compare(*observed, results);
}

}  // namespace

void set_checked(bool on) {
  static std::mutex mutex;
  static at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
  const std::lock_guard lock(mutex);
  if (on == (handle != at::INVALID_CALLBACK_HANDLE)) return;
  if (on) {
    handle = at::addGlobalCallback(at::RecordFunctionCallback(&before, &after)
                                       .needsInputs(true)
                                       .needsOutputs(true)
                                       .scopes({at::RecordScope::FUNCTION}));
  } else {
    at::removeCallback(handle);
    handle = at::INVALID_CALLBACK_HANDLE;
  }
}

std::string take_mismatches() {
  const std::lock_guard lock(found().mutex);
  std::string all;
  for (const auto& [name, line] : found().lines) all += line + "\n";
  found().lines.clear();
  return all;
}

}  // namespace baechi::sim
