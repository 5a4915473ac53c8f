// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/pipeline/items.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <queue>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "baechi/graph/unroll.h"
#include "baechi/place/kept_together.h"

namespace baechi::pipeline {
namespace {

// What one set waits for in one direction of the micro-batch: sets are nodes 2 * set, and their
// backward passes 2 * set + 1. Rows of the nodes behind each node, perhaps repeated.
class PassGraph {
 public:
  PassGraph(const OpGraph& graph, const IdVector<OpId, bool>& once,
            const IdVector<OpId, bool>& backward, UnionFind& sets) {
    const auto node = [&](OpId op) { return 2 * sets.find(op.value()) + (backward[op] ? 1 : 0); };
    begin_.assign(2 * graph.num_ops() + 1, 0);
    const auto each = [&](auto&& visit) {
      for (const OpId op : graph.ops()) {
        if (once[op]) continue;
        for (const Edge& edge : graph.out_edges(op))
          if (!once[edge.to] && node(op) != node(edge.to)) visit(node(op), node(edge.to));
      }
    };
    each([&](std::uint32_t from, std::uint32_t) { ++begin_[from + 1]; });
    for (std::size_t i = 1; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
    to_.resize(begin_.back());
    std::vector<std::uint32_t> next(begin_.begin(), begin_.end() - 1);
    each([&](std::uint32_t from, std::uint32_t to) { to_[next[from]++] = to; });
  }

  std::size_t size() const { return begin_.size() - 1; }
  std::span<const std::uint32_t> behind(std::uint32_t node) const {
    return std::span<const std::uint32_t>(to_).subspan(begin_[node],
                                                       begin_[node + 1] - begin_[node]);
  }

 private:
  std::vector<std::uint32_t> begin_, to_;
};

// Tarjan's algorithm without recursion: calls `circle(a, b)` for nodes of one circle.
template <class Circle>
void find_circles(const PassGraph& graph, Circle&& circle) {
  constexpr std::uint32_t kUnseen = 0;
  struct Frame {
    std::uint32_t node;
    std::size_t next = 0;
  };
  std::vector<std::uint32_t> number(graph.size(), kUnseen), low(graph.size(), 0);
  std::vector<bool> open(graph.size(), false);
  std::vector<std::uint32_t> stack;
  std::vector<Frame> frames;
  std::uint32_t count = 0;
  const auto enter = [&](std::uint32_t node) {
    number[node] = low[node] = ++count;
    open[node] = true;
    stack.push_back(node);
    frames.push_back({node});
  };
  for (std::uint32_t root = 0; root < graph.size(); ++root) {
    if (number[root] != kUnseen || graph.behind(root).empty()) continue;
    enter(root);
    while (!frames.empty()) {
      const std::uint32_t node = frames.back().node;
      if (frames.back().next < graph.behind(node).size()) {
        const std::uint32_t to = graph.behind(node)[frames.back().next++];
        if (number[to] == kUnseen)
          enter(to);
        else if (open[to])
          low[node] = std::min(low[node], number[to]);
        continue;
      }
      frames.pop_back();
      if (!frames.empty()) low[frames.back().node] = std::min(low[frames.back().node], low[node]);
      if (low[node] != number[node]) continue;
      for (std::uint32_t member = stack.back();; member = stack.back()) {
        stack.pop_back();
        open[member] = false;
        if (member == node) break;
        circle(member, node);
      }
    }
  }
}

// Sets whose place in the forward pass nothing says yet: of operators of the backward pass or per
// step alone (a variable, its updates and the sum of its gradients, say). Sums of gradients go with
// the last that they read, since that is less to send; the others with what reads their output, else
// with what they read: sweeps over all operators from the last to the first, as long as one of them
// joins sets, then one from the first to the last, and so on until nothing changes. A sweep only
// comes to operators beside which a set was settled since the last one of its direction.
class Adoption {
 public:
  Adoption(const CostModel& costs, const IdVector<OpId, bool>& once,
           const IdVector<OpId, bool>& backward, UnionFind& sets)
      : graph_(costs.graph()),
        once_(once),
        sets_(sets),
        settled_(graph_.num_ops(), false),
        pin_(graph_.num_ops()),
        members_(graph_.num_ops()),
        rank_(graph_.num_ops(), 0) {
    for (const OpId op : graph_.ops()) {
      const std::uint32_t set = sets_.find(op.value());
      if (!once_[op] && !backward[op]) settled_[set] = true;
      if (costs.pin(op).has_value()) pin_[set] = costs.pin(op);
      members_[set].push_back(op);
    }
    for (const OpId op : graph_.topological_order()) {
      rank_[op.value()] = static_cast<std::uint32_t>(order_.size());
      order_.push_back(op);
    }
  }

