// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/contraction.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/assert.h"
#include "baechi/graph/op_graph_builder.h"

namespace baechi {
namespace {

using ClusterId = Id<struct ClusterTag>;

// The clusters before they have their final numbers: by first member in topological order, with
// members in that order too.
struct Clusters {
  IdVector<OpId, ClusterId> of;
  std::vector<OpId> members;
  std::vector<std::uint32_t> begin;

  std::size_t size() const { return begin.size() - 1; }
  std::span<const OpId> operator[](ClusterId c) const {
    return std::span<const OpId>(members).subspan(begin[c.index()],
                                                  begin[c.index() + 1] - begin[c.index()]);
  }
};

Clusters number_clusters(const OpGraph& graph, const OpLabels& label) {
  Clusters clusters;
  clusters.of = IdVector<OpId, ClusterId>(graph.num_ops(), ClusterId(0));
  std::vector<std::optional<ClusterId>> by_label(graph.num_ops());
  std::vector<std::uint32_t> sizes;
  for (const OpId op : graph.topological_order()) {
    std::optional<ClusterId>& cluster = by_label[label[op]];
    if (!cluster.has_value()) {
      cluster = ClusterId(sizes.size());
      sizes.push_back(0);
    }
    clusters.of[op] = *cluster;
    ++sizes[cluster->index()];
  }
  clusters.begin.assign(sizes.size() + 1, 0);
  std::partial_sum(sizes.begin(), sizes.end(), clusters.begin.begin() + 1);
  clusters.members.assign(graph.num_ops(), OpId(0));
  std::vector<std::uint32_t> next(clusters.begin.begin(), clusters.begin.end() - 1);
  for (const OpId op : graph.topological_order())
    clusters.members[next[clusters.of[op].index()]++] = op;
  return clusters;
}

// Kahn over the clusters, smallest number first among the free.
std::vector<ClusterId> topological_clusters(const OpGraph& graph, const Clusters& clusters) {
  IdVector<ClusterId, std::uint32_t> edges_left(clusters.size());
  for (const OpId op : graph.ops())
    for (const Edge& edge : graph.in_edges(op))
      if (clusters.of[edge.from] != clusters.of[op]) ++edges_left[clusters.of[op]];

  std::priority_queue<ClusterId, std::vector<ClusterId>, std::greater<>> free;
  for (const ClusterId c : edges_left.keys())
    if (edges_left[c] == 0) free.push(c);
  std::vector<ClusterId> order;
  order.reserve(clusters.size());
  while (!free.empty()) {
    const ClusterId at = free.top();
    free.pop();
    order.push_back(at);
    for (const OpId op : clusters[at])
      for (const Edge& edge : graph.out_edges(op)) {
        const ClusterId to = clusters.of[edge.to];
        if (to != at && --edges_left[to] == 0) free.push(to);
      }
  }
  BAECHI_ASSERT(order.size() == clusters.size(), "fused operators form no cycle");
  return order;
}

class Contraction {
 public:
  Contraction(const OpGraph& graph, const Clusters& clusters, const OpLabels& group)
      : graph_(graph),
        clusters_(clusters),
        group_(group),
        builder_(graph.name()),
        order_(topological_clusters(graph, clusters)),
        number_(clusters.size(), OpId(0)),
        position_(graph.num_ops()),
        reached_(clusters.size(), clusters.size()) {
    for (std::size_t i = 0; i < order_.size(); ++i) number_[order_[i]] = OpId(i);
    builder_.set_memory_mode(graph.memory_mode());
    if (graph.batch_size().has_value()) builder_.set_batch_size(*graph.batch_size());
    builder_.reserve(clusters.size(), graph.num_edges());
  }

  Contracted run() && {
    std::vector<OpId> members;
    members.reserve(graph_.num_ops());
    std::vector<std::uint32_t> begin{0};
    for (const ClusterId c : order_) {
      add_operator(c);
      members.insert(members.end(), clusters_[c].begin(), clusters_[c].end());
      begin.push_back(static_cast<std::uint32_t>(members.size()));
    }
    for (const ClusterId c : order_) add_edges(c);
    add_groups();
    for (const auto& [op, variable] : graph_.writes())
      builder_.add_write(number_[clusters_.of[op]], number_[clusters_.of[variable]]);
    return {std::move(builder_).build(),
            Expansion(std::move(members), std::move(begin), MemberOrder::kTogether)};
  }

