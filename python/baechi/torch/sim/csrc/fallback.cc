// SPDX-License-Identifier: Apache-2.0
// Any operator on simulated devices, by its CPU kernel.
//
// A call reaches this point below autograd and autocast, as its schema and a stack of arguments.
// Its tensors must be on one device. Operators that write to their arguments (in place, or into
// `out`, which is how PyTorch calls most others) are enqueued at once. Results that have to be
// allocated get their sizes from the operator's meta kernel; where there is none, because sizes
// depend on values or because a result is no tensor, the host waits and runs the kernel itself.
#include "fallback.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/copy.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "generator.h"
#include "launch.h"
#include "meta_memo.h"

namespace baechi::sim {
namespace {

using torch::jit::Stack;

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// Calls visit(tensor) -> Tensor on every tensor of an argument and returns the argument with what
// it returned.
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

// Puts a kernel's results in the place of its arguments, which live until then: PyTorch before 2.12
// takes results that are several of the arguments (`max_pool2d_with_indices.out`) from the stack
// after it has destroyed them there.
void call_kernel(const c10::OperatorHandle& op, Stack& stack) {
  const Stack held = stack;
  op.callBoxed(&stack);
}

// One call of one operator.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack* stack)
      : op_(op),
        schema_(op.schema()),
        stack_(stack),
        first_(stack->size() - schema_.arguments().size()),
        device_(find_device()) {}

  void run() {
    const c10::DeviceGuard guard(sim_device(device_));
    if (returns_view()) return run_view();
    size_outputs();
    if (returns_only_arguments()) {
      enqueue({});
      return finish({});
    }
    if (settings().asynchronous && returns_only_tensors() && meta_tells_sizes())
      if (const auto expected = infer()) return run_later(*expected);
    run_here();
  }

 private:
  const c10::IValue& argument(std::size_t i) const { return (*stack_)[first_ + i]; }
  std::size_t num_arguments() const { return schema_.arguments().size(); }
  const char* name() const { return schema_.name().c_str(); }

  // The CPU's kernels of bags of embeddings return other helpers for their backward than the meta
  // kernels, which are those of a GPU.
  bool meta_tells_sizes() const {
    return schema_.name() != "aten::_embedding_bag" &&
           schema_.name() != "aten::_embedding_bag_forward_only";
  }

  // The device of all tensors, or an error. A CPU scalar may take part in anything; indices and
  // lengths may stay on the host, as on any accelerator.
  int find_device() const {
    std::optional<c10::Device> found;
    for (std::size_t i = 0; i < num_arguments(); ++i) {
      for_each_tensor(argument(i), [&](const at::Tensor& tensor) {
        if (on_sim(tensor)) {
          if (found && *found != tensor.device()) complain(*found, tensor.device(), i);
          found = tensor.device();
        }
      });
      if (!found && argument(i).isDevice()) found = argument(i).toDevice();
    }
    if (!found || found->type() != c10::DeviceType::PrivateUse1) return current_device();
    for (std::size_t i = 0; i < num_arguments(); ++i)
      for_each_tensor(argument(i), [&](const at::Tensor& tensor) {
        if (!on_sim(tensor) && !may_stay_on_host(i, tensor)) complain(*found, tensor.device(), i);
      });
    return found->index() < 0 ? current_device() : found->index();
  }

  bool may_stay_on_host(std::size_t i, const at::Tensor& tensor) const {
    const c10::Argument& argument = schema_.arguments()[i];
    if (!tensor.device().is_cpu() || writes(argument)) return false;
    return tensor.dim() == 0 || argument.name() == "indices" || argument.name() == "lengths" ||
           argument.name() == "batch_sizes";
  }

  [[noreturn]] void complain(c10::Device one, c10::Device other, std::size_t i) const {
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two ",
                "devices, ", one, " and ", other, "! (when checking argument ",
                schema_.arguments()[i].name(), " of ", name(), ")");
  }

  // The argument that a result is, or is a view of.
  std::optional<std::size_t> aliased_argument(const c10::Argument& result) const {
    if (result.alias_info() == nullptr) return std::nullopt;
    for (std::size_t i = 0; i < num_arguments(); ++i) {
      const c10::AliasInfo* info = schema_.arguments()[i].alias_info();
      if (info == nullptr) continue;
      for (const auto& set : result.alias_info()->beforeSets())
        if (info->beforeSets().count(set) > 0) return i;
    }
    return std::nullopt;
  }

