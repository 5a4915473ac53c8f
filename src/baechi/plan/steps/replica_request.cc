// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/replica_request.h"

#include <algorithm>
#include <iterator>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/graph/replicas.h"
#include "baechi/plan/request/planner_options.h"
#include "baechi/plan/residency/stored_units.h"

namespace baechi {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw OptionError("replicas", why); }

}  // namespace

std::string why_no_replicas(const OpGraph& graph) {
  const IdVector<OpId, bool> once = once_per_step(graph);
  const auto takes_time = [&](OpId op) {
    return std::ranges::any_of(graph.kinds(), [&](KindId kind) {
      return graph.times(kind)[op].value_or(Time(0)) > Time(0);
    });
  };
  bool backward = false;
  for (const OpId op : graph.ops()) {
    const std::string name = "operator " + in_quotes(graph[op].name);
    if (graph[op].pin.has_value())
      return name + " is pinned to a device, and replicas have none in common";
    backward = backward || graph[op].backward;
    bool waits = false, reads = false;
    for (const Edge& edge : graph.in_edges(op)) {
      if (!once[op] || once[edge.from]) continue;
      waits = waits || !edge.tensor.has_value();
      reads = reads || edge.tensor.has_value();
    }
    if (waits && !reads && takes_time(op))
      return name +
             " waits for micro-batches and reads no tensor of theirs, so nobody can say how "
             "many bytes replicas would reduce: give it its gradient as an input (generate: "
             "--variables)";
  }
  if (backward && reduced_tensors(graph).empty())
    return "no operator of the step reads a gradient, so there is nothing that replicas could "
           "reduce: add the updates";
  return "";
}

std::vector<std::uint32_t> shared_by_replicas(std::span<const std::uint32_t> micro_batches,
                                              const StepRequest& request) {
  std::vector<std::uint32_t> shared;
  if (!request.replicas.has_value()) return {micro_batches.begin(), micro_batches.end()};
  const std::vector<std::uint32_t>& counts = *request.replicas;
  const auto shares = [&](std::uint32_t number) {
    return counts.empty() ||
           std::ranges::any_of(counts, [&](std::uint32_t count) { return number % count == 0; });
  };
  std::ranges::copy_if(micro_batches, std::back_inserter(shared), shares);
  for (const std::uint32_t count : counts)
    if (std::ranges::none_of(micro_batches, [&](std::uint32_t m) { return m % count == 0; }))
      refuse(std::to_string(count) + " does not divide the number of micro-batches" +
             (micro_batches.size() == 1 ? ", " + std::to_string(micro_batches.front())
                                        : std::string()) +
             ": replicas have equally many");
  if (counts == std::vector<std::uint32_t>{1}) return shared;
  if (micro_batches.back() == 1) refuse("replicas share micro-batches: ask for several");
  if (request.residency != AwayChoice::kNone)
    refuse("replicas keep nothing in a host's memory: leave out residency");
  if (request.search.place.expert != nullptr) refuse("an expert's placement has one replica");
  return shared;
}

void check_replicas(const OpGraph& graph, const Cluster& cluster,
                    std::span<const std::uint32_t> micro_batches,
                    std::span<const std::uint32_t> counts) {
  const std::size_t devices = cluster.num_devices();
  const std::uint32_t most = counts.empty() ? micro_batches.back() : std::ranges::max(counts);
  if (most == 1) return;
  if (!counts.empty() && most > devices)
    refuse(std::to_string(most) + " replicas need as many devices, and the cluster has " +
           std::to_string(devices));
  for (const DeviceId device : cluster.devices())
    if (cluster[device].kind == kStoreKind)
      refuse("replicas keep nothing in a host's memory: leave out the host " +
             in_quotes(cluster[device].name));
  if (const std::string why = why_no_replicas(graph); !why.empty() && !counts.empty()) refuse(why);
}

}  // namespace baechi