 private:
  // What becomes of a tensor of a meta-operator.
  enum class Fate : std::uint8_t {
    kInner,   // dies inside, with its last consumer
    kLeaves,  // has a consumer outside
    kStays,   // nobody outside needs it, yet it lives until the step ends
  };
  Fate fate(TensorId tensor, ClusterId home, bool backward) const {
    const std::span<const Edge> consumers = graph_.consumers(tensor);
    for (const Edge& edge : consumers)
      if (clusters_.of[edge.to] != home) return Fate::kLeaves;
    const bool retained = graph_.memory_mode() == MemoryMode::kRetain && !backward;
    return consumers.empty() || retained ? Fate::kStays : Fate::kInner;
  }

  struct Footprint {
    Bytes permanent, temporary, stays;
    std::vector<TensorId> leaving;
  };
  // Replays the members one after the other.
  Footprint footprint(ClusterId c) {
    const std::span<const OpId> members = clusters_[c];
    for (std::size_t i = 0; i < members.size(); ++i)
      position_[members[i]] = static_cast<std::uint32_t>(i);
    Footprint result;
    freed_.assign(members.size(), Bytes(0));
    Bytes live, peak, leaving;
    for (std::size_t i = 0; i < members.size(); ++i) {
      const Operator& op = graph_[members[i]];
      result.permanent += op.permanent;
      for (const TensorId tensor : graph_.outputs(members[i])) {
        const Bytes size = graph_.home_size(tensor);
        live += size;
        switch (fate(tensor, c, op.backward)) {
          case Fate::kLeaves:
            result.leaving.push_back(tensor);
            leaving += size;
            break;
          case Fate::kStays:
            result.stays += size;
            break;
          case Fate::kInner: {
            std::uint32_t last = 0;
            for (const Edge& edge : graph_.consumers(tensor))
              last = std::max(last, position_[edge.to]);
            freed_[last] += size;
          }
        }
      }
      peak = std::max(peak, live + op.temporary);
      live -= freed_[i];
    }
    result.temporary = std::max(Bytes(0), peak - leaving - result.stays);
    return result;
  }

  void add_operator(ClusterId c) {
    const std::span<const OpId> members = clusters_[c];
    const Operator& first = graph_[members.front()];
    const Footprint needs = footprint(c);
    if (members.size() == 1 && first.variable) {
      add_variable(members.front());
      return;
    }
    OperatorSpec spec{.name = first.name,
                      .kind = first.kind,
                      .permanent = needs.permanent,
                      .temporary = needs.temporary,
                      .backward = true,
                      .forward = {},
                      .pin = {}};
    for (const OpId op : members) {
      spec.backward = spec.backward && graph_[op].backward;
      if (graph_[op].pin.has_value()) spec.pin = graph_[op].pin;
      if (graph_[op].kind != first.kind) spec.kind = "fused";
      spec.random = spec.random || graph_[op].random;
    }
    if (const std::optional<OpId> forward = forward_of(members); spec.backward && forward)
      spec.forward = number_[clusters_.of[*forward]];
    const OpId meta = builder_.add_operator(spec);
    for (const auto& [kind, time] : summed_times(graph_, members))
      builder_.set_time(meta, graph_.kind_name(kind), time);
    for (const TensorId tensor : needs.leaving) {
      small_tensor_.emplace_back(tensor, builder_.add_output(meta, graph_.size(tensor)));
    }
    if (needs.stays > Bytes(0)) builder_.add_output(meta, needs.stays);
  }

  void add_variable(OpId op) {
    const OpId alone = builder_.add_operator(spec_of(graph_[op]));
    builder_.set_times(alone, graph_, op);
    for (const TensorId tensor : graph_.outputs(op))
      small_tensor_.emplace_back(tensor, builder_.add_output(alone, graph_.size(tensor)));
  }

