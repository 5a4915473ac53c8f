// SPDX-License-Identifier: Apache-2.0
// What meta functions say, and the memory of it; see meta.h.
#include "meta.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "launch.h"
#include "streams.h"

namespace baechi::sim {
namespace {

// A call of an operator as far as the sizes and types of its results depend on it.
using CallKey = std::vector<std::int64_t>;

constexpr std::size_t kMost = 20'000;  // then all is forgotten: shapes that never come back

struct Memo {
  std::mutex mutex;
  std::map<CallKey, std::optional<torch::jit::Stack>> known;
};

Memo& memo() {
  static auto* the = new Memo;  // outlives every thread
  return *the;
}

enum Tag : std::int64_t { kNone, kUndefined, kTensor, kInt, kDouble, kBool, kString, kList };

// Host tensors may say with their values how large a result is; numbers in their guise do not.
bool add_tensor(const at::Tensor& tensor, CallKey& key) {
  if (!tensor.defined()) {
    key.push_back(kUndefined);
    return true;
  }
  const bool is_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  if (!tensor.is_meta() && !is_number) return false;
  key.insert(key.end(), {kTensor, is_number ? 1 : 0,
                         static_cast<std::int64_t>(tensor.scalar_type()), tensor.dim()});
  key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
  key.insert(key.end(), tensor.strides().begin(), tensor.strides().end());
  return true;
}

bool add_value(const c10::IValue& value, CallKey& key) {
  if (value.isTensor()) return add_tensor(value.toTensor(), key);
  if (value.isNone() || value.isDevice()) {
    key.push_back(kNone);
  } else if (value.isInt()) {
    key.insert(key.end(), {kInt, value.toInt()});
  } else if (value.isDouble()) {
    key.insert(key.end(), {kDouble, std::bit_cast<std::int64_t>(value.toDouble())});
  } else if (value.isBool()) {
    key.insert(key.end(), {kBool, value.toBool() ? 1 : 0});
  } else if (value.isString()) {
    const std::string& text = value.toStringRef();
    key.insert(key.end(), {kString, static_cast<std::int64_t>(text.size())});
    key.insert(key.end(), text.begin(), text.end());
  } else if (value.isList()) {
    const auto list = value.toListRef();
    key.insert(key.end(), {kList, static_cast<std::int64_t>(list.size())});
    for (const c10::IValue& each : list)
      if (!add_value(each, key)) return false;
  } else {
    return false;
  }
  return true;
}

// Nothing if an argument is of a kind whose part in that is not known.
std::optional<CallKey> key_of(const c10::OperatorHandle& op, const Stack& meta_arguments) {
  // Only PyTorch's own operators stay what they are while the process runs.
  if (op.schema().name().rfind("aten::", 0) != 0) return std::nullopt;
  // The default type decides what mixed types become.
  CallKey key{static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(&op.schema())),
              static_cast<std::int64_t>(c10::get_default_dtype_as_scalartype())};
  for (const c10::IValue& value : meta_arguments)
    if (!add_value(value, key)) return std::nullopt;
  return key;
}

// What was remembered: nothing, or the results, which are nothing where the meta function failed.
std::optional<std::optional<Stack>> remembered(const CallKey& key) {
  const std::lock_guard lock(memo().mutex);
  const auto found = memo().known.find(key);
  if (found == memo().known.end()) return std::nullopt;
  return found->second;
}

void remember(CallKey key, std::optional<Stack> results) {
  decltype(Memo::known) forgotten;  // ends without the lock: it may hold Python's objects
  const std::lock_guard lock(memo().mutex);
  if (memo().known.size() >= kMost) forgotten.swap(memo().known);
  memo().known.try_emplace(std::move(key), std::move(results));
}

// Of a backend of this kind PyTorch says that its convolutions return contiguous tensors. Their meta
// function says what CUDA's do; whoever traces (fake tensors) corrects it by the backend.
bool is_convolution(const c10::OperatorHandle& op) {
  return op.schema().name().rfind("aten::convolution", 0) == 0;
}

// Their meta functions ask whether the device is CUDA, and take meta tensors for CUDA's. For other
// devices, ours among them, they say what the CPU's kernels return.
bool is_as_on_the_host(const c10::OperatorHandle& op) {
  static constexpr std::array<std::string_view, 5> kNames = {"aten::_fft_c2c", "aten::_fft_r2c",
                                                             "aten::_fft_c2r", "aten::linalg_eig",
                                                             "aten::_linalg_svd"};
  return std::find(kNames.begin(), kNames.end(), op.schema().name()) != kNames.end();
}

at::Tensor zeros_like_meta(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_meta()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU))
      .zero_();
}

at::Tensor contiguous_meta(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_contiguous()) return tensor;
  return at::Tensor(at::detail::empty_meta(tensor.sizes(), tensor.scalar_type()));
}

std::optional<Stack> call_meta(const c10::OperatorHandle& op, Stack stack, Kernel instead) {
  try {
    const HostKernelScope scope;
    if (is_as_on_the_host(op))
      for (c10::IValue& argument : stack) argument = map_tensors(argument, zeros_like_meta);
    const Stack held = stack;  // until the kernel has returned
    if (instead != nullptr)
      instead(stack);
    else
      op.callBoxed(&stack);
    if (is_convolution(op))
      for (c10::IValue& result : stack) result = map_tensors(result, contiguous_meta);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  return stack;
}

}  // namespace

Stack meta_arguments(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  Stack meta;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].isDevice()) {
      meta.emplace_back(c10::Device(c10::DeviceType::Meta));
    } else if (is_generator(op.schema().arguments()[i])) {
      meta.emplace_back();
    } else {
      meta.push_back(map_tensors(arguments[i], [](const at::Tensor& tensor) -> at::Tensor {
        if (!on_sim(tensor)) return tensor;
        return at::Tensor(
            at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type()));
      }));
    }
  }
  return meta;
}

std::optional<Stack> meta_results(const c10::OperatorHandle& op, const Stack& meta_arguments,
                                  Kernel instead) {
  auto key = key_of(op, meta_arguments);
  if (!key) return call_meta(op, meta_arguments, instead);
  if (auto known = remembered(*key)) return *std::move(known);
  const NotHostTime paused;
  auto results = call_meta(op, meta_arguments, instead);
  remember(*std::move(key), results);
  return results;
}

}  // namespace baechi::sim
