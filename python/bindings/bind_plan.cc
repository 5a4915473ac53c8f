// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <map>
#include <tuple>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/graph/recosted.h"
#include "baechi/io/plan/plan_file.h"
#include "baechi/io/step/open_plan.h"
#include "baechi/io/text/text_file.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/report/text/plan_text.h"
#include "bindings.h"
#include "interruptible.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace baechi::python {
namespace {

const std::string& device_name(const Plan& plan, DeviceId device) {
  return plan.cluster.devices[device.index()].name;
}

// One entry per operator, by index.
template <class Of>
auto column(const PlanHandle& h, const Of& of) {
  std::vector<decltype(of(h.plan.schedule.slots[OpId(0)]))> values;
  values.reserve(h.plan.schedule.slots.size());
  for (const OpSlot& slot : h.plan.schedule.slots) values.push_back(of(slot));
  return values;
}

// One value per device, by name.
template <class Of>
std::map<std::string, std::int64_t> by_device(const PlanHandle& h, const Of& of) {
  std::map<std::string, std::int64_t> values;
  for (const DeviceId device : h.plan.devices.keys())
    values.emplace(device_name(h.plan, device), of(h.plan.devices[device]));
  return values;
}

std::string json_of(const PlanHandle& h) {
  return h.step != nullptr ? plan_to_json(h.plan, *h.step) : plan_to_json(h.plan, *h.graph);
}

// Of a step of one micro-batch the graph stays the object that it is.
PlanHandle opened(const std::string& text, const std::string& place, const GraphHandle& graph) {
  if (text.find("\"micro_batches\"") == std::string::npos &&
      text.find("\"recomputed\"") == std::string::npos &&
      text.find("\"replicas\"") == std::string::npos &&
      text.find("\"residency\"") == std::string::npos)
    return {graph.graph, parse_plan(text, place, *graph.graph)};
  OpenedPlan plan = open_plan_text(text, place, recosted(*graph.graph, {}));
  if (plan.original.has_value() && plan.plan.micro_batches == 1)
    return {std::make_shared<const OpGraph>(std::move(plan.step.graph)),
            std::move(plan.plan),
            {},
            graph.graph};
  if (plan.plan.micro_batches == 1) return {graph.graph, std::move(plan.plan)};
  PlanHandle handle =
      plan_handle(std::move(plan.step), std::move(plan.plan), recosted(*graph.graph, {}));
  handle.micro_batch = graph.graph;
  return handle;
}

}  // namespace

PlanHandle plan_handle(Unrolled step, Plan plan, OpGraph micro_batch) {
  auto held = std::make_shared<const Unrolled>(std::move(step));
  std::shared_ptr<const OpGraph> graph(held, &held->graph);
  return {std::move(graph), std::move(plan), std::move(held),
          std::make_shared<const OpGraph>(std::move(micro_batch))};
}