  // The forward operator, in another cluster, of the member with the most to compute.
  std::optional<OpId> forward_of(std::span<const OpId> members) const {
    std::optional<OpId> best;
    Time longest;
    for (const OpId op : members) {
      const std::optional<OpId> forward = graph_[op].forward;
      if (!forward.has_value() || clusters_.of[*forward] == clusters_.of[op]) continue;
      Time time;
      for (const KindId kind : graph_.kinds())
        time = std::max(time, graph_.times(kind)[op].value_or(Time(0)));
      if (best.has_value() && time <= longest) continue;
      best = forward;
      longest = time;
    }
    return best;
  }

  // Tensors in the order in which add_operator() made them, so that one cursor walks along. An edge
  // of control is dropped where data already flows between its ends.
  void add_edges(ClusterId c) {
    const OpId meta = number_[c];
    for (; cursor_ < small_tensor_.size(); ++cursor_) {
      const auto& [tensor, handle] = small_tensor_[cursor_];
      if (clusters_.of[graph_.producer(tensor)] != c) break;
      for (const Edge& edge : graph_.consumers(tensor)) {
        const ClusterId to = clusters_.of[edge.to];
        if (to == c) continue;
        reached_[to] = meta.index();
        builder_.connect(handle, number_[to]);
      }
    }
    for (const OpId op : clusters_[c])
      for (const Edge& edge : graph_.out_edges(op)) {
        const ClusterId to = clusters_.of[edge.to];
        if (edge.tensor.has_value() || to == c || reached_[to] == meta.index()) continue;
        reached_[to] = meta.index();
        builder_.add_control_edge(meta, number_[to]);
      }
  }

  // Groups get the name of an operator of theirs. A group of one meta-operator says nothing.
  void add_groups() {
    std::vector<std::optional<ClusterId>> first(graph_.num_ops());
    std::vector<char> shared(graph_.num_ops(), 0);
    for (const ClusterId c : order_) {
      const std::uint32_t label = group_[clusters_[c].front()];
      if (first[label].has_value())
        shared[label] = 1;
      else
        first[label] = c;
    }
    for (const ClusterId c : order_) {
      const std::uint32_t label = group_[clusters_[c].front()];
      if (shared[label] != 0)
        builder_.add_to_group(number_[c], graph_[clusters_[*first[label]].front()].name);
    }
  }

  const OpGraph& graph_;
  const Clusters& clusters_;
  const OpLabels& group_;
  OpGraphBuilder builder_;
  std::vector<ClusterId> order_;
  IdVector<ClusterId, OpId> number_;        // in the small graph
  IdVector<OpId, std::uint32_t> position_;  // within its cluster
  std::vector<Bytes> freed_;                // after the i-th member
  std::vector<std::pair<TensorId, TensorId>> small_tensor_;
  std::size_t cursor_ = 0;
  IdVector<ClusterId, std::size_t> reached_;  // by an edge from this small operator, last
};

}  // namespace

std::vector<std::pair<KindId, Time>> summed_times(const OpGraph& graph, std::span<const OpId> ops) {
  const std::optional<KindId> any = graph.find_kind(kAnyKind);
  std::vector<std::pair<KindId, Time>> sums;
  for (const KindId kind : graph.kinds()) {
    Time sum;
    const bool all = std::all_of(ops.begin(), ops.end(), [&](OpId op) {
      std::optional<Time> time = graph.times(kind)[op];
      if (!time.has_value() && any.has_value()) time = graph.times(*any)[op];
      if (time.has_value()) sum += *time;
      return time.has_value();
    });
    if (all) sums.emplace_back(kind, sum);
  }
  return sums;
}

OpLabels each_alone(const OpGraph& graph) {
  OpLabels labels(graph.num_ops());
  for (const OpId op : graph.ops()) labels[op] = op.value();
  return labels;
}

OpLabels group_labels(const OpGraph& graph) {
  OpLabels labels(graph.num_ops());
  for (const OpId op : graph.ops())
    labels[op] =
        graph[op].group.has_value() ? graph.members(*graph[op].group).front().value() : op.value();
  return labels;
}

Contracted contract(const OpGraph& graph, const OpLabels& cluster, const OpLabels& group) {
  const Clusters clusters = number_clusters(graph, cluster);
  return Contraction(graph, clusters, group).run();
}

}  // namespace baechi