  bool returns_view() const {
    return schema_.returns().size() == 1 && schema_.returns()[0].alias_info() != nullptr &&
           !writes(schema_.returns()[0]) && aliased_argument(schema_.returns()[0]);
  }

  bool returns_only_arguments() const {
    for (const c10::Argument& result : schema_.returns())
      if (!aliased_argument(result)) return false;
    return true;
  }

  bool returns_only_tensors() const {
    for (const c10::Argument& result : schema_.returns()) {
      const bool list = result.type()->kind() == c10::TypeKind::ListType &&
                        result.type()->containedType(0)->kind() == c10::TypeKind::TensorType;
      if (result.type()->kind() != c10::TypeKind::TensorType && !list) return false;
    }
    return true;
  }

  // The arguments for the CPU kernel. `later`: it runs when the caller has gone on.
  Stack host_arguments(HostAliases& aliases, bool later) const {
    Stack host;
    for (std::size_t i = 0; i < num_arguments(); ++i) {
      const c10::IValue& value = argument(i);
      if (value.isDevice()) {
        host.emplace_back(c10::Device(c10::DeviceType::CPU));
      } else if (is_generator(i)) {
        const at::Generator& generator =
            value.isNone() ? default_generator(device_) : value.toGenerator();
        host.emplace_back(host_generator_for_next_operator(generator));
      } else {
        host.push_back(map_tensors(value, [&](const at::Tensor& tensor) {
          if (on_sim(tensor)) return aliases.of(tensor);
          if (!later || !tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number())
            return tensor;
          return tensor.clone();  // the caller may change it before the kernel runs
        }));
      }
    }
    return host;
  }

  bool is_generator(std::size_t i) const {
    const auto& type = schema_.arguments()[i].type();
    if (type->kind() == c10::TypeKind::GeneratorType) return true;
    return type->kind() == c10::TypeKind::OptionalType &&
           type->expectRef<c10::OptionalType>().getElementType()->kind() ==
               c10::TypeKind::GeneratorType;
  }

