// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/recompute/second_runs.h"

#include <algorithm>
#include <cstddef>

#include "baechi/graph/unroll.h"

namespace baechi {

SecondRuns::SecondRuns(const OpGraph& graph)
    : graph_(graph), may_(graph.num_ops()), once_per_step_(once_per_step(graph)) {
  if (graph.memory_mode() == MemoryMode::kRetain) return;
  const MayRunAgain rule(graph);
  for (const OpId op : graph.ops()) {
    may_[op] = !graph.outputs(op).empty() && !rule.refusal(op).has_value();
    any_ = any_ || may_[op];
  }
  any_ = any_ && std::any_of(graph.ops().begin(), graph.ops().end(),
                             [&](OpId op) { return graph[op].backward; });
}

// What `reader` waits for last of the backward pass. A reader that waits for nothing there (it asks
// for a shape, say) is needed together with another one: then what the operators that wait for it
// do.
std::optional<OpId> SecondRuns::gradient_for(OpId reader, std::size_t before,
                                             const IdVector<OpId, std::size_t>& position) const {
  constexpr int kMostSteps = 4;
  for (int step = 0; step < kMostSteps; ++step) {
    std::optional<OpId> latest;
    for (const Edge& edge : graph_.in_edges(reader))
      if (graph_[edge.from].backward && !once_per_step_[edge.from] &&
          position[edge.from] < before &&
          (!latest.has_value() || position[edge.from] > position[*latest]))
        latest = edge.from;
    if (latest.has_value()) return latest;
    std::optional<OpId> next;
    for (const Edge& edge : graph_.out_edges(reader))
      if (!once_per_step_[edge.to] && (!next.has_value() || position[edge.to] < position[*next]))
        next = edge.to;
    if (!next.has_value()) break;
    reader = *next;
  }
  return std::nullopt;
}

SecondRuns::Placed SecondRuns::in(const std::vector<OpId>& sequence,
                                  const IdVector<OpId, bool>& chosen, const Leads& leads) const {
  IdVector<OpId, std::size_t> position(graph_.num_ops());
  for (std::size_t i = 0; i < sequence.size(); ++i) position[sequence[i]] = i;
  IdVector<OpId, std::optional<std::size_t>> first(graph_.num_ops());  // reader of the second run
  IdVector<OpId, std::optional<OpId>> after(graph_.num_ops());
  for (std::size_t i = sequence.size(); i-- > 0;) {
    const OpId op = sequence[i];
    if (!chosen[op] || !may_[op]) continue;
    std::optional<std::size_t> reader;
    std::size_t last_forward = i;
    for (const Edge& edge : graph_.out_edges(op)) {
      if (!edge.tensor.has_value()) continue;
      const bool backward = graph_[edge.to].backward;
      if (!backward) last_forward = std::max(last_forward, position[edge.to]);
      const std::optional<std::size_t> at =
          backward ? std::optional(position[edge.to]) : first[edge.to];
      if (at.has_value()) reader = std::min(reader.value_or(*at), *at);
    }
    if (!reader.has_value()) continue;
    after[op] = gradient_for(sequence[*reader], *reader, position);
    if (!after[op].has_value() || position[*after[op]] <= last_forward) continue;
    first[op] = reader;
    for (std::uint32_t step = 0; step < (leads.empty() ? 0 : leads[op]); ++step) {
      const auto earlier = gradient_for(*after[op], position[*after[op]], position);
      if (!earlier.has_value() || position[*earlier] <= last_forward) break;
      after[op] = earlier;
    }
  }

  Placed placed;
  std::vector<std::vector<OpId>> before(sequence.size());
  for (const OpId op : graph_.ops())
    if (first[op].has_value()) placed.again.push_back({op, after[op]});
  IdVector<OpId, std::size_t> rank(graph_.num_ops());
  for (std::size_t i = 0; i < placed.again.size(); ++i) rank[placed.again[i].op] = i;
  for (const OpId op : sequence)
    if (first[op].has_value()) before[*first[op]].push_back(OpId(graph_.num_ops() + rank[op]));
  for (std::size_t i = 0; i < sequence.size(); ++i) {
    placed.sequence.insert(placed.sequence.end(), before[i].begin(), before[i].end());
    placed.sequence.push_back(sequence[i]);
  }
  return placed;
}

}  // namespace baechi
