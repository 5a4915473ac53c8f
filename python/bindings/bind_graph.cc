// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/io/graph/read_graph.h"
#include "baechi/io/graph/write_graph.h"
#include "baechi/io/text/text_file.h"
#include "bindings.h"
#include "interruptible.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace baechi::python {
namespace {

GraphHandle handle(OpGraph graph) { return {std::make_shared<const OpGraph>(std::move(graph))}; }

nb::typed<nb::dict, std::string, std::int64_t> times_of(const OpGraph& graph, OpId op) {
  nb::typed<nb::dict, std::string, std::int64_t> times;
  for (const KindId kind : graph.kinds())
    if (const auto time = graph.times(kind)[op])
      times[nb::cast(graph.kind_name(kind))] = time->count();
  return times;
}

std::vector<std::pair<std::string, std::size_t>> inputs_of(const OpGraph& graph, OpId op) {
  std::vector<std::pair<std::string, std::size_t>> inputs;
  for (const Edge& edge : graph.in_edges(op))
    if (edge.tensor.has_value())
      inputs.emplace_back(graph[edge.from].name,
                          edge.tensor->index() - (*graph.outputs(edge.from).begin()).index());
  return inputs;
}

void bind_operator(nb::module_& m) {
  const auto at = [](const OperatorHandle& h) -> const Operator& { return (*h.graph)[h.op]; };
  nb::class_<OperatorHandle>(m, "Operator", "One operator of a graph; a light view.")
      .def_prop_ro("index", [](const OperatorHandle& h) { return h.op.value(); })
      .def_prop_ro("name", [at](const OperatorHandle& h) { return at(h).name; })
      .def_prop_ro(
          "kind", [at](const OperatorHandle& h) { return at(h).kind; },
          "Free text such as 'MatMul'; may be empty.")
      .def_prop_ro(
          "times", [](const OperatorHandle& h) { return times_of(*h.graph, h.op); },
          "Nanoseconds by device kind; a kind that is missing cannot run it.")
      .def_prop_ro(
          "permanent",
          [at](const OperatorHandle& h) {
            return at(h).variable ? std::int64_t{0} : at(h).permanent.count();
          },
          "Bytes held for the whole step: weights, gradients, optimizer state. Of a variable none: "
          "its output is.")
      .def_prop_ro(
          "temporary", [at](const OperatorHandle& h) { return at(h).temporary.count(); },
          "Bytes held while the operator runs.")
      .def_prop_ro(
          "outputs",
          [](const OperatorHandle& h) {
            std::vector<std::int64_t> sizes;
            for (const TensorId tensor : h.graph->outputs(h.op))
              sizes.push_back(h.graph->size(tensor).count());
            return sizes;
          },
          "Bytes of each output, by port.")
      .def_prop_ro(
          "inputs", [](const OperatorHandle& h) { return inputs_of(*h.graph, h.op); },
          "(producer, port) of each tensor it reads.")
      .def_prop_ro(
          "after",
          [](const OperatorHandle& h) {
            std::vector<std::string> names;
            for (const Edge& edge : h.graph->in_edges(h.op))
              if (!edge.tensor.has_value()) names.emplace_back((*h.graph)[edge.from].name);
            return names;
          },
          "The operators it waits for without reading from them.")
      .def_prop_ro("backward", [at](const OperatorHandle& h) { return at(h).backward; })
      .def_prop_ro(
          "per_step", [at](const OperatorHandle& h) { return at(h).per_step; },
          "Runs once, however many micro-batches the step has.")
      .def_prop_ro(
          "recompute", [at](const OperatorHandle& h) { return at(h).recompute; },
          "Whether a second run gives the same outputs, so that a plan may run it again.")
      .def_prop_ro(
          "variable", [at](const OperatorHandle& h) { return at(h).variable; },
          "Its output is there, where it is, from begin to end of the step; no device runs it.")
      .def_prop_ro(
          "writes",
          [](const OperatorHandle& h) {
            std::vector<std::string> names;
            for (const auto& [op, variable] : h.graph->writes())
              if (op == h.op) names.emplace_back((*h.graph)[variable].name);
            return names;
          },
          "The variables to which it gives a new value in every micro-batch.")
      .def_prop_ro(
          "random", [at](const OperatorHandle& h) { return at(h).random; },
          "Draws random numbers, so micro-batches run it in their order.")
      .def_prop_ro(
          "forward",
          [at](const OperatorHandle& h) -> std::optional<std::string> {
            if (!at(h).forward.has_value()) return std::nullopt;
            return std::string((*h.graph)[*at(h).forward].name);
          },
          "The name of the operator whose backward this is.")
      .def_prop_ro(
          "device",
          [at](const OperatorHandle& h) -> std::optional<std::string> {
            if (!at(h).pin.has_value()) return std::nullopt;
            return std::string(*at(h).pin);
          },
          "The name of the only device it may run on, when it is pinned.")
      .def_prop_ro(
          "colocate",
          [](const OperatorHandle& h) {
            const auto names = h.graph->colocation_names(h.op);
            return std::vector<std::string>(names.begin(), names.end());
          },
          "The names of its colocation groups.")
      .def("__repr__",
           [at](const OperatorHandle& h) { return "Operator('" + std::string(at(h).name) + "')"; });
}

}  // namespace