  void run() {
    adopt_sums();
    for (std::uint32_t i = 0; i < order_.size(); ++i) {
      up_.insert(i);
      down_.insert(i);
    }
    while (sweep_up() || sweep_down()) continue;
  }

 private:
  bool join(OpId op, OpId other) {
    const std::uint32_t a = sets_.find(op.value()), b = sets_.find(other.value());
    if (settled_[a] || !settled_[b] || pin_[a] != pin_[b]) return false;
    sets_.unite(a, b);
    const std::uint32_t both = sets_.find(a);
    settled_[both] = true;
    pin_[both] = pin_[b];
    for (const OpId member : std::exchange(members_[a], {})) {
      for (const Edge& edge : graph_.in_edges(member)) up_.insert(rank_[edge.from.value()]);
      for (const Edge& edge : graph_.out_edges(member)) down_.insert(rank_[edge.to.value()]);
    }
    return true;
  }

  void adopt_sums() {
    for (const OpId op : order_) {
      if (once_[op]) continue;
      std::optional<OpId> last;
      Bytes read;
      for (const Edge& edge : graph_.in_edges(op)) {
        if (!edge.tensor.has_value() || once_[edge.from]) continue;
        read += graph_.size(*edge.tensor);
        if (!last.has_value() || rank_[edge.from.value()] > rank_[last->value()]) last = edge.from;
      }
      if (last.has_value() && read > graph_.output_bytes(op)) join(op, *last);
    }
  }

  // With what reads their outputs.
  bool sweep_up() {
    bool joined = false;
    for (auto at = up_.end(); at != up_.begin();) {
      const std::uint32_t i = *--at;
      up_.erase(at);
      for (const Edge& edge : graph_.out_edges(order_[i]))
        if (once_[edge.to] == once_[order_[i]] || once_[order_[i]])
          joined = join(order_[i], edge.to) || joined;
      at = up_.lower_bound(i);
    }
    return joined;
  }

  // With what they read.
  bool sweep_down() {
    bool joined = false;
    for (auto at = down_.begin(); at != down_.end();) {
      const std::uint32_t i = *at;
      down_.erase(at);
      for (const Edge& edge : graph_.in_edges(order_[i]))
        joined = join(order_[i], edge.from) || joined;
      at = down_.upper_bound(i);
    }
    return joined;
  }

