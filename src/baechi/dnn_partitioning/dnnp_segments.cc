// SPDX-License-Identifier: Apache-2.0
#include "baechi/dnn_partitioning/dnnp_segments.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include "baechi/dnn_partitioning/dnnp_assignment.h"

namespace baechi::dnnp {
namespace {

// Edges between groups that an order should follow: all, or those of forward operators where all
// of them close a cycle.
struct Edges {
  std::vector<std::vector<Index>> before, after;
};

Edges edges_of(const Instance& in, bool forward_only) {
  const OpGraph& graph = in.costs->graph();
  Edges edges;
  edges.before.resize(in.groups.size());
  edges.after.resize(in.groups.size());
  for (const OpId op : graph.ops())
    for (const Edge& edge : graph.out_edges(op)) {
      const Index from = in.group_of[op.index()], to = in.group_of[edge.to.index()];
      if (from == to || (forward_only && (graph[op].backward || graph[edge.to].backward))) continue;
      edges.after[from].push_back(to);
      edges.before[to].push_back(from);
    }
  for (auto* lists : {&edges.before, &edges.after})
    for (std::vector<Index>& list : *lists) {
      std::ranges::sort(list);
      list.erase(std::unique(list.begin(), list.end()), list.end());
    }
  return edges;
}

// Of the free groups always the one with the least key; nothing if the edges close a cycle.
std::optional<Sequence> by_key(const Edges& edges, const std::vector<std::int64_t>& key) {
  const std::size_t n = key.size();
  std::vector<std::size_t> waits(n);
  using Entry = std::pair<std::int64_t, Index>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> free;
  for (std::size_t group = 0; group < n; ++group) {
    waits[group] = edges.before[group].size();
    if (waits[group] == 0) free.emplace(key[group], static_cast<Index>(group));
  }
  Sequence sequence;
  while (!free.empty()) {
    const Index group = free.top().second;
    free.pop();
    sequence.push_back(group);
    for (const Index next : edges.after[group])
      if (--waits[next] == 0) free.emplace(key[next], next);
  }
  if (sequence.size() < n) return std::nullopt;
  return sequence;
}

// A group comes just before the first one that needs it, or just after the last one it needs.
void visit(const std::vector<std::vector<Index>>& first, Index group, std::vector<bool>& seen,
           Sequence& sequence) {
  std::vector<std::pair<Index, std::size_t>> path{{group, 0}};
  seen[group] = true;
  while (!path.empty()) {
    auto& [at, next] = path.back();
    if (next == first[at].size()) {
      sequence.push_back(at);
      path.pop_back();
      continue;
    }
    const Index other = first[at][next++];
    if (seen[other]) continue;
    seen[other] = true;
    path.emplace_back(other, 0);
  }
}

Sequence depth_first(const std::vector<std::vector<Index>>& first, const Sequence& roots) {
  std::vector<bool> seen(first.size(), false);
  Sequence sequence;
  for (const Index root : roots)
    if (!seen[root]) visit(first, root, seen, sequence);
  return sequence;
}

// Groups without a forward operator are free in an order of the forward ones: each goes to the
// middle of its neighbors.
Sequence beside_neighbors(const Instance& in, const Sequence& sequence) {
  const OpGraph& graph = in.costs->graph();
  const std::size_t n = sequence.size();
  std::vector<std::optional<std::int64_t>> at(n);
  for (std::size_t i = 0; i < n; ++i)
    if (std::ranges::any_of(in.groups[sequence[i]].ops,
                            [&](OpId op) { return !graph[op].backward; }))
      at[sequence[i]] = static_cast<std::int64_t>(2 * i);
  for (bool found = true; found;) {
    found = false;
    for (const Index group : sequence) {
      if (at[group].has_value()) continue;
      std::int64_t sum = 0, count = 0;
      for (const auto* neighbors : {&in.groups[group].before, &in.groups[group].after})
        for (const Index other : *neighbors)
          if (at[other].has_value()) {
            sum += *at[other];
            ++count;
          }
      if (count == 0) continue;
      at[group] = sum / count;
      found = true;
    }
  }
  Sequence result = sequence;
  std::ranges::stable_sort(result, {}, [&](Index group) {
    return at[group].value_or(static_cast<std::int64_t>(2 * n));
  });
  return result;
}

// [begin * (groups + 1) + end]: the load of a segment on an accelerator; kNever: it does not fit.
std::vector<Ns> segment_loads(const Instance& in, const Sequence& sequence, std::size_t part) {
  const std::size_t n = sequence.size();
  std::vector<Ns> loads((n + 1) * (n + 1), kNever);
  Assignment alone(in, in.host());
  for (std::size_t begin = 0; begin < n; ++begin) {
    std::size_t end = begin;
    while (end < n && in.time_on(sequence[end], part) < kNever &&
           alone.has_room(sequence[end], part)) {
      alone.move(sequence[end], part);
      loads[begin * (n + 1) + ++end] = alone.load(part);
    }
    for (; end > begin; --end) alone.move(sequence[end - 1], in.host());
  }
  return loads;
}

class Cuts {
 public:
  Cuts(const Instance& in, const Sequence& sequence, DnnpObjective objective)
      : in_(in),
        sequence_(sequence),
        sum_(objective == DnnpObjective::kLatency),
        stride_(sequence.size() + 1),
        states_((in.num_accelerators + 1) * stride_ * 2) {
    for (std::size_t part = 0; part < in.num_accelerators; ++part)
      if (in.type[part] == loads_.size()) loads_.push_back(segment_loads(in, sequence, part));
  }