MemoryMode memory_mode_of(std::string_view name) {
  if (name == "dataflow") return MemoryMode::kDataflow;
  if (name == "retain") return MemoryMode::kRetain;
  throw InputError("memory_mode is 'dataflow' or 'retain', not '" + std::string(name) + "'");
}

const char* memory_mode_name(MemoryMode mode) {
  return mode == MemoryMode::kRetain ? "retain" : "dataflow";
}

OpId operator_id(const OpGraph& graph, const nb::object& key) {
  if (nb::isinstance<nb::str>(key)) {
    const auto name = nb::cast<std::string>(key);
    const std::optional<OpId> op = graph.find(name);
    if (!op.has_value()) throw nb::key_error(("no operator '" + name + "'").c_str());
    return *op;
  }
  const Py_ssize_t index = PyNumber_AsSsize_t(key.ptr(), PyExc_IndexError);
  if (index == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  const auto size = static_cast<Py_ssize_t>(graph.num_ops());
  if (index < -size || index >= size)
    throw nb::index_error(
        ("no operator " + std::to_string(index) + ": there are " + std::to_string(size)).c_str());
  return OpId(static_cast<std::size_t>(index < 0 ? index + size : index));
}

// The Python type of `costs`.
#define BAECHI_COSTS \
  "str | os.PathLike[str] | Profile | collections.abc.Sequence[str | os.PathLike[str] | Profile]"

using Dimensions = std::map<std::string, std::int64_t>;

ReadOptions read_options(const nb::object& costs, std::optional<std::int64_t> batch,
                         const Dimensions& dimensions = {}) {
  for (const auto& [name, size] : dimensions)
    if (size < 1)
      throw InputError("dimension '" + name + "'",
                       "expected a positive number, found " + std::to_string(size));
  ReadOptions options{.costs = model_costs_of(costs, batch), .cancel = nullptr};
  options.costs.dimensions = {dimensions.begin(), dimensions.end()};
  return options;
}

GraphHandle parse_bytes(const nb::bytes& model, ReadOptions options) {
  const std::string_view bytes(model.c_str(), model.size());
  OpGraph graph = interruptible([&](const CancelFlag* cancel) {
    options.cancel = cancel;
    return parse_graph(bytes, "<bytes>", options);
  });
  warn_of_profiles(graph, options.costs);
  return handle(std::move(graph));
}

void bind_graph(nb::module_& m) {
  bind_operator(m);
  nb::class_<GraphHandle>(m, "Graph",
                          "An ML graph: operators, and the tensors between them. Immutable.")
      .def_static(
          "load",
          [](const std::filesystem::path& path, const nb::object& costs,
             std::optional<std::int64_t> batch, const Dimensions& dimensions) {
            ReadOptions options = read_options(costs, batch, dimensions);
            OpGraph graph = interruptible([&](const CancelFlag* cancel) {
              options.cancel = cancel;
              return read_graph(path, options);
            });
            warn_of_profiles(graph, options.costs);
            return handle(std::move(graph));
          },
          "path"_a, nb::kw_only(), "costs"_a = "", "batch"_a = nb::none(),
          "dimensions"_a = Dimensions{},
          nb::sig("def load(path: str | os.PathLike[str], *, costs: " BAECHI_COSTS
                  " = '', batch: int | None = None, dimensions: "
                  "collections.abc.Mapping[str, int] = {}) -> Graph"),
          ("Reads a graph file:\n" + graph_format_names() +
           ".\n"
           "`costs` is a Profile, the path of one, or presets by device kind, such as\n"
           "\"gpu=rtx3090,cpu=cpu\", or several of these. GraphDefs and ONNX models need them, "
           "and\n"
           "`batch` where they leave dimensions open; those of an ONNX model can also be given by\n"
           "name: `dimensions={\"sequence\": 128}`.")
              .c_str())
      .def_static(
          "from_graph_def",
          [](nb::bytes graph_def, const nb::object& costs, std::optional<std::int64_t> batch) {
            return parse_bytes(graph_def, read_options(costs, batch));
          },
          "graph_def"_a, nb::kw_only(), "costs"_a, "batch"_a = nb::none(),
          nb::sig("def from_graph_def(graph_def: bytes, *, costs: " BAECHI_COSTS
                  ", batch: int | None "
                  "= None) -> Graph"),
          "Reads a serialized TensorFlow GraphDef made with as_graph_def(add_shapes=True).")
      .def_static(
          "from_onnx",
          [](nb::bytes model, const nb::object& costs, std::optional<std::int64_t> batch,
             const Dimensions& dimensions) {
            return parse_bytes(model, read_options(costs, batch, dimensions));
          },
          "model"_a, nb::kw_only(), "costs"_a, "batch"_a = nb::none(),
          "dimensions"_a = Dimensions{},
          nb::sig("def from_onnx(model: bytes, *, costs: " BAECHI_COSTS
                  ", batch: int | None = None, dimensions: "
                  "collections.abc.Mapping[str, int] = {}) -> Graph"),
          "Reads a serialized ONNX model; see `load` for the arguments.")
      .def_static(
          "from_json",
          [](const std::string& text) {
            return handle(interruptible([&](const CancelFlag* cancel) {
              return parse_graph(text, "<string>", {.costs = {}, .cancel = cancel});
            }));
          },
          "text"_a)
      .def(
          "with_profile",
          [](const GraphHandle& h, const ProfileHandle& profile) {
            const ModelCosts costs{.profiles = {{"profile", *profile.profile}}};
            OpGraph graph = with_profiles(recosted(*h.graph, {}), costs);
            warn_of_profiles(graph, costs);
            return handle(std::move(graph));
          },
          "profile"_a,
          "The same graph with the costs of the profile; what it lacks stays. Raises InputError "
          "for\n"
          "the profile of another graph, and warns of operators that only one of the two has.")
      .def("to_json", [](const GraphHandle& h) { return graph_to_json(*h.graph); })
      .def(
          "save",
          [](const GraphHandle& h, const std::filesystem::path& path) {
            nb::gil_scoped_release unlocked;
            write_text_file(path, graph_to_json(*h.graph));
          },
          "path"_a, "Writes graph.json, atomically.")
      .def_prop_ro("name", [](const GraphHandle& h) { return h.graph->name(); })
      .def_prop_ro("memory_mode",
                   [](const GraphHandle& h) { return memory_mode_name(h.graph->memory_mode()); })
      .def_prop_ro("batch_size", [](const GraphHandle& h) { return h.graph->batch_size(); })
      .def_prop_ro("num_edges", [](const GraphHandle& h) { return h.graph->num_edges(); })
      .def_prop_ro("num_tensors", [](const GraphHandle& h) { return h.graph->num_tensors(); })
      .def_prop_ro("num_groups", [](const GraphHandle& h) { return h.graph->num_groups(); })
      .def_prop_ro(
          "device_kinds",
          [](const GraphHandle& h) {
            std::vector<std::string> names;
            for (const KindId kind : h.graph->kinds()) names.emplace_back(h.graph->kind_name(kind));
            return names;
          },
          "The device kinds that the graph has compute times for.")
      .def_prop_ro(
          "names",
          [](const GraphHandle& h) {
            std::vector<std::string_view> names;
            names.reserve(h.graph->num_ops());
            for (const OpId op : h.graph->ops()) names.push_back((*h.graph)[op].name);
            return names;
          },
          "The operators' names, by index.")
      .def("__len__", [](const GraphHandle& h) { return h.graph->num_ops(); })
      .def("__contains__", [](const GraphHandle& h,
                              std::string_view name) { return h.graph->find(name).has_value(); })
      .def(
          "__getitem__",
          [](const GraphHandle& h, const nb::object& key) {
            return OperatorHandle{h.graph, operator_id(*h.graph, key)};
          },
          nb::sig("def __getitem__(self, key: str | int) -> Operator"))
      .def(
          "__eq__",
          [](const GraphHandle& a, const GraphHandle& b) {
            return a.graph == b.graph || graph_to_json(*a.graph) == graph_to_json(*b.graph);
          },
          nb::sig("def __eq__(self, other: object, /) -> bool"), nb::is_operator())
      .def("__getstate__", [](const GraphHandle& h) { return graph_to_json(*h.graph); })
      .def("__setstate__",
           [](GraphHandle& h, const std::string& text) {
             new (&h) GraphHandle(handle(parse_graph(text, "<pickle>")));
           })
      .def("__repr__", [](const GraphHandle& h) {
        return "<Graph '" + h.graph->name() + "': " + std::to_string(h.graph->num_ops()) +
               " operators, " + std::to_string(h.graph->num_edges()) + " edges>";
      });
}

}  // namespace baechi::python
