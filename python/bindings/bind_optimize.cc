// SPDX-License-Identifier: Apache-2.0
// The Graph Optimizer alone (Paper 3.1.1 - 3.1.3).
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "baechi/optimize/optimize.h"
#include "baechi/options/option_text.h"
#include "baechi/plan/request/paper.h"
#include "bindings.h"
#include "interruptible.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace baechi::python {
namespace {

struct OptimizedHandle {
  GraphHandle original, small;
  Expansion expansion;
  std::vector<OptimizerPass> passes;
  std::vector<std::int64_t> times;
};

std::tuple<std::size_t, std::size_t, std::size_t> tuple_of(const OptimizerPass::Size& size) {
  return {size.ops, size.edges, size.groups};
}

OptimizedHandle optimize_graph(const GraphHandle& graph, const ClusterHandle& cluster,
                               const std::string& level, bool paper,
                               const std::string& coplacement) {
  StepRequest request;
  read_option(find_planner_option("optimize"), level, request, Entrance::kPython);
  read_option(find_planner_option("coplacement"), coplacement, request, Entrance::kPython);
  if (paper) request = as_the_paper(request);
  return interruptible([&](const CancelFlag*) {
    const CostModel costs(*graph.graph, *cluster.cluster);
    Optimized done = optimize(costs, request.search.optimize);
    OptimizedHandle handle{graph,
                           {std::make_shared<const OpGraph>(std::move(done.graph))},
                           std::move(done.expansion),
                           {done.passes.begin(), done.passes.end()},
                           {}};
    for (const PassStatistics& pass : done.passes) handle.times.push_back(pass.cpu_time.count());
    return handle;
  });
}

}  // namespace

void bind_optimize(nb::module_& m) {
  nb::class_<OptimizerPass>(m, "OptimizerPass", "What one pass of the Graph Optimizer did.")
      .def_prop_ro(
          "name", [](const OptimizerPass& p) { return p.pass; },
          "'colocate', 'coplace', 'fuse' or 'forward'.")
      .def_prop_ro(
          "before", [](const OptimizerPass& p) { return tuple_of(p.before); },
          "(operators, edges, groups) of the graph it was given.")
      .def_prop_ro(
          "after", [](const OptimizerPass& p) { return tuple_of(p.after); },
          "(operators, edges, groups) of the graph it made.")
      .def_prop_ro(
          "note", [](const OptimizerPass& p) { return p.note; },
          "What it did, or why it did nothing; may be empty.")
      .def("__repr__", [](const OptimizerPass& p) {
        return "<OptimizerPass " + p.pass + ": " + std::to_string(p.before.ops) + " -> " +
               std::to_string(p.after.ops) + " operators>";
      });

  nb::class_<OptimizedHandle>(m, "Optimized", "A graph to place instead of the one given.")
      .def_prop_ro("graph", [](const OptimizedHandle& h) { return h.small; })
      .def_prop_ro(
          "passes", [](const OptimizedHandle& h) { return h.passes; }, "In the order they ran.")
      .def_prop_ro(
          "pass_times_ns", [](const OptimizedHandle& h) { return h.times; },
          "CPU time of each pass.")
      .def(
          "members",
          [](const OptimizedHandle& h, const nb::object& op) {
            std::vector<std::string> names;
            for (const OpId member : h.expansion.members(operator_id(*h.small.graph, op)))
              names.emplace_back((*h.original.graph)[member].name);
            return names;
          },
          "operator"_a,
          "The original operators that an operator of the graph, by name or index, stands for.");
  m.def("optimize_graph", &optimize_graph, "graph"_a, "cluster"_a, "optimize"_a, "paper"_a,
        "coplacement"_a);
}

}  // namespace baechi::python