  // What the meta kernel makes of the arguments; nothing where there is none or where it fails.
  // (The CPU kernel then says what is wrong with the call.)
  std::optional<Stack> infer(Stack* arguments = nullptr) const {
    Stack meta;
    for (std::size_t i = 0; i < num_arguments(); ++i) {
      if (argument(i).isDevice()) {
        meta.emplace_back(c10::Device(c10::DeviceType::Meta));
      } else if (is_generator(i)) {
        meta.emplace_back();
      } else {
        meta.push_back(map_tensors(argument(i), [](const at::Tensor& tensor) -> at::Tensor {
          if (!on_sim(tensor)) return tensor;
          return at::Tensor(at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(),
                                                           tensor.scalar_type()));
        }));
      }
    }
    if (arguments != nullptr) {
      *arguments = meta;
      return call_meta(std::move(meta));
    }
    auto key = key_of(op_, meta);
    if (!key) return call_meta(std::move(meta));
    if (auto known = remembered(*key)) return *std::move(known);
    auto results = call_meta(std::move(meta));
    remember(*std::move(key), results);
    return results;
  }

  std::optional<Stack> call_meta(Stack meta) const {
    try {
      const HostKernelScope scope;
      call_kernel(op_, meta);
    } catch (const std::exception&) {
      return std::nullopt;
    }
    return meta;
  }

  // An empty `out` argument gets the size of what will be written into it.
  void size_outputs() {
    bool any = false;
    for (std::size_t i = 0; i < num_arguments(); ++i)
      any = any || (schema_.arguments()[i].is_out() && argument(i).isTensor() &&
                    argument(i).toTensor().numel() == 0);
    if (!any) return;
    Stack meta;
    if (!infer(&meta)) return;
    for (std::size_t i = 0; i < num_arguments(); ++i)
      if (schema_.arguments()[i].is_out() && argument(i).isTensor() &&
          argument(i).toTensor().sizes() != meta[i].toTensor().sizes())
        argument(i).toTensor().resize_(meta[i].toTensor().sizes());
  }

  std::int64_t bytes(const Stack& results) const {
    std::int64_t total = 0;
    const auto add = [&](const at::Tensor& tensor) { total += bytes_of(tensor); };
    for (std::size_t i = 0; i < num_arguments(); ++i) for_each_tensor(argument(i), add);
    for (const c10::IValue& result : results) for_each_tensor(result, add);
    return total;
  }

  // Enqueues the CPU kernel; what it returns is copied into `results`.
  void enqueue(const Stack& results) {
    HostAliases aliases;
    Stack host = host_arguments(aliases, true);
    Stack targets;
    for (const c10::IValue& result : results)
      targets.push_back(map_tensors(result, [&](const at::Tensor& t) { return aliases.of(t); }));
    launch(name(), device_, bytes(results),
           [op = op_, host = std::move(host), targets = std::move(targets)]() mutable {
             call_kernel(op, host);
             for (std::size_t i = 0; i < targets.size(); ++i) copy_into(targets[i], host[i]);
           });
  }

  static void copy_into(const c10::IValue& target, const c10::IValue& result) {
    std::vector<at::Tensor> from;
    for_each_tensor(result, [&](const at::Tensor& tensor) { from.push_back(tensor); });
    std::size_t next = 0;
    for_each_tensor(target, [&](const at::Tensor& tensor) {
      const at::Tensor& source = from.at(next++);
      // Some kernels return nothing where their meta kernels promise something: it is not used.
      if (source.numel() > 0 && !source.is_same(tensor)) tensor.copy_(source);
    });
  }

  void run_later(const Stack& expected) {
    Stack results;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (const auto alias = aliased_argument(schema_.returns()[i]))
        results.push_back(argument(*alias));
      else
        results.push_back(map_tensors(
            expected[i], [&](const at::Tensor& meta) { return empty_like_host(device_, meta); }));
    }
    enqueue(results);
    finish(std::move(results));
  }

  // The host waits for the stream and runs the kernel itself. Its results go through the stream: a
  // block may come with work on it that the stream has yet to do.
  void run_here() {
    if (settings().asynchronous) synchronize(current_stream(device_));
    HostAliases aliases;
    Stack host = host_arguments(aliases, false);
    {
      const HostKernelScope scope;
      call_kernel(op_, host);
    }
    Stack results, targets, sources;
    for (std::size_t i = 0; i < host.size(); ++i) {
      if (const auto alias = aliased_argument(schema_.returns()[i])) {
        results.push_back(argument(*alias));
        continue;
      }
      results.push_back(map_tensors(
          host[i], [&](const at::Tensor& tensor) { return empty_like_host(device_, tensor); }));
      sources.push_back(host[i]);
      targets.push_back(
          map_tensors(results.back(), [&](const at::Tensor& t) { return aliases.of(t); }));
    }
    launch(name(), device_, bytes(results),
           [targets = std::move(targets), sources = std::move(sources)] {
             for (std::size_t i = 0; i < targets.size(); ++i) copy_into(targets[i], sources[i]);
           });
    finish(std::move(results));
  }

  // A view shares memory: only its sizes, strides and offset are computed.
  void run_view() {
    const std::size_t base = *aliased_argument(schema_.returns()[0]);
    const at::Tensor self = argument(base).toTensor();
    HostAliases aliases;
    Stack host = host_arguments(aliases, false);
    {
      const HostKernelScope scope;
      call_kernel(op_, host);
    }
    finish({map_tensors(host[0], [&](const at::Tensor& view) -> at::Tensor {
      auto result = c10::make_intrusive<c10::TensorImpl>(
          c10::TensorImpl::VIEW, c10::Storage(self.storage()), self.key_set(), view.dtype());
      result->set_sizes_and_strides(view.sizes(), view.strides(), view.storage_offset());
      return at::Tensor(std::move(result));
    })});
  }

  // Puts the results in the place of the arguments.
  void finish(Stack results) {
    if (results.empty())
      for (const c10::Argument& result : schema_.returns())
        results.push_back(argument(*aliased_argument(result)));
    torch::jit::drop(*stack_, num_arguments());
    for (c10::IValue& result : results) stack_->push_back(std::move(result));
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  Stack* stack_;
  const std::size_t first_;
  const int device_;
};

}  // namespace

void fallback(const c10::OperatorHandle& op, Stack* stack) { Call(op, stack).run(); }

}  // namespace baechi::sim
