// SPDX-License-Identifier: Apache-2.0
// The executor of programs: calls by the boxed dispatcher below autograd, sends on streams of their
// own, without the interpreter of Python or its lock. Paper 3.2.
//
// Every ordered pair of devices has two streams for what is sent. Allocators are told who reads what
// (record_stream), so memory is free when the program says, and another's when its readers are past
// it. Values and events are kept between runs; runs at the same time have each their own.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "pinned.h"

namespace torch::jit {  // of pybind_utils.h, which takes a minute to compile
TORCH_PYTHON_API c10::IValue toIValue(py::handle object, const c10::TypePtr& type,
                                      std::optional<std::int32_t> count);
TORCH_PYTHON_API py::object toPyObject(c10::IValue value);
}  // namespace torch::jit

namespace {

namespace py = pybind11;
using c10::IValue;
using c10::TypeKind;

// A slot whose value is given as an operator wants it, or what stands there always.
struct Part {
  enum class As { kItself, kTensor, kDouble, kWrapped };
  int slot = -1;
  IValue constant;
  As as = As::kItself;
};

struct Argument {
  std::vector<Part> parts;  // one, unless it is a list
  c10::TypePtr of_list;     // the type of its elements
};

// Where a result goes: that of number `result`, or one part of it.
struct Out {
  int result, part, slot;
};

struct Instruction {
  enum class Kind { kCall, kPython, kAlias, kSend, kWait };
  Kind kind = Kind::kCall;
  int device = 0;  // the source of a send
  int target = 0;  // of a send
  std::string name;
  std::optional<c10::OperatorHandle> op;
  std::vector<Argument> args;
  py::object function;
  std::vector<Out> outs;
  int source = -1;                 // slot of a send
  std::size_t send = 0;            // which event
  bool fetch = false;              // a send from a store
  bool put_away = false;           // a send to a store, whose end its device waits for
  bool at_home = false;            // a wait of who has sent
  std::optional<std::size_t> put;  // the event behind which a fetch begins
  std::size_t route = 0;
  std::vector<int> free;  // behind it
};

struct Route {
  c10::Stream send, receive;  // of the device, where the other end is the host
};

// What one run needs; kept for the next one.
struct Frame {
  std::vector<IValue> values;
  std::vector<c10::Event> arrived;          // by send
  std::vector<c10::Event> ready;            // by device: all that it was asked for is behind this
  std::vector<std::uint64_t> asked, noted;  // by device: calls so far, and when `ready` was noted
  std::vector<std::uint64_t> behind;        // by route: the note that its stream waits for
  std::vector<std::optional<c10::Stream>> computing;  // by device
};

thread_local int place = -1;  // the instruction that runs, or that failed

bool is_host(c10::Device device) { return device.is_cpu(); }

Route route_between(c10::Device source, c10::Device target, int lane) {
  static std::mutex mutex;
  static auto* routes = new std::map<std::tuple<int, int, int>, Route>;
  const auto key = [](c10::Device device) { return is_host(device) ? -1 : device.index(); };
  const std::lock_guard lock(mutex);
  const std::tuple<int, int, int> at(key(source), key(target), lane);
  if (const auto found = routes->find(at); found != routes->end()) return found->second;
  const auto stream_of = [](c10::Device device) {
    return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  };
  const c10::Stream first = stream_of(is_host(source) ? target : source);
  const c10::Stream last = is_host(source) || is_host(target) ? first : stream_of(target);
  return routes->emplace(at, Route{first, last}).first->second;
}

IValue number_or_object(py::handle value) {
  if (value.is_none()) return {};
  if (THPVariable_Check(value.ptr())) return THPVariable_Unpack(value.ptr());
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::int_>(value)) return value.cast<std::int64_t>();
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  if (PyComplex_Check(value.ptr()))
    return c10::complex<double>(PyComplex_RealAsDouble(value.ptr()),
                                PyComplex_ImagAsDouble(value.ptr()));
  return torch::jit::toIValue(value, c10::PyObjectType::get(), std::nullopt);
}

