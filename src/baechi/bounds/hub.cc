// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/hub.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "baechi/base/wide.h"
#include "baechi/bounds/flow_network.h"
#include "baechi/bounds/load.h"

namespace baechi::bounds {
namespace {

class Hub {
 public:
  Hub(const Relaxation& relaxed, const HeadsTails& ends, const Components& together)
      : in_(relaxed), ends_(ends), of_(together.of), num_components_(together.count) {}

  Ns run(Ns known) {
    if (in_.num_devices == 1 || !in_.transfers_queue || !totals_fit() || !find_hub()) return 0;
    find_barrier();
    divide();
    gather_ropes();
    if (most() <= known) return 0;
    Ns least = kNever;
    for (std::size_t type = 0; type < in_.num_types() && least > known; ++type)
      if (allowed(type)) least = std::min(least, strongest(type));
    return least >= kNever ? 0 : least;
  }

 private:
  static constexpr Ns kShares =
      1024;  // of a nanosecond: the weights of work and queue add up to it
  static constexpr std::size_t kMostVisits = 8'000'000;  // of arcs, for all types and weights

  // All flows are sums of times by shares.
  bool totals_fit() const {
    WideInt total = 0;
    for (const Ns k : in_.k)
      if (k < kNever) total += k;
    for (const Ns c : in_.c) total += c;
    return total * kShares * 4 < kNever;
  }

  struct End {  // a head or a tail of work that takes time
    Ns time;
    std::uint32_t component;
    Ns k;
  };

  struct Pin {  // a component that reads a tensor
    std::uint32_t component;
    Ns tail;  // from when it has arrived to the end of the step
  };

  // The components that read a tensor, other than its producer's, each once.
  void find_readers(TensorId tensor, UnitId producer) {
    readers_.clear();
    for (const Edge& edge : in_.graph->consumers(tensor)) {
      const OpId op = edge.to;
      if (of_[op] == producer) continue;
      Ns tail = kNever;
      for (std::size_t type = 0; type < in_.num_types(); ++type) {
        const std::size_t at = op.index() * in_.num_types() + type;
        tail = std::min(tail, in_.k[at] + ends_.q[at]);
      }
      readers_.push_back({of_[op].value(), std::min(tail, kNever)});
    }
    std::sort(readers_.begin(), readers_.end(), [](const Pin& a, const Pin& b) {
      return a.component != b.component ? a.component < b.component : a.tail > b.tail;
    });
    const auto last = std::unique(readers_.begin(), readers_.end(), [](const Pin& a, const Pin& b) {
      return a.component == b.component;
    });
    readers_.erase(last, readers_.end());
  }

  // The component whose tensors take longest to come and go.
  bool find_hub() {
    std::vector<Ns> crossing(num_components_, 0);
    for (const TensorId tensor : in_.graph->tensors()) {
      const UnitId producer = of_[in_.graph->producer(tensor)];
      find_readers(tensor, producer);
      if (readers_.empty()) continue;
      crossing[producer.index()] += in_.c_min[tensor.index()];
      for (const Pin& pin : readers_) crossing[pin.component] += in_.c_min[tensor.index()];
    }
    const auto most = std::max_element(crossing.begin(), crossing.end());
    if (most == crossing.end() || *most == 0) return false;
    hub_ = static_cast<std::uint32_t>(most - crossing.begin());
    crossing_ = *most;
    return true;
  }

  // Of the longest chain, the last operator that nine tenths of the hub's traffic must wait for.
  void find_barrier() {
    const OpGraph& graph = *in_.graph;
    std::vector<Ns> end(graph.num_ops(), 0);
    std::vector<std::optional<OpId>> before(graph.num_ops());
    std::optional<OpId> last;
    for (const OpId op : graph.topological_order()) {
      Ns start = 0;
      for (const Edge& edge : graph.in_edges(op)) {
        if (before[op.index()].has_value() && end[edge.from.index()] <= start) continue;
        start = end[edge.from.index()];
        before[op.index()] = edge.from;
      }
      end[op.index()] = start + in_.k_min[op.index()];
      if (!last.has_value() || end[op.index()] > end[last->index()]) last = op;
    }
    std::vector<OpId> chain;
    for (; last.has_value(); last = before[last->index()]) chain.push_back(*last);
    std::reverse(chain.begin(), chain.end());
    // How many operators of the chain each operator comes after, itself included.
    std::vector<std::uint32_t> after(graph.num_ops(), 0);
    for (std::uint32_t i = 0; i < chain.size(); ++i) after[chain[i].index()] = i + 1;
    for (const OpId op : graph.topological_order())
      for (const Edge& edge : graph.in_edges(op))
        after[op.index()] = std::max(after[op.index()], after[edge.from.index()]);
    std::vector<std::pair<std::uint32_t, Ns>> traffic;
    for (const TensorId tensor : graph.tensors()) {
      const OpId producer = graph.producer(tensor);
      find_readers(tensor, of_[producer]);
      const bool reads =
          std::ranges::any_of(readers_, [&](const Pin& pin) { return pin.component == hub_; });
      if (reads || (of_[producer].value() == hub_ && !readers_.empty()))
        traffic.emplace_back(after[producer.index()], in_.c_min[tensor.index()]);
    }
    std::sort(traffic.begin(), traffic.end());
    Ns early = 0;
    for (const auto& [place, crossing] : traffic) {
      early += crossing;
      if (early <= crossing_ / 10) continue;
      if (place > 0) barrier_ = chain[place - 1];
      return;
    }
  }

