// SPDX-License-Identifier: Apache-2.0
// Any operator on simulated devices; see fallback.h.
//
// A call reaches this point below autograd and autocast, as its schema and a stack of arguments.
// Its tensors must be on one device. Operators that write to their arguments (in place, or into
// `out`, which is how PyTorch calls most others) are enqueued at once. Results that have to be
// allocated are what the operator's meta function says; where there is none, because sizes depend
// on values or because a result is no tensor, the host waits and runs the kernel itself.
#include "fallback.h"

#include <ATen/SparseTensorImpl.h>
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

#include "capture.h"
#include "launch.h"
#include "meta.h"
#include "streams.h"

namespace baechi::sim {
namespace {

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// Runs a kernel, ours or the CPU's, on a copy of its arguments, which are there for a second run.
Stack results_of(const c10::OperatorHandle& op, Kernel kernel, const Stack& arguments) {
  Stack stack = arguments;
  const HostKernelScope scope;
  if (kernel != nullptr)
    kernel(stack);
  else
    op.callBoxed(&stack);
  return stack;
}

// Copies what a kernel returned to where the meta function says that it is. Kernels return nothing
// where it promises something that only kernels of other devices use.
void copy_into(const c10::OperatorHandle& op, const c10::IValue& target,
               const c10::IValue& result) {
  std::vector<at::Tensor> from;
  map_tensors(result, [&](const at::Tensor& tensor) { return from.emplace_back(tensor); });
  std::size_t next = 0;
  map_tensors(target, [&](const at::Tensor& tensor) {
    const at::Tensor& source = from.at(next++);
    if (!tensor.defined() || !source.defined() || source.is_same(tensor)) return tensor;
    if (source.numel() == 0) return tensor;
    TORCH_CHECK(source.sizes() == tensor.sizes(), op.schema().name(), " returned ", source.sizes(),
                " where its meta function says ", tensor.sizes());
    return tensor.copy_(source);
  });
}

// One call of one operator.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack* stack, Kernel kernel = nullptr, bool sizes_too = false)
      : op_(op),
        kernel_(kernel),
        meta_kernel_(sizes_too ? kernel : nullptr),
        schema_(op.schema()),
        stack_(stack),
        first_(stack->size() - schema_.arguments().size()),
        device_(find_device()) {}

  // The host waits, and runs the kernel on the same memory.
  void run_sparse() {
    const c10::DeviceGuard guard(sim_device(device_));
    if (settings().asynchronous) synchronize(current_stream(device_));
    HostAliases aliases;
    const Stack host = host_arguments(aliases, false);
    Stack results = results_of(op_, kernel_, host);
    for (std::size_t i = 0; i < results.size(); ++i) {
      const auto alias = aliased_argument(schema_.returns()[i]);
      results[i] = alias ? argument(*alias)
                         : map_tensors(results[i],
                                       [&](const at::Tensor& tensor) { return on_device(tensor); });
    }
    for (std::size_t i = 0; i < num_arguments(); ++i)
      if (writes(schema_.arguments()[i]) && argument(i).isTensor())
        write_back(argument(i).toTensor(), host[i].toTensor());
    finish(std::move(results));
  }

  void run() {
    const c10::DeviceGuard guard(sim_device(device_));
    if (returns_view()) return run_view();
    size_outputs();
    if (returns_only_arguments()) {
      enqueue({});
      return finish({});
    }
    const auto expected = meta_results(op_, meta_arguments(op_, arguments()), meta_kernel_);
    const bool later = settings().asynchronous || capture_of(current_stream(device_));
    if (expected && later && (kernel_ != nullptr || returns_only_tensors()))
      return run_later(*expected);
    run_here(expected);
  }

