// SPDX-License-Identifier: Apache-2.0
// Placing, simulating, verifying and bounding.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/bounds/graph_facts.h"
#include "baechi/bounds/lower_bounds.h"
#include "baechi/graph/recosted.h"
#include "baechi/options/option_text.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/plan/request/methods.h"
#include "baechi/plan/request/option_values.h"
#include "baechi/plan/request/planner_options.h"
#include "baechi/plan/steps/step_plan.h"
#include "baechi/plan/steps/step_request.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_plan.h"
#include "bindings.h"
#include "interruptible.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace baechi::python {
namespace {

using Answer = std::variant<PlanHandle, UnplaceableHandle>;

// The graph may be given at further batch sizes.
Answer planned(const GraphHandle& graph, const ClusterHandle& cluster, const StepRequest& request,
               const std::vector<GraphHandle>& sizes) {
  std::vector<OpGraph> graphs;
  graphs.push_back(recosted(*graph.graph, {}));
  for (const GraphHandle& size : sizes) graphs.push_back(recosted(*size.graph, {}));
  StepPlan made = make_step_plan(std::move(graphs), *cluster.cluster, request);
  if (auto* answer = std::get_if<Unplaceable>(&made.result)) {
    const bool of_one = &made.graph_told_of() != &made.step.graph;
    OpGraph& told_of = of_one ? *made.micro_batch : made.step.graph;
    return UnplaceableHandle{std::make_shared<const OpGraph>(std::move(told_of)),
                             std::move(*answer)};
  }
  Plan& plan = std::get<Plan>(made.result);
  if (plan.micro_batches > 1)
    return plan_handle(std::move(made.step), std::move(plan), *std::move(made.micro_batch));
  PlanHandle handle{std::make_shared<const OpGraph>(std::move(made.step.graph)), std::move(plan)};
  if (made.micro_batch.has_value())
    handle.micro_batch = std::make_shared<const OpGraph>(*std::move(made.micro_batch));
  return handle;
}

// The latest words of a search on one thread, for another.
class LatestNews {
 public:
  void set(std::string words) {
    const std::scoped_lock lock(mutex_);
    words_ = std::move(words);
  }
  std::string words() const {
    const std::scoped_lock lock(mutex_);
    return words_;
  }

 private:
  mutable std::mutex mutex_;
  std::string words_;
};

// Ctrl-C stops the search: the plan that it has found is the answer.
Answer kept(Outcome<Answer> outcome) {
  if (outcome.result.has_value() && !std::holds_alternative<PlanHandle>(*outcome.result))
    return std::move(outcome).value();
  return as_far_as_it_got(std::move(outcome),
                          "you stopped the search: this is the best plan that it had found");
}

Answer place(const GraphHandle& graph, const ClusterHandle& cluster, const nb::dict& options,
             const std::vector<GraphHandle>& sizes, const nb::object& tell) {
  Asked asked = asked_of(options, kPlaceTakes, "place_graph");
  StepRequest& request = asked.request;
  Placement placement;
  if (asked.expert.has_value()) {
    placement = placement_by_name(*graph.graph, *cluster.cluster, *asked.expert);
    request.search.place.expert = &placement;
  }
  check_taken(request, kPlaceTakes, Entrance::kPython);
  LatestNews news;
  if (!tell.is_none())
    request.search.watch = [&](const SearchNews& latest) { news.set(latest.in_words()); };
  const auto meanwhile = [&] {
    if (!tell.is_none()) tell(news.words());
  };
  const auto work = [&](const CancelFlag* cancel) -> Answer {
    request.search.place.cancel = cancel;
    return planned(graph, cluster, request, sizes);
  };
  return kept(outcome_of(work, meanwhile));
}

PlanHandle replay(const GraphHandle& graph, const ClusterHandle& cluster,
                  const std::map<std::string, std::string>& device_of,
                  const std::string& order_name) {
  const ExecutionOrder order = order_by_name(order_name);
  if (order == ExecutionOrder::kPlanned)
    throw InputError("order", "a placement has no planned order: it runs in program order or none");
  const Placement placement = placement_by_name(*graph.graph, *cluster.cluster, device_of);
  return interruptible([&](const CancelFlag* cancel) {
    const CostModel costs(*graph.graph, *cluster.cluster);
    Trace trace = simulate(
        costs,
        as_executed({placement, std::nullopt}, order, *graph.graph, cluster.cluster->num_devices()),
        {.cancel = cancel});
    PlanHandle handle{graph.graph, {}};
    Plan& plan = handle.plan;
    plan.graph_name = graph.graph->name();
    plan.cluster = cluster.cluster->spec();
    plan.memory_mode = graph.graph->memory_mode();
    plan.order = order;
    plan.method = "given";
    plan.schedule = std::move(trace.schedule);
    plan.devices = plan_devices(trace);
    return handle;
  });
}

std::map<std::string, std::int64_t> bounds_of(const GraphHandle& graph,
                                              const ClusterHandle& cluster) {
  return interruptible([&](const CancelFlag* cancel) {
    std::map<std::string, std::int64_t> bounds;
    for (const NamedBound& bound : lower_bounds(CostModel(*graph.graph, *cluster.cluster), cancel))
      bounds.emplace(bound.name, bound.value.count());
    return bounds;
  });
}

nb::dict facts_of(const GraphHandle& graph) {
  const GraphFacts facts = graph_facts(*graph.graph);
  nb::dict result;
  result["operators"] = facts.num_ops;
  result["edges"] = facts.num_edges;
  result["tensors"] = facts.num_tensors;
  result["groups"] = facts.num_groups;
  result["backward_operators"] = facts.num_backward_ops;
  result["depth"] = facts.depth;
  result["width"] = facts.width;
  result["critical_path_ns"] = facts.critical_path.count();
  result["work_ns"] = facts.work.count();
  result["parallelism"] = facts.parallelism();
  result["permanent_bytes"] = facts.permanent.count();
  result["variables"] = facts.num_variables;
  result["written_variables"] = facts.num_written;
  result["variable_bytes"] = facts.variables.count();
  result["output_bytes"] = facts.outputs.count();
  result["largest_need_bytes"] = facts.largest_need.count();
  return result;
}

// "gpu:0, gpu:1", or the first few of many.
std::string names_of(const Cluster& cluster) {
  constexpr std::size_t kMost = 8;
  std::string names;
  for (const DeviceId device : cluster.devices()) {
    if (device.index() == kMost) return names + " and others";
    names += (names.empty() ? "" : ", ") + cluster[device].name;
  }
  return names;
}

}  // namespace

