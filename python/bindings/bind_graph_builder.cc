// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/graph/op_graph_builder.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace baechi::python {
namespace {

using Times = nb::typed<nb::mapping, std::string, std::int64_t>;

struct AddedOperator {  // what GraphBuilder.add is given
  OperatorSpec spec;
  std::vector<std::pair<std::string, std::int64_t>> times;
  std::vector<std::int64_t> outputs;
  std::vector<std::pair<std::string, std::size_t>> inputs;
  std::vector<std::string> after;
  std::vector<std::string> colocate;
  std::vector<std::string> writes;
};

// Python objects outlive build(), which uses the core's builder up.
class BuilderHandle {
 public:
  explicit BuilderHandle(OpGraphBuilder builder) : builder_(std::move(builder)) {}

  OpGraphBuilder& get() {
    if (!builder_.has_value()) throw InputError("the builder has been built already");
    return *builder_;
  }
  OpGraph build() {
    OpGraphBuilder builder = std::move(get());
    builder_.reset();
    return std::move(builder).build();
  }
  OpId find(std::string_view name) {
    const std::optional<OpId> op = get().find(name);
    if (!op.has_value()) throw InputError("no operator '" + std::string(name) + "'");
    return *op;
  }
  OpId add(const AddedOperator& added);

 private:
  void check_amounts(const AddedOperator& added);

  std::optional<OpGraphBuilder> builder_;
};

void BuilderHandle::check_amounts(const AddedOperator& added) {
  const std::string name = "operator '" + std::string(added.spec.name) + "'";
  const auto require = [&](std::int64_t amount, const char* what, const char* unit) {
    if (amount < 0)
      throw InputError(name + " has a negative " + what + ": " + std::to_string(amount) + unit);
  };
  require(added.spec.permanent.count(), "permanent memory", " bytes");
  require(added.spec.temporary.count(), "temporary memory", " bytes");
  for (const std::int64_t size : added.outputs) require(size, "output size", " bytes");
  for (const auto& [kind, time] : added.times) {
    require(time, "compute time", " ns");
    if (kind.empty()) throw InputError(name + " has a compute time for a kind without a name");
  }
  for (const std::string& group : added.colocate)
    if (group.empty()) throw InputError(name + " names an empty colocation group");
  if (added.spec.pin.has_value() && added.spec.pin->empty())
    throw InputError(name + " is pinned to a device without a name");
}

// Checks everything first: what is refused leaves nothing behind.
OpId BuilderHandle::add(const AddedOperator& added) {
  OpGraphBuilder& builder = get();
  check_amounts(added);
  std::vector<TensorId> read;
  for (const auto& [producer, port] : added.inputs) {
    const std::optional<TensorId> tensor = builder.output(find(producer), port);
    if (!tensor.has_value())
      throw InputError("operator '" + producer + "' has no output " + std::to_string(port));
    read.push_back(*tensor);
  }
  std::vector<OpId> after;
  for (const std::string& other : added.after) after.push_back(find(other));
  std::vector<OpId> written;
  for (const std::string& variable : added.writes) written.push_back(find(variable));

  const OpId op = builder.add_operator(added.spec);
  for (const auto& [kind, time] : added.times) builder.set_time(op, kind, Time(time));
  for (const std::int64_t size : added.outputs) builder.add_output(op, Bytes(size));
  for (const TensorId tensor : read) builder.connect(tensor, op);
  for (const OpId other : after) builder.add_control_edge(other, op);
  for (const OpId variable : written) builder.add_write(op, variable);
  for (const std::string& group : added.colocate) builder.add_to_group(op, group);
  return op;
}

}  // namespace

void bind_graph_builder(nb::module_& m) {
  nb::class_<BuilderHandle>(m, "GraphBuilder", nb::type_slots(kLooksUpInit),
                            "Collects operators and edges, and checks them into a Graph.")
      .def(
          "__init__",
          [](BuilderHandle* self, std::string_view name, std::string_view memory_mode,
             std::optional<std::int64_t> batch_size) {
            OpGraphBuilder builder(name);
            builder.set_memory_mode(memory_mode_of(memory_mode));
            if (batch_size.has_value()) builder.set_batch_size(*batch_size);
            new (self) BuilderHandle(std::move(builder));
          },
          "name"_a = "", nb::kw_only(), "memory_mode"_a = "dataflow", "batch_size"_a = nb::none())
      .def(
          "add",
          [](BuilderHandle& self, std::string_view name, const Times& times, std::string_view kind,
             std::int64_t permanent, std::int64_t temporary, std::vector<std::int64_t> outputs,
             std::vector<std::pair<std::string, std::size_t>> inputs,
             std::vector<std::string> after, std::vector<std::string> colocate,
             std::optional<std::string_view> forward, bool backward,
             std::optional<std::string_view> device, bool per_step, bool recompute, bool variable,
             std::vector<std::string> writes, bool random) {
            AddedOperator added{
                .spec = {.name = name,
                         .kind = kind,
                         .permanent = Bytes(permanent),
                         .temporary = Bytes(temporary),
                         .backward = backward,
                         .pin = device,
                         .per_step = per_step,
                         .recompute = recompute,
                         .variable = variable,
                         .random = random},
                .times = items_of<std::int64_t>(
                    times, "times are whole nanoseconds from 0 to 2**63 - 1 by device kind"),
                .outputs = std::move(outputs),
                .inputs = std::move(inputs),
                .after = std::move(after),
                .colocate = std::move(colocate),
                .writes = std::move(writes)};
            if (forward.has_value()) added.spec.forward = self.find(*forward);
            return self.add(added).value();
          },
          "name"_a, "times"_a = nb::dict(), nb::kw_only(), "kind"_a = "", "permanent"_a = 0,
          "temporary"_a = 0, "outputs"_a = std::vector<std::int64_t>(),
          "inputs"_a = std::vector<std::pair<std::string, std::size_t>>(),
          "after"_a = std::vector<std::string>(), "colocate"_a = std::vector<std::string>(),
          "forward"_a = nb::none(), "backward"_a = false, "device"_a = nb::none(),
          "per_step"_a = false, "recompute"_a = true, "variable"_a = false,
          "writes"_a = std::vector<std::string>(), "random"_a = false,
          "Adds an operator; its inputs (producer, port) and what it writes must have been added "
          "before. `times` are nanoseconds by device kind ('*': any kind), sizes are bytes. "
          "`per_step`: runs once per step, not once per micro-batch. `recompute`: a second run "
          "gives the same outputs. `variable`: its one output is there for the whole step; it "
          "needs no times. `writes`: variables to which every micro-batch gives a new value here. "
          "`random`: draws random numbers. Returns its index. What raises InputError adds nothing.")
      .def(
          "set_forward",
          [](BuilderHandle& self, std::string_view name, std::string_view forward) {
            const OpId op = self.find(name);
            self.get().set_forward(op, self.find(forward));
          },
          "name"_a, "forward"_a,
          "Makes `name` the backward operator of `forward`, when that one is added later.")
      .def(
          "add_write",
          [](BuilderHandle& self, std::string_view name, std::string_view variable) {
            const OpId op = self.find(name);
            self.get().add_write(op, self.find(variable));
          },
          "name"_a, "variable"_a, "Makes `name` write `variable`, when that one is added later.")
      .def("__len__", [](BuilderHandle& self) { return self.get().num_ops(); })
      .def(
          "build",
          [](BuilderHandle& self) {
            return GraphHandle{std::make_shared<const OpGraph>(self.build())};
          },
          "The checked graph. The builder cannot be used afterwards.");
}

}  // namespace baechi::python