  const OpGraph& graph_;
  const IdVector<OpId, bool>& once_;
  UnionFind& sets_;
  std::vector<bool> settled_;  // by representatives, as the next two
  std::vector<std::optional<DeviceId>> pin_;
  std::vector<std::vector<OpId>> members_;  // of sets that are not settled
  std::vector<OpId> order_;
  std::vector<std::uint32_t> rank_;
  std::set<std::uint32_t> up_, down_;  // places in the order that the next sweeps come to
};

}  // namespace

IdVector<OpId, bool> backward_ops(const OpGraph& graph) {
  const IdVector<OpId, bool> once = once_per_step(graph);
  IdVector<OpId, bool> backward(graph.num_ops(), false);
  const auto order = graph.topological_order();
  for (std::size_t i = order.size(); i-- > 0;) {
    const auto edges = graph.out_edges(order[i]);
    backward[order[i]] =
        graph[order[i]].backward && std::all_of(edges.begin(), edges.end(), [&](const Edge& edge) {
          return once[edge.to] || backward[edge.to];
        });
  }
  return backward;
}

void unite_circles(const OpGraph& graph, const IdVector<OpId, bool>& backward, UnionFind& sets) {
  const IdVector<OpId, bool> once = once_per_step(graph);
  for (bool united = true; united;) {
    united = false;
    find_circles(PassGraph(graph, once, backward, sets), [&](std::uint32_t a, std::uint32_t b) {
      united = sets.unite(a / 2, b / 2) || united;
    });
  }
}

UnionFind items(const CostModel& costs, const IdVector<OpId, bool>& backward) {
  const OpGraph& graph = costs.graph();
  UnionFind sets = kept_together(costs);
  const IdVector<OpId, bool> once = once_per_step(graph);
  Adoption(costs, once, backward, sets).run();
  unite_circles(graph, backward, sets);
  return sets;
}

std::vector<std::uint32_t> item_order(const OpGraph& graph, const IdVector<OpId, bool>& backward,
                                      UnionFind& sets, const TopologicalSequence& sequence) {
  const IdVector<OpId, bool> once = once_per_step(graph);
  std::vector<std::uint32_t> place(graph.num_ops(), static_cast<std::uint32_t>(graph.num_ops()));
  std::vector<std::uint32_t> waits_for(graph.num_ops(), 0);
  std::vector<std::vector<std::uint32_t>> behind(graph.num_ops());
  for (std::uint32_t i = 0; i < sequence.size(); ++i) {
    std::uint32_t& first = place[sets.find(sequence[i].value())];
    if (!backward[sequence[i]] && !once[sequence[i]]) first = std::min(first, i);
  }
  for (const OpId op : graph.ops()) {
    if (once[op] || backward[op]) continue;
    const std::uint32_t from = sets.find(op.value());
    for (const Edge& edge : graph.out_edges(op)) {
      const std::uint32_t to = sets.find(edge.to.value());
      if (once[edge.to] || backward[edge.to] || to == from) continue;
      behind[from].push_back(to);
      ++waits_for[to];
    }
  }
  using Entry = std::pair<std::uint32_t, std::uint32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> free;
  for (const OpId op : graph.ops())
    if (sets.find(op.value()) == op.value() && waits_for[op.value()] == 0)
      free.emplace(place[op.value()], op.value());
  std::vector<std::uint32_t> order;
  while (!free.empty()) {
    const std::uint32_t item = free.top().second;
    free.pop();
    order.push_back(item);
    for (const std::uint32_t next : behind[item])
      if (--waits_for[next] == 0) free.emplace(place[next], next);
  }
  return order;
}

TopologicalSequence variables_together(const CostModel& costs,
                                       const TopologicalSequence& sequence) {
  const OpGraph& graph = costs.graph();
  const IdVector<OpId, bool> once = once_per_step(graph), backward = backward_ops(graph);
  UnionFind sets = items(costs, backward);
  Bytes sent;
  std::int64_t tensors = 1;
  for (const TensorId tensor : graph.tensors()) {
    const OpId producer = graph.producer(tensor);
    if (once[producer] || backward[producer]) continue;
    sent += graph.size(tensor);
    ++tensors;
  }
  const Bytes mean(sent.count() / tensors);
  bool united = false;
  for (const TensorId tensor : graph.tensors()) {
    if (!once[graph.producer(tensor)] || graph.size(tensor) <= mean) continue;
    std::optional<OpId> first;
    for (const Edge& edge : graph.consumers(tensor)) {
      if (once[edge.to] || backward[edge.to]) continue;
      if (first.has_value()) united = sets.unite(first->value(), edge.to.value()) || united;
      first = edge.to;
    }
  }
  if (!united) return sequence;
  unite_circles(graph, backward, sets);
  std::vector<std::uint32_t> place(graph.num_ops(), 0);
  std::uint32_t next = 0;
  for (const std::uint32_t set : item_order(graph, backward, sets, sequence)) place[set] = next++;
  TopologicalSequence result = sequence;
  std::stable_sort(result.begin(), result.end(), [&](OpId a, OpId b) {
    return place[sets.find(a.value())] < place[sets.find(b.value())];
  });
  return result;
}

}  // namespace baechi::pipeline