void bind_plan(nb::module_& m) {
  nb::class_<MethodOutcome>(m, "MethodOutcome", "What one method reached.")
      .def_prop_ro("method", [](const MethodOutcome& o) { return o.method; })
      .def_prop_ro(
          "makespan_ns",
          [](const MethodOutcome& o) -> std::optional<std::int64_t> {
            if (!o.makespan.has_value()) return std::nullopt;
            return o.makespan->count();
          },
          "The step time it reached; None when it found no plan that fits.")
      .def_prop_ro("fallbacks", [](const MethodOutcome& o) { return o.fallbacks; })
      .def_prop_ro("reason", [](const MethodOutcome& o) { return o.reason; })
      .def_prop_ro("devices_used", [](const MethodOutcome& o) { return o.devices_used; })
      .def("__repr__", [](const MethodOutcome& o) { return "MethodOutcome('" + o.method + "')"; });

  nb::class_<PlanHandle>(m, "Plan", "Which operator runs where and when, simulated and verified.")
      .def_static(
          "load",
          [](const std::filesystem::path& path, const GraphHandle& graph) {
            const SourceText source = read_text_file(path);
            return reading(source.name, [&] { return opened(source.text, source.name, graph); });
          },
          "path"_a, "graph"_a)
      .def_static(
          "from_json",
          [](const std::string& text, const GraphHandle& graph) {
            return opened(text, "<string>", graph);
          },
          "text"_a, "graph"_a)
      .def("to_json", &json_of)
      .def(
          "save",
          [](const PlanHandle& h, const std::filesystem::path& path) {
            nb::gil_scoped_release unlocked;
            write_text_file(path, json_of(h));
          },
          "path"_a, "Writes plan.json, atomically.")
      .def_prop_ro(
          "graph", [](const PlanHandle& h) { return GraphHandle{h.graph}; },
          "The graph that the plan is about: of a step of micro-batches all of their operators, "
          "'op@0', 'op@1', ...")
      .def_prop_ro(
          "micro_batches", [](const PlanHandle& h) { return h.plan.micro_batches; },
          "Of how many micro-batches the step consists, in each replica.")
      .def_prop_ro(
          "replicas", [](const PlanHandle& h) { return h.plan.replicas.count; },
          "How many copies of the placement, on devices of their own, share the step.")
      .def_prop_ro(
          "recomputed",
          [](const PlanHandle& h) {
            const GraphHandle of_one = h.graph_of_one();
            const OpGraph& graph = *of_one.graph;
            std::vector<std::pair<std::string, std::optional<std::string>>> runs;
            for (const Recomputation& again : h.plan.recomputed)
              runs.emplace_back(graph[again.op].name,
                                again.after.has_value()
                                    ? std::optional<std::string>(graph[*again.after].name)
                                    : std::nullopt);
            return runs;
          },
          "The operators that run a second time, each with the one of the backward pass that its "
          "second run waits for. The plan's graph has the second run of 'op' as 'op@again'.")
      .def_prop_ro(
          "micro_batch_graph", [](const PlanHandle& h) { return h.graph_of_one(); },
          "The graph of one micro-batch, every operator in it once, which plan.json is read with.")
      .def_prop_ro("cluster",
                   [](const PlanHandle& h) {
                     return ClusterHandle{std::make_shared<const Cluster>(h.plan.cluster)};
                   })
      .def(
          "with_cluster",
          [](const PlanHandle& h, const ClusterHandle& cluster) {
            nb::gil_scoped_release unlocked;
            PlanHandle result = h;
            result.plan = plan_with_capacities(h.plan, CostModel(*h.graph, *cluster.cluster));
            return result;
          },
          "cluster"_a,
          "The same plan for devices of other capacities: what runs where and when stays, bounds "
          "and gap are the cluster's. InputError when a device holds more than it has.")
      .def(
          "with_run_peaks",
          [](const PlanHandle& h, const std::map<std::string, std::int64_t>& peaks) {
            PlanHandle result = h;
            for (const DeviceId device : result.plan.devices.keys()) {
              const auto at = peaks.find(device_name(h.plan, device));
              if (at == peaks.end() || at->second < 0)
                throw InputError("run peaks: '" + device_name(h.plan, device) +
                                 "' needs a number of bytes");
              result.plan.devices[device].run_peak = Bytes(at->second);
            }
            if (peaks.size() != h.plan.devices.size())
              throw InputError("run peaks: " + std::to_string(peaks.size()) +
                               " are given for the cluster's " +
                               std::to_string(h.plan.devices.size()) + " devices");
            return result;
          },
          "peaks"_a,
          "The same plan with the most bytes that each device will hold, by name, as who runs the "
          "plan foresees them in an account of its own. Reports show these.")
      .def(
          "with_order",
          [](const PlanHandle& h, const std::string& order) {
            if (h.plan.micro_batches > 1 && order_by_name(order) != h.plan.order)
              throw InputError("order", "a step of micro-batches runs in its planned order");
            if (!h.plan.recomputed.empty() && order_by_name(order) != h.plan.order)
              throw InputError("order",
                               "second runs of operators have their place in the plan's order");
            if (h.plan.replicas.any() && order_by_name(order) != h.plan.order)
              throw InputError("order", "replicas run in the plan's order");
            if (!h.plan.residency.empty() && order_by_name(order) != h.plan.order)
              throw InputError("order", "fetches have their place in the plan's order");
            return interruptible([&](const CancelFlag* cancel) {
              const Cluster cluster(h.plan.cluster);
              PlanHandle result = h;
              result.plan =
                  replayed(h.plan, CostModel(*h.graph, cluster), order_by_name(order), cancel);
              return result;
            });
          },
          "order"_a,
          "The plan's placement as a program with that order runs it, \"planned\", \"program\" or "
          "\"none\": replayed, without bounds and methods. It may exceed capacities: see "
          "Plan.fits.")
      .def_prop_ro(
          "order",
          [](const PlanHandle& h) { return std::string(execution_order_name(h.plan.order)); },
          "In which order the program that the plan is for runs its operators: \"planned\" (the "
          "plan's own), \"program\" (that of the graph) or \"none\" (what becomes ready first).")
      .def_prop_ro("method", [](const PlanHandle& h) { return h.plan.method; })
      .def_prop_ro(
          "makespan_ns", [](const PlanHandle& h) { return h.plan.makespan().count(); },
          "The predicted step time in nanoseconds.")
      .def_prop_ro(
          "gap", [](const PlanHandle& h) { return h.plan.gap(); },
          "makespan / strongest lower bound - 1; None without a bound.")
      .def_prop_ro(
          "bounds",
          [](const PlanHandle& h) {
            std::map<std::string, std::int64_t> bounds;
            for (const NamedBound& bound : h.plan.bounds)
              bounds.emplace(bound.name, bound.value.count());
            return bounds;
          },
          "Lower bounds on any placement's step time, in nanoseconds, by name.")
      .def_prop_ro(
          "device_of",
          [](const PlanHandle& h) {
            std::map<std::string, std::string> devices;
            for (const OpId op : h.graph->ops())
              devices.emplace((*h.graph)[op].name,
                              device_name(h.plan, h.plan.schedule.slots[op].device));
            return devices;
          },
          "The device of every operator, by name.")
      .def_prop_ro(
          "devices",
          [](const PlanHandle& h) {
            return column(h, [](const OpSlot& slot) { return slot.device.value(); });
          },
          "The device index of every operator, by index.")
      .def_prop_ro(
          "starts",
          [](const PlanHandle& h) {
            return column(h, [](const OpSlot& slot) { return slot.start.count(); });
          },
          "Nanoseconds, by operator index.")
      .def_prop_ro(
          "ends",
          [](const PlanHandle& h) {
            return column(h, [](const OpSlot& slot) { return slot.end.count(); });
          },
          "Nanoseconds, by operator index.")
      .def_prop_ro(
          "transfers",
          [](const PlanHandle& h) {
            std::vector<std::tuple<std::string, std::string, std::string, std::int64_t,
                                   std::int64_t, std::int64_t, std::int64_t>>
                rows;
            for (const Transfer& t : h.plan.schedule.transfers)
              rows.emplace_back((*h.graph)[h.graph->producer(t.tensor)].name,
                                device_name(h.plan, t.from), device_name(h.plan, t.to),
                                h.graph->size(t.tensor).count(), t.requested.count(),
                                t.start.count(), t.end.count());
            return rows;
          },
          "(producer, source, target, bytes, requested, start, end) of every transfer; "
          "times in nanoseconds.")
      .def_prop_ro(
          "peaks",
          [](const PlanHandle& h) {
            return by_device(h, [](const PlanDevice& d) { return d.peak.count(); });
          },
          "The most bytes each device holds at once, as planned.")
      .def_prop_ro(
          "run_peaks",
          [](const PlanHandle& h) -> std::optional<std::map<std::string, std::int64_t>> {
            if (!h.plan.has_run_peaks()) return std::nullopt;
            return by_device(h, [](const PlanDevice& d) { return d.highest().count(); });
          },
          "The same as who runs the plan foresees it; None where nobody has an account of its own.")
      .def_prop_ro(
          "busy_ns",
          [](const PlanHandle& h) {
            return by_device(h, [](const PlanDevice& d) { return d.busy.count(); });
          },
          "How long each device computes, in nanoseconds.")
      .def_prop_ro(
          "fits",
          [](const PlanHandle& h) {
            for (const DeviceId device : h.plan.devices.keys())
              if (h.plan.devices[device].peak > h.plan.cluster.devices[device.index()].capacity)
                return false;
            return true;
          },
          "Every peak is within its device's capacity. Always so for a placed plan.")
      .def_prop_ro(
          "methods", [](const PlanHandle& h) { return h.plan.methods; },
          "What every method that was tried reached.")
      .def_prop_ro(
          "passes", [](const PlanHandle& h) { return h.plan.passes; },
          "What the Graph Optimizer did for the paper's methods, in order.")
      .def_prop_ro(
          "fallbacks", [](const PlanHandle& h) { return h.plan.fallbacks; },
          "What it took to fit: 'headroom', 'reserve', 'repair', ...")
      .def_prop_ro("notes", [](const PlanHandle& h) { return h.plan.notes; })
      .def(
          "__eq__",
          [](const PlanHandle& a, const PlanHandle& b) {
            return a.plan == b.plan && (a.graph == b.graph || json_of(a) == json_of(b));
          },
          nb::sig("def __eq__(self, other: object, /) -> bool"), nb::is_operator())
      .def("__getstate__",
           [](const PlanHandle& h) { return std::make_tuple(json_of(h), h.graph_of_one()); })
      .def("__setstate__",
           [](PlanHandle& h, const std::tuple<std::string, GraphHandle>& state) {
             const auto& [text, graph] = state;
             new (&h) PlanHandle(opened(text, "<pickle>", graph));
           })
      .def("__repr__", [](const PlanHandle& h) { return "<Plan: " + headline(h.plan) + ">"; })
      .def("__str__", [](const PlanHandle& h) {
        std::string text = headline(h.plan) + "\n\n";
        if (!h.plan.passes.empty()) text += passes_text(h.plan.passes, {}) + "\n";
        if (!h.plan.methods.empty()) text += methods_text(h.plan, {}) + "\n";
        return text + devices_text(h.plan, *h.graph);
      });
}

}  // namespace baechi::python