at::Tensor wrapped(const IValue& value) {
  const c10::Scalar number = value.toScalar();
  at::Tensor result = at::scalar_tensor(number, number.type());
  result.unsafeGetTensorImpl()->set_wrapped_number(true);
  return result;
}

c10::TypePtr within_optional(c10::TypePtr type) {
  if (const auto optional = type->cast<c10::OptionalType>()) return optional->getElementType();
  return type;
}

IValue constant_of(py::handle value, const c10::Argument& argument) {
  if (value.is_none()) return {};
  const c10::TypePtr type = within_optional(argument.real_type());
  if (type->kind() == TypeKind::TensorType && !THPVariable_Check(value.ptr()))
    return wrapped(number_or_object(value));
  return torch::jit::toIValue(value, type, argument.N());
}

// How a value becomes one of a type; in Python None is a tensor that is undefined.
Part::As as(const c10::TypePtr& type, bool is_number) {
  if (type->kind() == TypeKind::TensorType)
    return is_number ? Part::As::kWrapped : Part::As::kTensor;
  return type->kind() == TypeKind::FloatType ? Part::As::kDouble : Part::As::kItself;
}

class Executor {
 public:
  explicit Executor(std::vector<c10::Device> devices, int slots)
      : devices_(std::move(devices)), slots_(slots), by_slot_(static_cast<std::size_t>(slots)) {
    for (const c10::Device device : devices_)
      if (!is_host(device)) accelerator_ = device.type();
  }

  // `args` has one of (constant,), (slot, is a number), [(slot or -1, constant), ...] or None, the
  // default, for each of the schema's arguments.
  void call(const std::string& op, const std::string& overload, const py::list& args,
            std::vector<std::tuple<int, int, int>> outs, int device, std::string name) {
    Instruction& made = add(Instruction::Kind::kCall, device, std::move(name), outs);
    made.op = c10::Dispatcher::singleton().findSchemaOrThrow(op.c_str(), overload.c_str());
    const auto& arguments = made.op->schema().arguments();
    TORCH_CHECK(args.size() == arguments.size(), op, " has ", arguments.size(), " arguments");
    for (std::size_t i = 0; i < arguments.size(); ++i)
      made.args.push_back(argument_of(args[i], arguments[i]));
  }

  // `function` takes the values of `reads` and returns a list for `outs`.
  void python(py::object function, const std::vector<int>& reads,
              std::vector<std::tuple<int, int, int>> outs, int device, std::string name) {
    Instruction& made = add(Instruction::Kind::kPython, device, std::move(name), outs);
    made.function = std::move(function);
    for (const int slot : reads) made.args.push_back({{{slot, {}}}, nullptr});
  }

  void send(int slot, int out, int source, int target, int lane, const std::string& kind) {
    const bool alias = device(source) == device(target);
    Instruction& made = add(alias ? Instruction::Kind::kAlias : Instruction::Kind::kSend, source,
                            "", {{0, -1, out}});
    made.source = slot;
    made.target = target;
    if (alias) return;
    made.fetch = kind == "fetch";
    made.put_away = kind == "put";
    if (made.fetch) made.put = by_slot_[static_cast<std::size_t>(slot)];
    made.send = sends_++;
    by_slot_[static_cast<std::size_t>(out)] = made.send;
    const auto [found, fresh] =
        routes_of_.emplace(std::tuple(source, target, lane), routes_of_.size());
    made.route = found->second;
    if (fresh) routes_.push_back(route_between(device(source), device(target), lane));
  }

  // `at_home`: who has sent it waits.
  void wait(int slot, int device, bool at_home) {
    const auto sent = by_slot_[static_cast<std::size_t>(slot)];
    Instruction& made = add(Instruction::Kind::kWait, device, "", {});
    made.at_home = at_home;
    made.send = sent.value_or(sends_);  // of an alias there is nothing to wait for
    if (!sent) made.kind = Instruction::Kind::kAlias;
  }

