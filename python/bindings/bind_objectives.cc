// SPDX-License-Identifier: Apache-2.0
// Scoring and placing for the objectives of the dnn-partitioning research.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/dnn_partitioning/dnnp_score.h"
#include "baechi/dnn_partitioning/dnnp_search.h"
#include "bindings.h"
#include "interruptible.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace baechi::python {
namespace {

struct ScoreHandle {
  std::shared_ptr<const Cluster> cluster;
  DnnpScore score;

  template <class Quantity>
  std::map<std::string, std::int64_t> by_name(const IdVector<DeviceId, Quantity>& values) const {
    std::map<std::string, std::int64_t> named;
    for (const DeviceId device : values.keys())
      named.emplace((*cluster)[device].name, values[device].count());
    return named;
  }
};

struct PlacementHandle {
  std::shared_ptr<const OpGraph> graph;
  std::shared_ptr<const Cluster> cluster;
  DnnpPlacement found;
};

ScoreHandle score_of(const GraphHandle& graph, const ClusterHandle& cluster,
                     const std::map<std::string, std::string>& device_of,
                     std::string_view objective) {
  const Placement placement = placement_by_name(*graph.graph, *cluster.cluster, device_of);
  const DnnpObjective wanted = find_dnnp_objective(objective);
  return interruptible([&](const CancelFlag* cancel) {
    const CostModel costs(*graph.graph, *cluster.cluster);
    return ScoreHandle{cluster.cluster, dnnp_score(costs, placement, wanted, cancel)};
  });
}

std::optional<PlacementHandle> place_for_objective(const GraphHandle& graph,
                                                   const ClusterHandle& cluster,
                                                   std::string_view objective,
                                                   const nb::dict& options) {
  const DnnpObjective wanted = find_dnnp_objective(objective);
  const PlanRequest request = request_of(options, kObjectivesTake, "place_for");
  return interruptible([&](const CancelFlag* cancel) -> std::optional<PlacementHandle> {
    auto result =
        place_for(CostModel(*graph.graph, *cluster.cluster), wanted,
                  {.budget = request.budget, .seed = request.place.seed, .cancel = cancel});
    if (std::holds_alternative<DoesNotFit>(result)) return std::nullopt;
    return PlacementHandle{graph.graph, cluster.cluster,
                           std::get<DnnpPlacement>(std::move(result))};
  });
}

}  // namespace

void bind_objectives(nb::module_& m) {
  nb::class_<ScoreHandle>(m, "ObjectiveScore", "What a placement is worth under an objective.")
      .def_prop_ro(
          "value_ns",
          [](const ScoreHandle& h) -> std::optional<std::int64_t> {
            if (!h.score.value.has_value()) return std::nullopt;
            return h.score.value->count();
          },
          "None when calls of accelerators wait for each other.")
      .def_prop_ro(
          "fits", [](const ScoreHandle& h) { return h.score.fits; },
          "No accelerator has less memory than what is placed on it.")
      .def_prop_ro(
          "loads_ns", [](const ScoreHandle& h) { return h.by_name(h.score.loads); },
          "dnnp-maxload: by device; the CPUs are one, and the first of them carries it.")
      .def_prop_ro(
          "memory", [](const ScoreHandle& h) { return h.by_name(h.score.memory); },
          "Bytes of permanent memory by device.")
      .def_prop_ro(
          "calls",
          [](const ScoreHandle& h) {
            std::vector<std::tuple<std::string, std::size_t, std::int64_t>> calls;
            for (const DnnpCall& call : h.score.calls)
              calls.emplace_back((*h.cluster)[call.device].name, call.operators,
                                 call.finish.count());
            return calls;
          },
          "dnnp-latency: (device, operators, end in nanoseconds) of every call.");
  nb::class_<PlacementHandle>(m, "ObjectivePlacement", "A placement made for an objective.")
      .def_prop_ro("value_ns", [](const PlacementHandle& h) { return h.found.value.count(); })
      .def_prop_ro(
          "segments_ns", [](const PlacementHandle& h) { return h.found.segments.count(); },
          "What the dynamic program alone had reached.")
      .def_prop_ro(
          "bound_ns",
          [](const PlacementHandle& h) -> std::optional<std::int64_t> {
            if (!h.found.bound.has_value()) return std::nullopt;
            return h.found.bound->count();
          },
          "dnnp-maxload: no placement's value is below it; None for other objectives.")
      .def_prop_ro(
          "device_of",
          [](const PlacementHandle& h) {
            std::map<std::string, std::string> device_of;
            for (const OpId op : h.graph->ops())
              device_of.emplace((*h.graph)[op].name, (*h.cluster)[h.found.device[op]].name);
            return device_of;
          },
          "The device of every operator, by name.");
  m.def("score", &score_of, "graph"_a, "cluster"_a, "device_of"_a, "objective"_a);
  m.def("place_for", &place_for_objective, "graph"_a, "cluster"_a, "objective"_a, "options"_a);
  m.def(
      "objectives",
      [] {
        std::map<std::string, std::string> objectives;
        for (const DnnpObjectiveEntry& entry : dnnp_objectives())
          objectives.emplace(entry.name, entry.summary);
        return objectives;
      },
      "The names of all objectives of score and place_for, and what they are.");
}

}  // namespace baechi::python
