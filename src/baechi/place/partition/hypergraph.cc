// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/partition/hypergraph.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "baechi/optimize/mean_link.h"
#include "baechi/place/kept_together.h"
#include "baechi/place/sequential_peak.h"

namespace baechi {
namespace {

void index_nets(Hypergraph& graph) {
  graph.nets_of = IdVector<VertexId, std::vector<NetId>>(graph.vertices.size());
  for (const NetId net : graph.nets.keys()) {
    graph.nets_of[graph.nets[net].maker].push_back(net);
    for (const VertexId reader : graph.nets[net].readers) graph.nets_of[reader].push_back(net);
  }
}

// Drops nets without readers, and joins nets of equal ends.
void simplify_nets(Hypergraph& graph, std::vector<Net> nets) {
  std::erase_if(nets, [](const Net& net) { return net.readers.empty(); });
  std::sort(nets.begin(), nets.end(), [](const Net& a, const Net& b) {
    return std::tie(a.maker, a.readers) < std::tie(b.maker, b.readers);
  });
  graph.nets.clear();
  for (Net& net : nets) {
    if (!graph.nets.empty() && graph.nets.back().maker == net.maker &&
        graph.nets.back().readers == net.readers)
      graph.nets.back().time = (Time(graph.nets.back().time) + Time(net.time)).count();
    else
      graph.nets.push_back(std::move(net));
  }
  index_nets(graph);
}

void add(Vertex& to, const Vertex& from) {
  for (std::size_t c = 0; c < to.time.size(); ++c)
    to.time[c] = (Time(to.time[c]) + Time(from.time[c])).count();
  if (!from.cannot.empty()) to.cannot.resize(to.time.size());
  for (std::size_t c = 0; c < from.cannot.size(); ++c)
    if (from.cannot[c]) to.cannot[c] = true;
  to.bytes = (Bytes(to.bytes) + Bytes(from.bytes)).count();
  if (from.pin.has_value()) to.pin = from.pin;
}

bool compatible(const Vertex& a, const Vertex& b) {
  if (a.pin.has_value() && b.pin.has_value() && a.pin != b.pin) return false;
  if (a.cannot.empty() && b.cannot.empty()) return true;
  for (std::size_t c = 0; c < a.time.size(); ++c)
    if (a.can_run_on(c) && b.can_run_on(c)) return true;
  return false;
}

std::int64_t mean_time(const Vertex& vertex) {
  std::int64_t sum = 0, classes = 0;
  for (std::size_t c = 0; c < vertex.time.size(); ++c)
    if (vertex.can_run_on(c)) sum += vertex.time[c] / 16, ++classes;
  return classes == 0 ? 0 : sum / classes * 16;
}

}  // namespace

OperatorHypergraph make_hypergraph(const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  UnionFind sets = kept_together(costs);

  // A tensor's bytes count in proportion to what is alive at one device's peak.
  Bytes permanent, outputs;
  for (const OpId op : graph.ops()) {
    permanent += graph[op].permanent;
    outputs += graph.output_bytes(op);
  }
  const Bytes peak =
      sequential_peak(graph, graph.topological_order(), graph.memory_mode() == MemoryMode::kRetain)
          .bytes;
  const double alive = outputs == Bytes(0) ? 0
                                           : static_cast<double>((peak - permanent).count()) /
                                                 static_cast<double>(outputs.count());

  OperatorHypergraph result;
  result.vertex_of = IdVector<OpId, VertexId>(graph.num_ops(), VertexId(0));
  const std::size_t classes = costs.num_classes();
  for (const OpId op : graph.ops()) {
    const std::uint32_t set = sets.find(op.value());
    if (set == op.value())
      result.vertex_of[op] = result.graph.vertices.push_back(Vertex(classes));
    else
      result.vertex_of[op] = result.vertex_of[OpId(set)];
    Vertex own(classes);
    own.pin = costs.pin(op);
    for (std::size_t c = 0; c < classes; ++c) {
      const std::optional<Time> time = costs.class_times(DeviceClassId(c))[op];
      if (time.has_value()) {
        own.time[c] = time->count();
      } else {
        own.cannot.resize(classes);
        own.cannot[c] = true;
      }
    }
    own.bytes =
        graph[op].permanent.count() +
        static_cast<std::int64_t>(alive * static_cast<double>(graph.output_bytes(op).count()));
    add(result.graph.vertices[result.vertex_of[op]], own);
  }

  std::vector<Net> nets;
  const MeanLink send(costs.cluster());
  std::vector<std::pair<Bytes, Time>> known;  // sizes repeat: a small cache beats the links
  for (const TensorId tensor : graph.tensors()) {
    Net net{result.vertex_of[graph.producer(tensor)], {}, 0};
    for (const Edge& edge : graph.consumers(tensor))
      if (result.vertex_of[edge.to] != net.maker) net.readers.push_back(result.vertex_of[edge.to]);
    if (net.readers.empty()) continue;
    std::sort(net.readers.begin(), net.readers.end());
    net.readers.erase(std::unique(net.readers.begin(), net.readers.end()), net.readers.end());
    const Bytes size = graph.size(tensor);
    auto at =
        std::find_if(known.begin(), known.end(), [&](const auto& k) { return k.first == size; });
    if (at == known.end()) {
      constexpr std::size_t kCached = 64;
      if (known.size() == kCached) known.clear();
      at = known.insert(known.end(), {size, send.transfer_time(size)});
    }
    net.time = at->second.count();
    nets.push_back(std::move(net));
  }
  simplify_nets(result.graph, std::move(nets));
  return result;
}

Hypergraph Hypergraph::contracted(const IdVector<VertexId, VertexId>& labels,
                                  std::size_t count) const {
  Hypergraph result;
  const std::size_t classes = vertices.empty() ? 0 : vertices[VertexId(0)].time.size();
  result.vertices = IdVector<VertexId, Vertex>(count, Vertex(classes));
  for (const VertexId vertex : vertices.keys())
    add(result.vertices[labels[vertex]], vertices[vertex]);
  std::vector<Net> coarse;
  for (const Net& net : nets) {
    Net next{labels[net.maker], {}, net.time};
    for (const VertexId reader : net.readers)
      if (labels[reader] != next.maker) next.readers.push_back(labels[reader]);
    std::sort(next.readers.begin(), next.readers.end());
    next.readers.erase(std::unique(next.readers.begin(), next.readers.end()), next.readers.end());
    if (!next.readers.empty()) coarse.push_back(std::move(next));
  }
  simplify_nets(result, std::move(coarse));
  return result;
}

Clustering cluster_by_traffic(const Hypergraph& graph, std::int64_t max_time, Random& random) {
  const std::size_t n = graph.vertices.size();
  IdVector<VertexId, VertexId> label(n, VertexId(0));
  IdVector<VertexId, Vertex> cluster = graph.vertices;  // by label: the vertex it started from
  IdVector<VertexId, std::uint32_t> members(n, 1);
  std::vector<VertexId> order;
  for (const VertexId vertex : graph.vertices.keys()) {
    label[vertex] = vertex;
    order.push_back(vertex);
  }
  for (std::size_t i = n; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);

  // Once round: who is still alone joins the neighbouring cluster with the most traffic.
  IdVector<VertexId, double> rating(n, 0.0);
  std::vector<VertexId> rated;
  for (const VertexId vertex : order) {
    if (members[label[vertex]] != 1) continue;
    rated.clear();
    const auto rate = [&](VertexId other, double traffic) {
      const VertexId target = label[other];
      if (target == label[vertex]) return;
      if (rating[target] == 0.0) rated.push_back(target);
      rating[target] += traffic;
    };
    for (const NetId id : graph.nets_of[vertex]) {
      const Net& net = graph.nets[id];
      constexpr std::size_t kWidest = 256;
      if (net.readers.size() > kWidest) continue;
      const double traffic =
          static_cast<double>(net.time + 1) / static_cast<double>(net.readers.size());
      rate(net.maker, traffic);
      if (net.maker == vertex)
        for (const VertexId reader : net.readers) rate(reader, traffic);
    }
    std::optional<VertexId> best;
    for (const VertexId target : rated) {
      const bool fits =
          mean_time(cluster[target]) + mean_time(cluster[label[vertex]]) <= max_time &&
          compatible(cluster[target], cluster[label[vertex]]);
      if (fits && (!best.has_value() || rating[target] > rating[*best] ||
                   (rating[target] == rating[*best] && target < *best)))
        best = target;
    }
    for (const VertexId target : rated) rating[target] = 0.0;
    if (!best.has_value()) continue;
    add(cluster[*best], cluster[label[vertex]]);
    members[*best] += 1;
    members[label[vertex]] -= 1;
    label[vertex] = *best;
  }

  Clustering result{IdVector<VertexId, VertexId>(n, VertexId(0)), 0};
  IdVector<VertexId, std::optional<VertexId>> number(n);
  for (const VertexId vertex : graph.vertices.keys()) {
    std::optional<VertexId>& of = number[label[vertex]];
    if (!of.has_value()) of = VertexId(result.count++);
    result.labels[vertex] = *of;
  }
  return result;
}

}  // namespace baechi