  void free(const std::vector<int>& slots) {
    auto& freed = code_.empty() ? unread_ : code_.back().free;
    freed.insert(freed.end(), slots.begin(), slots.end());
  }

  // Each input has a slot and a device, or -1.
  void finish(std::vector<std::pair<int, int>> inputs,
              std::vector<std::pair<int, at::Tensor>> constants,
              const std::vector<std::pair<int, py::object>>& outputs) {
    inputs_ = std::move(inputs);
    constants_ = std::move(constants);
    outputs_ = outputs;
  }

  py::list run(py::list inputs) {
    place = -1;
    std::unique_ptr<Frame> frame = take_frame();
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      IValue value = number_or_object(inputs[i]);
      check_device(i, value);
      at(*frame, inputs_[i].first) = std::move(value);
    }
    TORCH_CHECK(PyList_SetSlice(inputs.ptr(), 0, PyList_GET_SIZE(inputs.ptr()), nullptr) == 0);
    {
      const py::gil_scoped_release unlocked;
      try {
        execute(*frame);
      } catch (...) {  // what is fetched has memory that is not told of it
        for (const Route& route : routes_) route.receive.synchronize();
        throw;
      }
    }
    py::list results;
    for (const auto& [slot, constant] : outputs_)
      results.append(slot < 0 ? constant : torch::jit::toPyObject(at(*frame, slot)));
    give_back(std::move(frame));
    return results;
  }

 private:
  // Sends and frees are right for tensors that are where the program has them.
  void check_device(std::size_t input, const IValue& value) const {
    const int wanted = inputs_[input].second;
    if (wanted < 0 || !value.isTensor() || !value.toTensor().defined()) return;
    TORCH_CHECK_VALUE(value.toTensor().device() == device(wanted), "input ", input, ": it is on ",
                      value.toTensor().device(), ", but the program has it on ", device(wanted));
  }

  static IValue& at(Frame& frame, int slot) { return frame.values[static_cast<std::size_t>(slot)]; }
  c10::Device device(int index) const { return devices_[static_cast<std::size_t>(index)]; }

  Instruction& add(Instruction::Kind kind, int device, std::string name,
                   const std::vector<std::tuple<int, int, int>>& outs) {
    Instruction made;
    made.kind = kind;
    made.device = device;
    made.name = std::move(name);
    for (const auto& [result, part, slot] : outs) made.outs.push_back({result, part, slot});
    code_.push_back(std::move(made));
    return code_.back();
  }

  static Argument argument_of(py::handle said, const c10::Argument& argument) {
    const c10::TypePtr type = within_optional(argument.real_type());
    if (said.is_none()) return {{{-1, argument.default_value().value()}}, nullptr};
    if (py::isinstance<py::list>(said)) {
      Argument made{{}, type->expectRef<c10::ListType>().getElementType()};
      if (made.of_list->kind() == TypeKind::SymIntType) made.of_list = c10::IntType::get();
      for (const py::handle part : said) {
        const auto pair = part.cast<py::tuple>();
        made.parts.push_back(
            {pair[0].cast<int>(), number_or_object(pair[1]), as(made.of_list, false)});
      }
      return made;
    }
    const auto tuple = said.cast<py::tuple>();
    const bool may_be_undefined = argument.type()->kind() == TypeKind::TensorType;
    if (tuple.size() > 1) {
      const bool is_number = tuple[1].cast<bool>();
      const bool is_itself = !is_number && !may_be_undefined;
      return {{{tuple[0].cast<int>(), {}, is_itself ? Part::As::kItself : as(type, is_number)}},
              nullptr};
    }
    const bool undefined = may_be_undefined && tuple[0].is_none();
    return {{{-1, undefined ? IValue(at::Tensor()) : constant_of(tuple[0], argument)}}, nullptr};
  }

  std::unique_ptr<Frame> take_frame() {
    {
      const std::lock_guard lock(mutex_);
      if (!frames_.empty()) {
        auto frame = std::move(frames_.back());
        frames_.pop_back();
        return frame;
      }
    }
    auto frame = std::make_unique<Frame>();
    frame->values.resize(static_cast<std::size_t>(slots_));
    for (std::size_t i = 0; i < sends_; ++i) frame->arrived.emplace_back(accelerator_);
    if (sends_ > 0)
      for (std::size_t i = 0; i < devices_.size(); ++i) frame->ready.emplace_back(accelerator_);
    frame->computing.resize(devices_.size());
    return frame;
  }

  void give_back(std::unique_ptr<Frame> frame) {
    for (IValue& value : frame->values) value = IValue();
    const std::lock_guard lock(mutex_);
    frames_.push_back(std::move(frame));
  }

  void begin(Frame& frame) const {
    frame.asked.assign(devices_.size(), 1);
    frame.noted.assign(devices_.size(), 0);
    frame.behind.assign(routes_.size(), 0);
    for (std::size_t i = 0; i < devices_.size(); ++i)
      if (!is_host(devices_[i]))
        frame.computing[i] = c10::impl::VirtualGuardImpl(accelerator_).getStream(devices_[i]);
    for (const auto& [slot, tensor] : constants_) at(frame, slot) = tensor;
    for (const int slot : unread_) at(frame, slot) = IValue();
  }

  void execute(Frame& frame) const {
    const at::AutoDispatchBelowADInplaceOrView below;
    const c10::impl::ExcludeDispatchKeyGuard exact(c10::autocast_dispatch_keyset);
    begin(frame);
    const bool told = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
    c10::OptionalDeviceGuard current;
    int computing = -1;
    torch::jit::Stack stack;
    for (std::size_t i = 0; i < code_.size(); ++i) {
      const Instruction& one = code_[i];
      place = static_cast<int>(i);
      if (one.kind <= Instruction::Kind::kPython && one.device != computing &&
          !is_host(device(one.device))) {
        current.reset_device(device(one.device));
        computing = one.device;
      }
      if (told && !one.name.empty()) {
        RECORD_USER_SCOPE(one.name);
        step(one, frame, stack);
      } else {
        step(one, frame, stack);
      }
      for (const int slot : one.free) at(frame, slot) = IValue();
    }
  }

  void step(const Instruction& one, Frame& frame, torch::jit::Stack& stack) const {
    switch (one.kind) {
      case Instruction::Kind::kCall:
        ++frame.asked[static_cast<std::size_t>(one.device)];
        stack.clear();
        for (const Argument& argument : one.args) push(argument, frame, stack);
        one.op->callBoxed(stack);
        keep(one, frame, stack);
        return;
      case Instruction::Kind::kPython:
        ++frame.asked[static_cast<std::size_t>(one.device)];
        call_python(one, frame);
        return;
      case Instruction::Kind::kAlias:
        if (one.source >= 0) at(frame, one.outs[0].slot) = at(frame, one.source);
        return;
      case Instruction::Kind::kSend:
        copy_over(one, frame);
        return;
      case Instruction::Kind::kWait:
        if (one.at_home) ++frame.asked[static_cast<std::size_t>(one.device)];
        if (const auto& stream = frame.computing[static_cast<std::size_t>(one.device)])
          frame.arrived[one.send].block(*stream);
        else
          frame.arrived[one.send].synchronize();
        return;
    }
  }

  static IValue value_of(const Part& part, Frame& frame) {
    const IValue& value = part.slot < 0 ? part.constant : at(frame, part.slot);
    switch (part.as) {
      case Part::As::kItself:
        return value;
      case Part::As::kTensor:
        return value.isNone() ? IValue(at::Tensor()) : value;
      case Part::As::kDouble:
        return value.isNone() ? value : IValue(value.toScalar().toDouble());
      case Part::As::kWrapped:
        return wrapped(value);
    }
    return {};
  }

  static void push(const Argument& argument, Frame& frame, torch::jit::Stack& stack) {
    if (!argument.of_list) return stack.push_back(value_of(argument.parts[0], frame));
    c10::impl::GenericList list(argument.of_list);
    list.reserve(argument.parts.size());
    for (const Part& part : argument.parts) list.push_back(value_of(part, frame));
    stack.emplace_back(std::move(list));
  }

  static void keep(const Instruction& one, Frame& frame, torch::jit::Stack& stack) {
    for (const Out& out : one.outs) {
      IValue& result = stack[static_cast<std::size_t>(out.result)];
      const auto part = static_cast<std::size_t>(out.part);
      if (out.part < 0)
        at(frame, out.slot) = std::move(result);
      else if (result.isTensorList())
        at(frame, out.slot) = result.toTensorList().get(part);
      else
        at(frame, out.slot) = result.toListRef()[part];
    }
  }

  static void call_python(const Instruction& one, Frame& frame) {
    const py::gil_scoped_acquire locked;
    py::list values;
    for (const Argument& argument : one.args)
      values.append(torch::jit::toPyObject(value_of(argument.parts[0], frame)));
    const auto results = one.function(values).cast<py::list>();
    for (const Out& out : one.outs)
      at(frame, out.slot) = number_or_object(results[static_cast<std::size_t>(out.result)]);
  }

  void copy_over(const Instruction& one, Frame& frame) const {
    const auto source = static_cast<std::size_t>(one.device);
    const c10::Device from = device(one.device), to = device(one.target);
    const Route& route = routes_[one.route];
    const IValue& value = at(frame, one.source);
    if (!value.isTensor() || !value.toTensor().defined()) {
      at(frame, one.outs[0].slot) = value;
      return;
    }
    const at::Tensor& tensor = value.toTensor();
    if (!is_host(from)) behind(source, one.route, frame);
    at::Tensor copy;
    if (one.fetch) {
      copy = room_for(tensor, one, frame);
      const c10::StreamGuard sending(route.send);
      copy.copy_(tensor, /*non_blocking=*/true);
    } else if (tensor.layout() == at::kSparse) {  // its parts are read, so that the host waits
      if (!is_host(from)) frame.computing[source]->synchronize();
      copy = tensor.to(to);
      if (!is_host(to)) frame.computing[static_cast<std::size_t>(one.target)]->synchronize();
    } else {
      const c10::StreamGuard sending(route.send);
      const c10::StreamGuard receiving(route.receive);
      copy = is_host(to) ? room_on_host(tensor, route.send)
                         : at::empty_like(tensor, tensor.options().device(to));
      copy.copy_(tensor, /*non_blocking=*/true);
    }
    if (!is_host(from) && !one.put_away) reads(route.send, tensor);
    if (!is_host(to) && !one.fetch)
      reads(*frame.computing[static_cast<std::size_t>(one.target)], copy);
    if (is_host(from) || is_host(to))
      baechi::Pieces::all().note(is_host(to) ? copy : tensor, route.send);
    frame.arrived[one.send].record(route.receive);
    at(frame, one.outs[0].slot) = std::move(copy);
  }

  // Has a route wait for all that a device was asked for.
  void behind(std::size_t device, std::size_t route, Frame& frame) const {
    if (frame.noted[device] != frame.asked[device]) {
      frame.ready[device].record(*frame.computing[device]);
      frame.noted[device] = frame.asked[device];
    }
    if (frame.behind[route] != frame.noted[device]) {
      frame.ready[device].block(routes_[route].send);
      frame.behind[route] = frame.noted[device];
    }
  }

  static at::Tensor room_on_host(const at::Tensor& tensor, c10::Stream writes) {
    if (at::Tensor room = baechi::Pieces::all().take(tensor, writes); room.defined()) return room;
    const auto options = tensor.options().device(at::kCPU);
    try {
      return at::empty_like(tensor, options.pinned_memory(true));
    } catch (const c10::Error&) {
      TORCH_WARN_ONCE(
          "baechi: the system pins no more of the host's memory: what is put there is copied while "
          "nothing else is asked for, at about half the rate");
      return at::empty_like(tensor, options.pinned_memory(false));
    }
  }

  // Memory for what a device fetches, of the stream that computes there: who had it before is behind
  // what the route waits for, so it is there when the program says, however far the host has come.
  at::Tensor room_for(const at::Tensor& tensor, const Instruction& one, Frame& frame) const {
    const auto target = static_cast<std::size_t>(one.target);
    const c10::StreamGuard computing(*frame.computing[target]);
    at::Tensor room =
        at::empty_like(tensor, tensor.options().device(device(one.target)).pinned_memory(false));
    ++frame.asked[target];  // the allocator may have filled it
    behind(target, one.route, frame);
    if (one.put.has_value()) frame.arrived[*one.put].block(routes_[one.route].send);
    return room;
  }

  // Tells the allocator. A tensor that is conjugated lazily would be copied by its own record_stream.
  void reads(c10::Stream stream, const at::Tensor& tensor) const {
    if (tensor.layout() == at::kSparse) {
      reads(stream, tensor._indices());
      reads(stream, tensor._values());
    } else if (tensor.has_storage())
      c10::impl::VirtualGuardImpl(accelerator_)
          .recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
    else
      tensor.record_stream(stream);
  }

  std::vector<c10::Device> devices_;  // the host is the last
  int slots_;
  c10::DeviceType accelerator_ = c10::DeviceType::CPU;
  std::vector<Instruction> code_;
  std::vector<std::pair<int, int>> inputs_;
  std::vector<int> unread_;
  std::vector<std::pair<int, at::Tensor>> constants_;
  std::vector<std::pair<int, py::object>> outputs_;
  std::size_t sends_ = 0;
  std::vector<std::optional<std::size_t>> by_slot_;  // the send that brings a slot
  std::map<std::tuple<int, int, int>, std::size_t> routes_of_;
  std::vector<Route> routes_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Frame>> frames_;
};

}  // namespace

