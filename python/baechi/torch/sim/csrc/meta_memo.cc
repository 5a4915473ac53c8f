// SPDX-License-Identifier: Apache-2.0
// The memory of meta kernels' answers; see meta_memo.h.
#include "meta_memo.h"

#include <ATen/core/Tensor.h>
#include <c10/core/DefaultDtype.h>

#include <bit>
#include <map>
#include <mutex>
#include <utility>

namespace baechi::sim {
namespace {

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

}  // namespace

std::optional<CallKey> key_of(const c10::OperatorHandle& op,
                              const torch::jit::Stack& meta_arguments) {
  // Only PyTorch's own operators stay what they are while the process runs.
  if (op.schema().name().rfind("aten::", 0) != 0) return std::nullopt;
  // The default type decides what mixed types become.
  CallKey key{static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(&op.schema())),
              static_cast<std::int64_t>(c10::get_default_dtype_as_scalartype())};
  for (const c10::IValue& value : meta_arguments)
    if (!add_value(value, key)) return std::nullopt;
  return key;
}

std::optional<std::optional<torch::jit::Stack>> remembered(const CallKey& key) {
  const std::lock_guard lock(memo().mutex);
  const auto found = memo().known.find(key);
  if (found == memo().known.end()) return std::nullopt;
  return found->second;
}

void remember(CallKey key, std::optional<torch::jit::Stack> results) {
  decltype(Memo::known) forgotten;  // ends without the lock: it may hold Python's objects
  const std::lock_guard lock(memo().mutex);
  if (memo().known.size() >= kMost) forgotten.swap(memo().known);
  memo().known.try_emplace(std::move(key), std::move(results));
}

}  // namespace baechi::sim