Placement placement_by_name(const OpGraph& graph, const Cluster& cluster,
                            const std::map<std::string, std::string>& device_of) {
  Placement placement(graph.num_ops(), DeviceId(0));
  for (const auto& [name, device] : device_of)
    if (!graph.find(name).has_value())
      throw InputError("the placement names the operator '" + name +
                       "', which the graph has not: names are those of graph.json, or of the "
                       "operators when one goes through the graph");
  for (const OpId op : graph.ops()) {
    const auto at = device_of.find(std::string(graph[op].name));
    if (at == device_of.end())
      throw InputError("the placement leaves out operator '" + std::string(graph[op].name) +
                       "': it names a device for each of the graph's " +
                       std::to_string(graph.num_ops()));
    const std::optional<DeviceId> device = cluster.find(at->second);
    if (!device.has_value())
      throw InputError("the placement names an unknown device '" + at->second +
                       "': the cluster has " + names_of(cluster));
    placement[op] = *device;
  }
  return placement;
}

ExecutionOrder order_by_name(const std::string& name) {
  StepRequest request;
  read_option(find_planner_option("order"), name, request, Entrance::kPython);
  return request.search.place.order;
}

void bind_place(nb::module_& m) {
  nb::class_<UnplaceableHandle>(m, "Unplaceable", "Why no plan fits, and what would.")
      .def_prop_ro(
          "operator",
          [](const UnplaceableHandle& h) -> std::optional<std::string> {
            if (!h.answer.op.has_value()) return std::nullopt;
            return std::string((*h.graph)[*h.answer.op].name);
          },
          "The operator, or the first of its colocation group, that found no room.")
      .def_prop_ro(
          "short_by", [](const UnplaceableHandle& h) { return h.answer.short_by.count(); },
          "Bytes missing in the best case.")
      .def_prop_ro(
          "proved", [](const UnplaceableHandle& h) { return h.answer.proved; },
          "No plan can exist; otherwise none was found.")
      .def_prop_ro("reason", [](const UnplaceableHandle& h) { return h.answer.reason; })
      .def_prop_ro(
          "smallest_capacity",
          [](const UnplaceableHandle& h) -> std::optional<std::int64_t> {
            if (!h.answer.smallest_capacity.has_value()) return std::nullopt;
            return h.answer.smallest_capacity->count();
          },
          "Bytes, equal on all devices, for which a plan was found.")
      .def_prop_ro(
          "smallest_device_count", [](const UnplaceableHandle& h) { return h.answer.more_devices; },
          "How many devices, adding ones like the largest, a plan was found for.")
      .def_prop_ro(
          "step_with_recomputation_ns",
          [](const UnplaceableHandle& h) -> std::optional<std::int64_t> {
            if (!h.answer.step_with_recomputation.has_value()) return std::nullopt;
            return h.answer.step_with_recomputation->count();
          },
          "The step of a plan that fits since operators run a second time, if one was found.")
      .def("__str__", [](const UnplaceableHandle& h) { return h.answer.in_words(); });

  m.def("place_graph", &place, "graph"_a, "cluster"_a, "options"_a,
        "sizes"_a = std::vector<GraphHandle>(), "tell"_a = nb::none());
  m.def(
      "simulate", &replay, "graph"_a, "cluster"_a, "device_of"_a, "order"_a = "none",
      "Replays a placement (device by operator name). Each device runs what becomes ready first, "
      "or with order \"program\" in the order of the graph. The result may exceed capacities: see "
      "Plan.fits.");
  m.def(
      "verify",
      [](const PlanHandle& h) {
        return interruptible([&](const CancelFlag*) {
          return h.micro_batch == nullptr
                     ? check_plan(h.step_graph(), h.plan)
                     : check_plan(*h.graph_of_one().graph, h.step_graph(), h.plan);
        });
      },
      "plan"_a,
      "One sentence per rule that the plan breaks and per figure that does not follow from it; "
      "empty "
      "when it is right.");
  m.def("lower_bounds", &bounds_of, "graph"_a, "cluster"_a,
        "Nanoseconds that no placement's step time can be below, by the bound's name.");
  m.def("graph_facts", &facts_of, "graph"_a,
        nb::sig("def graph_facts(graph: Graph) -> dict[str, int | float]"),
        "What is known of a graph without a cluster: sizes, work, critical path, memory.");
  m.def(
      "methods",
      [] {
        std::map<std::string, std::string> methods;
        for (const PortfolioEntry& entry : portfolio_methods())
          methods.emplace(entry.name, entry.summary);
        for (const PlacerEntry& entry : all_placers()) methods.emplace(entry.name, entry.summary);
        return methods;
      },
      "The names of all methods of place_graph, and what they do.");
}

}  // namespace baechi::python