PYBIND11_MODULE(baechi_executor, m) {
  py::class_<Executor>(m, "Executor")
      .def(py::init([](const py::list& devices, int slots) {
        std::vector<c10::Device> made;
        for (const py::handle device : devices)
          made.push_back(
              torch::jit::toIValue(device, c10::DeviceObjType::get(), std::nullopt).toDevice());
        return std::make_unique<Executor>(std::move(made), slots);
      }))
      .def("call", torch::wrap_pybind_function(&Executor::call))
      .def("python", &Executor::python)
      .def("send", torch::wrap_pybind_function(&Executor::send))
      .def("wait", &Executor::wait)
      .def("free", &Executor::free)
      .def("finish", &Executor::finish)
      .def("run", torch::wrap_pybind_function(&Executor::run));
  py::class_<baechi::Block>(m, "Block")
      .def(py::init<std::size_t>(), py::call_guard<py::gil_scoped_release>())
      .def("part", &baechi::Block::part);
  using baechi::Pieces;
  m.def("missing_pieces",
        [](const std::vector<std::size_t>& sizes) { return Pieces::all().missing(sizes); });
  m.def("add_pieces", [](const baechi::Block& block,
                         const std::vector<std::pair<std::size_t, std::size_t>>& parts) {
    Pieces::all().add(block, parts);
  });
  m.def("clear_pieces", [](std::size_t unused_for) { Pieces::all().clear(unused_for); });
  m.def(
      "failed_at", [] { return place; }, "The instruction in which this thread's last run failed.");
}
