// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/heads_tails.h"

#include <algorithm>
#include <span>

#include "baechi/bounds/star.h"

namespace baechi::bounds {
namespace {

// Heads and tails are one recursion, read along the edges or against them.
enum class Direction { kHeads, kTails };

class Recursion {
 public:
  Recursion(const Relaxation& relaxed, const IdVector<OpId, UnitId>& component,
            std::span<const Distance> distances, Direction direction)
      : in_(relaxed),
        component_(component),
        direction_(direction),
        reached_(sorted(distances, direction)),
        num_types_(relaxed.num_types()),
        value_(relaxed.k.size()),
        done_(relaxed.k.size()) {}

  std::vector<Ns> run() {
    const std::span<const OpId> order = in_.graph->topological_order();
    for (std::size_t i = 0; i < order.size(); ++i) {
      const OpId op = order[direction_ == Direction::kHeads ? i : order.size() - 1 - i];
      gather(op);
      const Ns soonest = after_distances(op);
      for (std::size_t type = 0; type < num_types_; ++type) {
        const std::size_t at = op.index() * num_types_ + type;
        value_[at] = in_.k[at] >= kNever ? kNever : std::max(soonest, least(op, type));
        done_[at] = std::min(kNever, value_[at] + in_.k[at]);
      }
    }
    return std::move(value_);
  }

 private:
  struct Via {  // one edge of the operator in hand
    OpId op;
    std::optional<TensorId> tensor;
  };

  struct Reached {  // a distance, from the end that is done first
    OpId op, before;
    Ns least;
  };

  static std::vector<Reached> sorted(std::span<const Distance> distances, Direction direction) {
    std::vector<Reached> result;
    result.reserve(distances.size());
    for (const Distance& distance : distances)
      result.push_back(direction == Direction::kHeads
                           ? Reached{distance.to, distance.from, distance.least}
                           : Reached{distance.from, distance.to, distance.least});
    std::sort(result.begin(), result.end(),
              [](const Reached& a, const Reached& b) { return a.op < b.op; });
    return result;
  }

  // How soon the distances to `op` let it start, wherever it and the others are.
  Ns after_distances(OpId op) const {
    Ns soonest = 0;
    auto next = std::lower_bound(reached_.begin(), reached_.end(), op,
                                 [](const Reached& reached, OpId key) { return reached.op < key; });
    for (; next != reached_.end() && next->op == op; ++next) {
      const Ns* done = &done_[next->before.index() * num_types_];
      soonest = std::max(soonest, *std::min_element(done, done + num_types_) + next->least);
    }
    return std::min(soonest, kNever);
  }

  // The edges of `op` on this side, those of one neighbor next to each other.
  void gather(OpId op) {
    via_.clear();
    if (direction_ == Direction::kHeads) {
      for (const Edge& edge : in_.graph->in_edges(op)) via_.push_back({edge.from, edge.tensor});
      return;
    }
    for (const Edge& edge : in_.graph->out_edges(op)) via_.push_back({edge.to, edge.tensor});
    if (via_.size() > 1)
      std::sort(via_.begin(), via_.end(), [](const Via& a, const Via& b) { return a.op < b.op; });
  }

  Ns least(OpId op, std::size_t type) {
    neighbors_.clear();
    for (std::size_t i = 0; i < via_.size();) {
      std::size_t end = i + 1;
      while (end < via_.size() && via_[end].op == via_[i].op) ++end;
      const OpId other = via_[i].op;
      const std::size_t at = other.index() * num_types_ + type;
      const bool together = component_[op] == component_[other];
      neighbors_.push_back(
          {together ? kNever : sent({via_.data() + i, end - i}, type), value_[at], in_.k[at]});
      i = end;
    }
    return star_.solve(neighbors_);
  }

  // When all tensors between the operator in hand, on a device of `here`, and a neighbor on
  // another device have crossed, over all types that the neighbor may be on.
  Ns sent(std::span<const Via> edges, std::size_t here) const {
    Ns soonest = kNever;
    for (std::size_t there = 0; there < num_types_; ++there) {
      const auto& link = direction_ == Direction::kHeads ? in_.link[there * num_types_ + here]
                                                         : in_.link[here * num_types_ + there];
      if (!link.has_value()) continue;
      Ns crossing = 0;
      for (const Via& edge : edges) {
        if (!edge.tensor.has_value()) continue;
        const Ns c = in_.c[edge.tensor->index() * in_.num_links + *link];
        crossing = in_.transfers_queue ? crossing + c : std::max(crossing, c);
      }
      const Ns done = done_[edges.front().op.index() * num_types_ + there];
      soonest = std::min(soonest, done + crossing);
    }
    return soonest;
  }

  const Relaxation& in_;
  const IdVector<OpId, UnitId>& component_;
  const Direction direction_;
  const std::vector<Reached> reached_;  // by operator
  const std::size_t num_types_;
  std::vector<Ns> value_;  // b or q
  std::vector<Ns> done_;   // b + k or q + k
  std::vector<Via> via_;
  std::vector<Neighbor> neighbors_;
  Star star_;
};

}  // namespace

HeadsTails star(const Relaxation& relaxed, const IdVector<OpId, UnitId>& component,
                std::span<const Distance> distances) {
  return {Recursion(relaxed, component, distances, Direction::kHeads).run(),
          Recursion(relaxed, component, distances, Direction::kTails).run()};
}

Ns longest(const Relaxation& relaxed, const HeadsTails& ends) {
  const std::size_t num_types = relaxed.num_types();
  Ns longest = 0;
  for (std::size_t op = 0; op < relaxed.k_min.size(); ++op) {
    Ns least = kNever;
    for (std::size_t at = op * num_types; at < (op + 1) * num_types; ++at)
      least = std::min(least, ends.b[at] + relaxed.k[at] + ends.q[at]);
    longest = std::max(longest, least);
  }
  return longest;
}

Ns longest_path(const Relaxation& relaxed) {
  std::vector<Ns> end(relaxed.k_min.size(), 0);
  Ns longest = 0;
  for (const OpId op : relaxed.graph->topological_order()) {
    Ns start = 0;
    for (const Edge& edge : relaxed.graph->in_edges(op))
      start = std::max(start, end[edge.from.index()]);
    end[op.index()] = start + relaxed.k_min[op.index()];
    longest = std::max(longest, end[op.index()]);
  }
  return longest;
}

}  // namespace baechi::bounds
