// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/theorems.h"

#include <algorithm>
#include <vector>

#include "baechi/base/assert.h"

namespace baechi {
namespace {

// One link of every kind that the cluster has.
std::vector<const Link*> distinct_links(const Cluster& cluster) {
  std::vector<const Link*> links;
  for (const DeviceId from : cluster.devices())
    for (const DeviceId to : cluster.devices())
      if (from != to) links.push_back(&cluster.link(from, to));
  std::ranges::sort(links);
  links.erase(std::unique(links.begin(), links.end()), links.end());
  return links;
}

struct Extremes {
  Time longest_transfer;              // max c
  std::optional<Time> shortest_time;  // min k; absent when nothing can run
};

Extremes extremes(const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  Extremes result;
  const std::vector<const Link*> links = distinct_links(costs.cluster());
  for (const TensorId tensor : graph.tensors()) {
    if (graph.consumers(tensor).empty()) continue;
    std::optional<Time> fastest;
    for (const Link* link : links) {
      const Time time = link->transfer_time(graph.size(tensor));
      fastest = std::min(fastest.value_or(time), time);
    }
    result.longest_transfer = std::max(result.longest_transfer, fastest.value_or(Time(0)));
  }
  for (const DeviceId device : costs.cluster().devices())
    for (const OpId op : graph.ops())
      if (costs.may_run(op, device)) {
        const Time time = *costs.compute_time(op, device);
        result.shortest_time = std::min(result.shortest_time.value_or(time), time);
      }
  return result;
}

bool alike(const Cluster& cluster) {
  const Device& first = cluster[DeviceId(0)];
  for (const DeviceId a : cluster.devices()) {
    const Device& device = cluster[a];
    if (device.kind != first.kind || device.speed != first.speed ||
        device.capacity != first.capacity)
      return false;
  }
  const std::vector<const Link*> links = distinct_links(cluster);
  return std::ranges::all_of(links, [&](const Link* link) {
    return link->latency == links.front()->latency && link->bandwidth == links.front()->bandwidth;
  });
}

}  // namespace

std::optional<double> rho(const CostModel& costs) {
  const auto [longest, shortest] = extremes(costs);
  if (longest == Time(0)) return 0.0;
  if (!shortest.has_value() || *shortest == Time(0)) return std::nullopt;
  return static_cast<double>(longest.count()) / static_cast<double>(shortest->count());
}

bool sct_assumption_holds(const CostModel& costs) {
  const auto [longest, shortest] = extremes(costs);
  return longest <= shortest.value_or(Time(0));
}

bool theorem_machine(const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  const Cluster& cluster = costs.cluster();
  const bool every_op_everywhere = std::ranges::all_of(graph.ops(), [&](OpId op) {
    return !graph[op].pin.has_value() && !graph[op].group.has_value() &&
           costs.may_run(op, DeviceId(0));
  });
  return cluster.communication() == CommunicationMode::kParallel && alike(cluster) &&
         every_op_everywhere;
}

Time longest_chain_communication(const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  const std::vector<const Link*> links = distinct_links(costs.cluster());
  IdVector<TensorId, Time> slowest(graph.num_tensors());
  for (const TensorId tensor : graph.tensors())
    for (const Link* link : links)
      slowest[tensor] = std::max(slowest[tensor], link->transfer_time(graph.size(tensor)));
  IdVector<OpId, Time> communication(graph.num_ops());
  Time longest;
  for (const OpId op : graph.topological_order()) {
    for (const Edge& edge : graph.in_edges(op)) {
      const Time c = edge.tensor.has_value() ? slowest[*edge.tensor] : Time(0);
      communication[op] = std::max(communication[op], communication[edge.from] + c);
    }
    longest = std::max(longest, communication[op]);
  }
  return longest;
}

MemorySufficiency memory_sufficiency(const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  Bytes sum_d, max_d;
  for (const OpId op : graph.ops()) {
    Bytes d = graph[op].permanent + graph[op].temporary + graph.output_bytes(op);
    for (const Edge& edge : graph.in_edges(op))
      if (edge.tensor.has_value()) d += graph.size(*edge.tensor);
    sum_d += d;
    max_d = std::max(max_d, d);
  }
  Bytes M = costs.cluster()[DeviceId(0)].capacity;
  for (const DeviceId device : costs.cluster().devices())
    M = std::min(M, costs.cluster()[device].capacity);

  const std::size_t n = costs.cluster().num_devices();
  if (sum_d <= M) return {.n = n, .R = n};
  if (max_d >= M) return {.n = n, .R = 0};
  // Each of the n - R others holds more than M - max d: (n - R) (M - max d) < sum d.
  const auto others = static_cast<std::size_t>((sum_d.count() - 1) / (M - max_d).count());
  return {.n = n, .R = n - std::min(n, others)};
}

double m_etf_bound(std::size_t n, std::size_t R, double w, double C) {
  BAECHI_ASSERT(1 <= R && R <= n, "the theorem needs a memory-sufficient device");
  return (1.0 + static_cast<double>(n - 1) / static_cast<double>(R)) * w + C;
}

double favorite_child_ratio(double rho) {
  BAECHI_ASSERT(0.0 <= rho && rho <= 1.0, "the theorem needs the SCT assumption");
  return (2.0 + 2.0 * rho) / (2.0 + rho);
}

double m_sct_bound(std::size_t n, std::size_t R, double rho, double w) {
  BAECHI_ASSERT(1 <= R && R <= n, "the theorem needs a memory-sufficient device");
  const double shared = 1.0 - 1.0 / static_cast<double>(R);
  return (static_cast<double>(n) / static_cast<double>(R) + favorite_child_ratio(rho) * shared) * w;
}

double any_favorites_bound(std::size_t n, std::size_t R, double rho, double w) {
  BAECHI_ASSERT(0.0 <= rho && rho <= 1.0, "the theorem needs the SCT assumption");
  return m_etf_bound(n, R, w, rho * w);
}

}  // namespace baechi