  std::optional<std::vector<Index>> run() {
    at(0, 0, 0).value = 0;
    for (std::size_t used = 0; used <= in_.num_accelerators; ++used) {
      for (std::size_t end = 0; end < stride_; ++end)
        for (const std::size_t host : {std::size_t{0}, std::size_t{1}}) {
          if (at(used, end, host).value >= kNever) continue;
          extend_on_host(used, end, host);
          if (used < in_.num_accelerators) extend(used, end, host);
        }
    }
    const State* best = nullptr;
    for (std::size_t used = 0; used <= in_.num_accelerators; ++used)
      for (const std::size_t host : {std::size_t{0}, std::size_t{1}})
        if (const State& state = at(used, stride_ - 1, host);
            state.value < kNever && (best == nullptr || state.value < best->value))
          best = &state;
    if (best == nullptr) return std::nullopt;
    return parts(*best);
  }

 private:
  struct State {  // the first groups are cut, with so many accelerators
    Ns value = kNever;
    const State* before = nullptr;
    std::size_t begin = 0, end = 0, part = 0;  // the last segment
  };

  // `host`: max-load, a segment is on the host.
  State& at(std::size_t used, std::size_t end, std::size_t host) {
    return states_[(used * stride_ + end) * 2 + host];
  }

  void reach(State& state, const State& before, Ns load, std::size_t begin, std::size_t end,
             std::size_t part) {
    const Ns value = sum_ ? before.value + load : std::max(before.value, load);
    if (value < state.value) state = {value, &before, begin, end, part};
  }

  void extend(std::size_t used, std::size_t begin, std::size_t host) {
    const State& before = at(used, begin, host);
    const std::vector<Ns>& loads = loads_[in_.type[used]];
    reach(at(used + 1, begin, host), before, 0, begin, begin, used);  // not used
    for (std::size_t end = begin + 1; end < stride_; ++end) {
      const Ns load = loads[begin * stride_ + end];
      if (load >= kNever) break;
      reach(at(used + 1, end, host), before, load, begin, end, used);
    }
  }

  void extend_on_host(std::size_t used, std::size_t begin, std::size_t host) {
    if (!in_.has_host || (!sum_ && host == 1)) return;
    const State& before = at(used, begin, host);
    Ns load = 0;
    for (std::size_t end = begin + 1; end < stride_; ++end) {
      const Ns time = in_.time_on(sequence_[end - 1], in_.host());
      if (time >= kNever) return;
      load += time;
      reach(at(used, end, sum_ ? host : 1), before, load, begin, end, in_.host());
      if (sum_) return;  // longer ones are several of one group
    }
  }

  std::vector<Index> parts(const State& last) const {
    std::vector<Index> parts(sequence_.size(), 0);
    for (const State* state = &last; state->before != nullptr; state = state->before)
      for (std::size_t i = state->begin; i < state->end; ++i)
        parts[sequence_[i]] = static_cast<Index>(state->part);
    return parts;
  }

  const Instance& in_;
  const Sequence& sequence_;
  bool sum_;
  std::size_t stride_;
  std::vector<State> states_;
  std::vector<std::vector<Ns>> loads_;  // [type]
};

}  // namespace

std::vector<Sequence> good_sequences(const Instance& in) {
  const std::size_t n = in.groups.size();
  std::vector<std::int64_t> position(n), level(n, 0), alike(n, 0);
  for (std::size_t group = 0; group < n; ++group)
    position[group] = static_cast<std::int64_t>(in.groups[group].position);
  Sequence by_position(n);
  for (std::size_t i = 0; i < n; ++i) by_position[i] = static_cast<Index>(i);
  std::ranges::sort(by_position, {}, [&](Index group) { return position[group]; });

  Edges edges = edges_of(in, false);
  std::optional<Sequence> first = by_key(edges, position);
  const bool cyclic = !first.has_value();
  if (cyclic) {
    edges = edges_of(in, true);
    first = by_key(edges, position);
  }
  if (!first.has_value()) return {by_position};
  for (const Index group : *first)
    for (const Index next : edges.after[group])
      level[next] = std::max(level[next], level[group] + 1);

  std::vector<Sequence> sequences{*first, *by_key(edges, level)};
  // Depth first from the ends, and from the beginnings read backwards.
  Sequence backwards(first->rbegin(), first->rend());
  sequences.push_back(depth_first(edges.before, *first));
  sequences.push_back(depth_first(edges.before, backwards));
  for (const Sequence& roots : {backwards, *first}) {
    Sequence sequence = depth_first(edges.after, roots);
    std::ranges::reverse(sequence);
    sequences.push_back(std::move(sequence));
  }
  std::vector<Sequence> unlike;
  for (Sequence& sequence : sequences) {
    if (cyclic) sequence = beside_neighbors(in, sequence);
    if (std::ranges::find(unlike, sequence) == unlike.end()) unlike.push_back(std::move(sequence));
  }
  return unlike;
}

std::optional<std::vector<Index>> cut_into_segments(const Instance& instance,
                                                    const Sequence& sequence,
                                                    DnnpObjective objective) {
  return Cuts(instance, sequence, objective).run();
}

}  // namespace baechi::dnnp
