// SPDX-License-Identifier: Apache-2.0
// Questions about plans. Answers leave as the JSON documents of docs/how_to/explain.md, or as text;
// the package turns documents into dictionaries.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/bounds/lower_bounds.h"
#include "baechi/graph/recosted.h"
#include "baechi/io/text/quantity_text.h"
#include "baechi/plan/request/answer.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/steps/step_request.h"
#include "baechi/report/text/explanation_text.h"
#include "baechi/report/text/study_text.h"
#include "baechi/study/explain.h"
#include "baechi/study/near_names.h"
#include "baechi/study/unless_cancelled.h"
#include "baechi/verify/check_plan.h"
#include "bindings.h"
#include "interruptible.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace baechi::python {
namespace {

std::string explain(const PlanHandle& h, const std::optional<std::string>& op, bool json) {
  return interruptible([&](const CancelFlag* cancel) {
    require_right(h.micro_batch.get(), h.step_graph(), h.plan, "explain", {.capacities = false});
    const Cluster cluster(h.plan.cluster);
    const CostModel costs(*h.graph, cluster);
    Plan plan = h.plan;
    if (plan.bounds.empty() && plan.recomputed.empty() && plan.residency.empty() &&
        !plan.replicas.any())
      plan.bounds = lower_bounds(costs, cancel);
    std::optional<PipelineExplanation> pipeline;
    if (h.step != nullptr && !op.has_value())
      pipeline = {.bubbles = find_bubbles(*h.step, cluster, plan.schedule),
                  .limit = pipeline_limit(plan),
                  .next = next_steps(*h.micro_batch, plan, cancel),
                  .scaled = h.micro_batch->batch_size().has_value()};
    const Explained explained{*h.graph, cluster, plan, pipeline.has_value() ? &*pipeline : nullptr};
    if (op.has_value()) {
      const OperatorExplanation told =
          explain_operator(costs, plan, find_operator(*h.graph, *op), cancel);
      return json ? explanation_json(explained, told) : explanation_text(explained, told);
    }
    const PlanExplanation told = explain_plan(h.step_graph(), cluster, plan);
    return json ? explanation_json(explained, told) : explanation_text(explained, told);
  });
}

// Ctrl-C ends a study: what it has by then is the answer.
template <class Work>
auto study(const Work& work) {
  return as_far_as_it_got(outcome_of(work, [] {}),
                          "you stopped the study: this is what it had found");
}

using NamedCluster = std::pair<std::string, ClusterHandle>;

// The graph, and where it is given at further batch sizes those.
std::vector<OpGraph> sizes_of(const GraphHandle& graph, const std::vector<GraphHandle>& further) {
  std::vector<OpGraph> sizes;
  sizes.push_back(recosted(*graph.graph, {}));
  for (const GraphHandle& size : further) sizes.push_back(recosted(*size.graph, {}));
  return sizes;
}

void warn_of_scaling(const GraphSizes& sizes, const StepRequest& request) {
  const std::string words = scaling_words(sizes, request);
  if (!words.empty() && PyErr_WarnEx(PyExc_UserWarning, words.c_str(), 2) != 0)
    throw nb::python_error();
}

std::string what_if(const GraphHandle& graph, const ClusterHandle& cluster,
                    const std::vector<GraphHandle>& further,
                    const std::vector<NamedCluster>& clusters,
                    const std::vector<std::int64_t>& batch_sizes, bool standard,
                    const nb::dict& options) {
  StepRequest request =
      request_of(options, kStudiesTake, "what_if", {.search = {.budget = kBudgetOfMany}});
  const std::vector<OpGraph> sizes = sizes_of(graph, further);
  warn_of_scaling(sizes, request);
  return study([&](const CancelFlag* cancel) {
    request.search.place.cancel = cancel;
    std::vector<Scenario> scenarios = standard_scenarios(sizes, cluster.cluster->spec(), request);
    if (!standard) scenarios.erase(scenarios.begin() + 1, scenarios.end());
    for (const auto& [name, other] : clusters) scenarios.push_back({name, other.cluster->spec()});
    for (const std::int64_t size : batch_sizes)
      scenarios.push_back({"batch " + std::to_string(size), cluster.cluster->spec(), size});
    return what_if_json(run_scenarios(sizes, scenarios, request));
  });
}

std::string worth_of_devices(const GraphHandle& graph, const ClusterHandle& cluster,
                             const std::vector<GraphHandle>& further, const nb::dict& options) {
  StepRequest request =
      request_of(options, kStudiesTake, "device_worth", {.search = {.budget = kBudgetOfMany}});
  const std::vector<OpGraph> sizes = sizes_of(graph, further);
  warn_of_scaling(sizes, request);
  return study([&](const CancelFlag* cancel) {
    request.search.place.cancel = cancel;
    return device_worth_json(devices_worth(sizes, cluster.cluster->spec(), request));
  });
}

std::string sweep_grid(const GraphHandle& graph, const ClusterHandle& cluster,
                       const std::vector<GraphHandle>& further,
                       const std::vector<std::string>& memory,
                       const std::vector<std::size_t>& devices,
                       const std::vector<std::string>& methods, const nb::dict& options) {
  StepRequest request = request_of(options, kStudiesTake, "sweep");
  const std::vector<OpGraph> sizes = sizes_of(graph, further);
  warn_of_scaling(sizes, request);
  return study([&](const CancelFlag* cancel) {
    Grid grid{.memory = {}, .devices = devices, .methods = methods};
    for (const std::string& part : memory) grid.memory.push_back(parse_factor(part));
    request.search.place.cancel = cancel;
    return sweep_json(sweep(sizes, cluster.cluster->spec(), grid, request));
  });
}

std::string find_least(const GraphHandle& graph, const ClusterHandle& cluster,
                       const std::vector<GraphHandle>& further, bool devices, bool memory,
                       std::size_t max_devices, const nb::dict& options) {
  StepRequest request =
      request_of(options, kStudiesTake, "least", {.search = {.budget = kBudgetOfMany}});
  const std::vector<OpGraph> sizes = sizes_of(graph, further);
  warn_of_scaling(sizes, request);
  return study([&](const CancelFlag* cancel) {
    request.search.place.cancel = cancel;
    const ClusterSpec& spec = cluster.cluster->spec();
    Least least;
    if (devices) least.devices = fewest_devices(sizes, spec, max_devices, request);
    if (memory)
      least.memory = unless_cancelled(least.devices.has_value(), [&] {
                       return least_memory(sizes, spec, request);
                     }).value_or(std::nullopt);
    return least_json(least);
  });
}

// The document; or why nothing fits, and what would.
std::variant<std::string, UnplaceableHandle> find_sensitivity(
    const GraphHandle& graph, const ClusterHandle& cluster, const std::vector<GraphHandle>& further,
    double off_by, std::size_t samples, const nb::dict& options) {
  StepRequest request =
      request_of(options, kStudiesTake, "sensitivity", {.search = {.budget = kBudgetOfMany}});
  const std::vector<OpGraph> sizes = sizes_of(graph, further);
  warn_of_scaling(sizes, request);
  using Told = std::variant<std::string, UnplaceableHandle>;
  return study([&](const CancelFlag* cancel) -> Told {
    request.search.place.cancel = cancel;
    const auto result = sensitivity(sizes, *cluster.cluster, request,
                                    {.fraction = off_by,
                                     .samples = samples,
                                     .seed = request.search.place.seed,
                                     .threads = request.search.threads,
                                     .cancel = cancel});
    if (const auto* told = std::get_if<Sensitivity>(&result)) return sensitivity_json(*told);
    Unplaceable answer = std::get<Unplaceable>(result);
    // Of a step the first ids are the graph's, then come further micro-batches.
    if (answer.op.has_value() && answer.op->index() >= graph.graph->num_ops()) answer.op.reset();
    return UnplaceableHandle{graph.graph, std::move(answer)};
  });
}

}  // namespace

void bind_study(nb::module_& m) {
  m.def("explain", &explain, "plan"_a, "operator"_a = nb::none(), nb::kw_only(), "json"_a = false,
        "Why the plan takes that long and who holds the memory, or why the operator is where it "
        "is: text, or a JSON document.");
  m.def("what_if", &what_if, "graph"_a, "cluster"_a, "sizes"_a, "clusters"_a, "batch_sizes"_a,
        "standard"_a, "options"_a);
  m.def("device_worth", &worth_of_devices, "graph"_a, "cluster"_a, "sizes"_a, "options"_a);
  m.def("sweep", &sweep_grid, "graph"_a, "cluster"_a, "sizes"_a, "memory"_a, "devices"_a,
        "methods"_a, "options"_a);
  m.def("least", &find_least, "graph"_a, "cluster"_a, "sizes"_a, "devices"_a, "memory"_a,
        "max_devices"_a, "options"_a);
  m.def("sensitivity", &find_sensitivity, "graph"_a, "cluster"_a, "sizes"_a, "off_by"_a,
        "samples"_a, "options"_a);
}

}  // namespace baechi::python
