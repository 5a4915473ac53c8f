// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/heads_tails.h"

#include <algorithm>
#include <span>

namespace baechi::bounds {
namespace {

// An operator next to the one in hand: all on the way in for heads, all on the way out for tails.
struct Neighbor {
  Ns sent;     // when its tensors are there, were it on another device; kNever if it must not be
  Ns release;  // when it could start, were it on the same device
  Ns k;        // how long it takes there; kNever if it cannot be there
};

// The end of the first `count` neighbors when one device works them off by release.
// `by_release` has their positions, latest release first.
Ns one_after_the_other(std::span<const Neighbor> neighbors,
                       std::span<const std::uint32_t> by_release, std::size_t count) {
  Ns work = 0, end = 0;
  for (const std::uint32_t i : by_release) {
    if (i >= count) continue;
    work += neighbors[i].k;
    end = std::max(end, neighbors[i].release + work);
  }
  return end;
}

// The least moment at which all neighbors can be done: min over those kept local of max(the local
// ones one after the other, the last of the others to be sent). Whoever is sent last is the one to
// keep first: keeping another instead costs work and gains nothing.
class Star {
 public:
  Ns solve(std::vector<Neighbor>& neighbors) {
    if (neighbors.empty()) return 0;
    if (neighbors.size() == 1)
      return std::min(kNever, std::min(neighbors[0].sent, local(neighbors[0])));
    std::sort(neighbors.begin(), neighbors.end(),
              [](const Neighbor& a, const Neighbor& b) { return a.sent > b.sent; });
    std::size_t fewest = 0, most = 0;
    while (most < neighbors.size() && neighbors[most].k < kNever &&
           neighbors[most].release < kNever)
      ++most;
    while (fewest < neighbors.size() && neighbors[fewest].sent >= kNever) ++fewest;
    if (fewest > most) return kNever;

    by_release_.resize(most);
    for (std::size_t i = 0; i < most; ++i) by_release_[i] = static_cast<std::uint32_t>(i);
    std::sort(by_release_.begin(), by_release_.end(), [&](std::uint32_t a, std::uint32_t b) {
      return neighbors[a].release > neighbors[b].release;
    });
    const auto last_sent = [&](std::size_t count) {
      return count < neighbors.size() ? neighbors[count].sent : Ns{0};
    };
    // The local part grows with their number, the rest shrinks: look for the crossing.
    std::size_t low = fewest, high = most;
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      if (one_after_the_other(neighbors, by_release_, middle) >= last_sent(middle))
        high = middle;
      else
        low = middle + 1;
    }
    Ns least = std::max(one_after_the_other(neighbors, by_release_, low), last_sent(low));
    if (low > fewest)
      least = std::min(least, std::max(one_after_the_other(neighbors, by_release_, low - 1),
                                       last_sent(low - 1)));
    return std::min(least, kNever);
  }

 private:
  static Ns local(const Neighbor& neighbor) {
    return std::min(kNever, std::min(neighbor.release, kNever) + neighbor.k);
  }
  std::vector<std::uint32_t> by_release_;
};

// Heads and tails are one recursion, read along the edges or against them.
enum class Direction { kHeads, kTails };

class Recursion {
 public:
  Recursion(const Relaxation& relaxed, const IdVector<OpId, UnitId>& component, Direction direction)
      : in_(relaxed),
        component_(component),
        direction_(direction),
        num_types_(relaxed.num_types()),
        value_(relaxed.k.size()),
        done_(relaxed.k.size()) {}

  std::vector<Ns> run() {
    const std::span<const OpId> order = in_.graph->topological_order();
    for (std::size_t i = 0; i < order.size(); ++i) {
      const OpId op = order[direction_ == Direction::kHeads ? i : order.size() - 1 - i];
      gather(op);
      for (std::size_t type = 0; type < num_types_; ++type) {
        const std::size_t at = op.index() * num_types_ + type;
        value_[at] = in_.k[at] >= kNever ? kNever : least(op, type);
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
  const std::size_t num_types_;
  std::vector<Ns> value_;  // b or q
  std::vector<Ns> done_;   // b + k or q + k
  std::vector<Via> via_;
  std::vector<Neighbor> neighbors_;
  Star star_;
};

}  // namespace

HeadsTails star(const Relaxation& relaxed, const IdVector<OpId, UnitId>& component) {
  return {Recursion(relaxed, component, Direction::kHeads).run(),
          Recursion(relaxed, component, Direction::kTails).run()};
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