  // What has ended when the barrier starts, and what starts when it has ended; without a barrier,
  // everything does.
  void divide() {
    const OpGraph& graph = *in_.graph;
    side_.assign(graph.num_ops(), barrier_.has_value() ? Side::kNeither : Side::kAfter);
    if (!barrier_.has_value()) return;
    const std::span<const OpId> order = graph.topological_order();
    for (const OpId op : order)
      for (const Edge& edge : graph.in_edges(op))
        if (edge.from == *barrier_ || side_[edge.from.index()] == Side::kAfter)
          side_[op.index()] = Side::kAfter;
    for (std::size_t i = order.size(); i-- > 0;)
      for (const Edge& edge : graph.out_edges(order[i]))
        if (edge.to == *barrier_ || side_[edge.to.index()] == Side::kBefore)
          side_[order[i].index()] = Side::kBefore;
  }

  // The tensors that are sent after the barrier, if they are sent.
  void gather_ropes() {
    for (const TensorId tensor : in_.graph->tensors()) {
      const OpId producer = in_.graph->producer(tensor);
      if (side_[producer.index()] != Side::kAfter && producer != barrier_) continue;
      find_readers(tensor, of_[producer]);
      if (readers_.empty()) continue;
      const Ns c = in_.c_min[tensor.index()];
      ropes_.push_back(
          {of_[producer].value(), pins_.size(), readers_.size(), in_.queues_both_ways ? c / 2 : c});
      pins_.insert(pins_.end(), readers_.begin(), readers_.end());
    }
  }

  // No more than this can come of it.
  Ns most() const {
    Ns own = 0, head = 0, tail = 0;
    for (const OpId op : of_.keys()) {
      if (side_[op.index()] == Side::kBefore) head = std::max(head, least(ends_.b, op));
      if (side_[op.index()] == Side::kAfter) tail = std::max(tail, least(ends_.q, op));
      if (of_[op].value() == hub_)
        for (std::size_t type = 0; type < in_.num_types(); ++type)
          if (const Ns k = in_.time(op, type); k < kNever) own += k;
    }
    for (const Pin& pin : pins_) tail = std::max(tail, pin.tail);
    return head + own + (barrier_.has_value() ? in_.k_min[barrier_->index()] : 0) + tail +
           crossing_;
  }

  bool allowed(std::size_t type) const {
    return std::ranges::none_of(of_.keys(), [&](OpId op) {
      return of_[op].value() == hub_ && in_.time(op, type) >= kNever;
    });
  }

  // With the hub on a device of this type: the best weight of the queue.
  Ns strongest(std::size_t type) {
    before_.assign(num_components_, 0);
    after_.assign(num_components_, 0);
    never_.assign(num_components_, false);
    heads_.clear();
    tails_after_.clear();
    for (const OpId op : of_.keys()) {
      const std::size_t component = of_[op].index();
      const Ns k = in_.time(op, type);
      if (k >= kNever) never_[component] = true;
      if (k >= kNever || k == 0) continue;
      const auto of_component = static_cast<std::uint32_t>(component);
      if (side_[op.index()] == Side::kAfter) {
        after_[component] += k;
        tails_after_.push_back({least(ends_.q, op), of_component, k});
      } else if (side_[op.index()] == Side::kBefore) {
        before_[component] += k;
        heads_.push_back({least(ends_.b, op), of_component, k});
      }
    }
    for (std::vector<End>* const ends : {&heads_, &tails_after_})
      std::sort(ends->begin(), ends->end(),
                [](const End& a, const End& b) { return a.time < b.time; });
    Ns best = 0, best_share = kShares / 4;
    const auto attempt = [&](Ns share) {
      if (share <= 0 || share >= kShares) return;
      const Ns found = with_share(share);
      if (found > best) {
        best = found;
        best_share = share;
      }
    };
    for (const Ns share : {Ns{32}, Ns{64}, Ns{128}, Ns{256}, Ns{512}}) attempt(share);
    for (Ns step = best_share / 2; step > 1; step /= 2) {
      const Ns middle = best_share;
      attempt(middle - step);
      attempt(middle + step);
    }
    return best;
  }