 private:
  const c10::IValue& argument(std::size_t i) const { return (*stack_)[first_ + i]; }
  std::size_t num_arguments() const { return schema_.arguments().size(); }
  c10::ArrayRef<c10::IValue> arguments() const {
    return c10::ArrayRef<c10::IValue>(*stack_).slice(first_);
  }
  const char* name() const { return schema_.name().c_str(); }

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
      } else if (is_generator(schema_.arguments()[i])) {
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

  // An empty `out` argument gets the sizes of what will be written into it.
  void size_outputs() {
    bool any = false;
    for (std::size_t i = 0; i < num_arguments(); ++i)
      any = any || (schema_.arguments()[i].is_out() && argument(i).isTensor() &&
                    argument(i).toTensor().numel() == 0);
    if (!any) return;
    const auto results = meta_results(op_, meta_arguments(op_, arguments()));
    if (!results) return;
    for (std::size_t i = 0; i < results->size(); ++i) {
      const auto target = aliased_argument(schema_.returns()[i]);
      if (!target || !argument(*target).isTensor()) continue;
      const at::Tensor& out = argument(*target).toTensor();
      const at::Tensor& meta = (*results)[i].toTensor();
      if (out.sizes() == meta.sizes()) continue;
      out.resize_(meta.sizes());
    }
  }

  std::int64_t bytes(const Stack& results) const {
    std::int64_t total = 0;
    const auto add = [&](const at::Tensor& tensor) { total += bytes_of(tensor); };
    for (std::size_t i = 0; i < num_arguments(); ++i) for_each_tensor(argument(i), add);
    for (const c10::IValue& result : results) for_each_tensor(result, add);
    return total;
  }

  // Enqueues the kernel; what it returns is copied into `results`.
  void enqueue(const Stack& results) {
    HostAliases aliases;
    Stack host = host_arguments(aliases, true);
    launch(name(), device_, bytes(results),
           [op = op_, kernel = kernel_, host = std::move(host),
            targets = targets_of(results, aliases)] {
             const Stack found = results_of(op, kernel, host);
             for (std::size_t i = 0; i < targets.size(); ++i) copy_into(op, targets[i], found[i]);
           });
  }

  // Where the results go; nothing where they are arguments.
  Stack targets_of(const Stack& results, HostAliases& aliases) const {
    Stack targets;
    for (std::size_t i = 0; i < results.size(); ++i)
      targets.push_back(
          aliased_argument(schema_.returns()[i])
              ? c10::IValue()
              : map_tensors(results[i], [&](const auto& t) { return aliases.of(t); }));
    return targets;
  }

  // Tensors for the i-th result, as `like` has them.
  c10::IValue make_result(std::size_t i, const c10::IValue& like) const {
    if (const auto alias = aliased_argument(schema_.returns()[i])) return argument(*alias);
    return map_tensors(like, [&](const at::Tensor& t) { return empty_like_host(device_, t); });
  }

  void run_later(const Stack& expected) {
    Stack results;
    for (std::size_t i = 0; i < expected.size(); ++i)
      results.push_back(make_result(i, expected[i]));
    enqueue(results);
    finish(std::move(results));
  }

  // The host waits for the stream and runs the kernel itself. Its results go through the stream: a
  // block may come with work on it that the stream has yet to do.
  void run_here(const std::optional<Stack>& expected) {
    const std::string refused = std::string("cannot run ") + name() + ", which needs the host,";
    refuse_in_capture(current_stream(device_), refused.c_str());
    if (settings().asynchronous) synchronize(current_stream(device_));
    HostAliases aliases;
    std::optional<NotHostTime> paused(std::in_place);
    Stack found = results_of(op_, kernel_, host_arguments(aliases, false));
    paused.reset();
    Stack results;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const bool known = expected && (found[i].isTensor() || found[i].isTensorList());
      results.push_back(make_result(i, known ? (*expected)[i] : found[i]));
    }
    launch(name(), device_, bytes(results),
           [op = op_, targets = targets_of(results, aliases), found = std::move(found)] {
             for (std::size_t i = 0; i < targets.size(); ++i) copy_into(op, targets[i], found[i]);
           });
    finish(std::move(results));
  }

  // A copy on the device. It goes through the stream, which may have work to do on its memory.
  at::Tensor on_device(const at::Tensor& host) const {
    if (!host.defined()) return host;
    if (host.is_sparse())
      return sparse_tensor(on_device(host._indices()), on_device(host._values()), host);
    at::Tensor copy = empty_like_host(device_, host);
    launch(name(), device_, bytes_of(host),
           [source = host, target = HostAliases().of(copy)] { target.copy_(source); });
    return copy;
  }

  // Parts of a sparse tensor that was changed in place may be other ones.
  void write_back(const at::Tensor& tensor, const at::Tensor& host) const {
    if (!on_sim(tensor) || !tensor.is_sparse()) return;
    auto* impl = static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
    impl->raw_resize_(host.sparse_dim(), host.dense_dim(), host.sizes());
    impl->set_indices_and_values_unsafe(on_device(host._indices()), on_device(host._values()));
    impl->set_coalesced(host.is_coalesced());
  }

  // A view shares memory: only its sizes, strides and offset are computed.
  void run_view() {
    const std::size_t base = *aliased_argument(schema_.returns()[0]);
    const at::Tensor self = argument(base).toTensor();
    HostAliases aliases;
    const Stack host = results_of(op_, nullptr, host_arguments(aliases, false));
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
  const Kernel kernel_;       // nothing: the CPU's
  const Kernel meta_kernel_;  // nothing: the operator's own
  const c10::FunctionSchema& schema_;
  Stack* stack_;
  const std::size_t first_;
  const int device_;
};

}  // namespace

void fallback(const c10::OperatorHandle& op, Stack* stack) { Call(op, stack).run(); }

void sparse_fallback(const c10::OperatorHandle& op, Stack* stack) { Call(op, stack).run_sparse(); }

void run_by(const c10::OperatorHandle& op, Stack* stack, Kernel kernel, bool sizes_too) {
  Call(op, stack, kernel, sizes_too).run();
}

}  // namespace baechi::sim