  // `share` is the weight of the queue after the barrier. The work before it has the weight of
  // both, since both have to wait for the barrier.
  Ns with_share(Ns share) {
    const std::size_t sink = num_components_, arcs = num_components_ + pins_.size() + ropes_.size();
    if (visits_ < arcs) return 0;
    visits_ -= arcs;
    FlowNetwork network(num_components_ + 1 + 2 * ropes_.size());
    capacity_.resize(num_components_);
    for (std::size_t component = 0; component < num_components_; ++component) {
      capacity_[component] =
          never_[component] ? kNever
                            : kShares * before_[component] + (kShares - share) * after_[component];
      network.add(component, sink, capacity_[component]);  // arc 2 * component
    }
    arc_of_pin_.resize(pins_.size());
    std::size_t middle = sink + 1;
    for (const Rope& rope : ropes_) {
      const Ns c = share * rope.crossing;
      if (rope.num_pins == 1) {
        arc_of_pin_[rope.first] = {network.add(rope.producer, pins_[rope.first].component, c, c),
                                   false};
        continue;
      }
      // Whoever is on one side pays once for all on the other.
      network.add(middle, middle + 1, c);
      network.add(rope.producer, middle, kNever);
      network.add(middle + 1, rope.producer, kNever);
      for (std::size_t i = rope.first; i < rope.first + rope.num_pins; ++i) {
        arc_of_pin_[i] = {network.add(pins_[i].component, middle, kNever), true};
        network.add(middle + 1, pins_[i].component, kNever);
      }
      middle += 2;
    }
    const Ns flow = network.push(hub_, sink, visits_);
    const Ns barrier = barrier_.has_value() ? in_.k_min[barrier_->index()] : 0;
    removed_.assign(num_components_, 0);
    const Ns gained = gain(network, heads_, kShares) +
                      gain(network, tails_after_, kShares - share) + gain_by_tails(network, share);
    return barrier + ceil_divide(flow + gained, kShares);
  }

  // Leaves out the work next to an end of the step, as far as what is then known of the rest is
  // worth more than the flow that this takes away at most.
  Ns gain(const FlowNetwork& network, const std::vector<End>& ends, Ns weight) {
    tried_ = removed_;
    Ns best = 0, lost = 0;
    std::size_t left_out = 0;
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (weight * ends[i].time - lost > best) {
        best = weight * ends[i].time - lost;
        left_out = i;
      }
      lost += remove(network, ends[i], weight, tried_);
    }
    for (std::size_t i = 0; i < left_out; ++i) remove(network, ends[i], weight, removed_);
    return best;
  }

  Ns remove(const FlowNetwork& network, const End& end, Ns weight, std::vector<Ns>& removed) const {
    if (never_[end.component]) return 0;
    const Ns spare = capacity_[end.component] - network.flow(2 * std::size_t{end.component});
    const Ns lost = std::max<Ns>(0, removed[end.component] - spare);
    removed[end.component] += weight * end.k;
    return std::max<Ns>(0, removed[end.component] - spare) - lost;
  }

  // Leaves out readers of tensors that may be the last of the step, for the tail of the rest.
  Ns gain_by_tails(const FlowNetwork& network, Ns share) {
    tails_.clear();
    for (std::size_t i = 0; i < pins_.size(); ++i) {
      const auto& [arc, star] = arc_of_pin_[i];
      const Ns flow = star ? network.flow(arc) + network.flow(arc + 2)
                           : std::max(network.flow(arc), -network.flow(arc));
      if (flow > 0) tails_.emplace_back(pins_[i].tail, flow);
    }
    std::sort(tails_.begin(), tails_.end());
    Ns best = 0, lost = 0;
    for (const auto& [tail, flow] : tails_) {
      best = std::max(best, share * tail - lost);
      lost += flow;
    }
    return best;
  }

  // A head or tail on the best type: what holds of the barrier, too, wherever the operator is.
  Ns least(const std::vector<Ns>& ends, OpId op) const {
    const auto first = ends.begin() + static_cast<std::ptrdiff_t>(op.index() * in_.num_types());
    return *std::min_element(first, first + static_cast<std::ptrdiff_t>(in_.num_types()));
  }

  enum class Side : std::uint8_t { kNeither, kBefore, kAfter };
  struct Rope {  // a tensor that ties its producer to those who read it
    std::uint32_t producer;
    std::size_t first, num_pins;
    Ns crossing;
  };
  struct PinArc {
    std::size_t arc;
    bool star;  // one of several readers
  };

  const Relaxation& in_;
  const HeadsTails& ends_;
  const IdVector<OpId, UnitId>& of_;
  const std::size_t num_components_;
  std::uint32_t hub_ = 0;
  Ns crossing_ = 0;
  std::optional<OpId> barrier_;
  std::vector<Side> side_;
  std::vector<Pin> readers_, pins_;
  std::vector<Rope> ropes_;
  std::size_t visits_ = kMostVisits;  // of arcs, that are still to be spent

  // For the type in hand, by component; and the heads of what is before the barrier and the
  // tails of what is after it, ascending.
  std::vector<Ns> before_, after_, capacity_, removed_, tried_;
  std::vector<bool> never_;
  std::vector<End> heads_, tails_after_;
  std::vector<PinArc> arc_of_pin_;
  std::vector<std::pair<Ns, Ns>> tails_;
};

}  // namespace

Ns hub(const Relaxation& relaxed, const HeadsTails& ends, const Components& together, Ns known) {
  return Hub(relaxed, ends, together).run(known);
}

}  // namespace baechi::bounds
