// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/exact/exact.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <queue>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/bounds/lower_bounds.h"
#include "baechi/place/exact/exact_instance.h"
#include "baechi/place/exact/order_search.h"
#include "baechi/place/exact/placement_bound.h"
#include "baechi/place/placer.h"
#include "baechi/simulate/simulator.h"

namespace baechi {
namespace {

using exact::DeviceSet;
using exact::Index;
using exact::Ns;
using exact::only;
using Domains = std::vector<DeviceSet>;  // [unit]

// What narrowing the domains of one node costs, in operators looked at.
constexpr std::int64_t kBoundWork = 5;
// Open nodes that are kept at once; one takes 4 bytes for every unit, and some.
constexpr std::size_t kMostOpen = 2'000'000;

bool fits(const StepSummary& step, const Cluster& cluster) {
  return std::ranges::all_of(cluster.devices(), [&](DeviceId device) {
    return step.peaks[device] <= cluster[device].capacity;
  });
}

class Search {
 public:
  Search(const CostModel& costs, const exact::Instance& instance, const ExactOptions& options,
         ExactResult& result)
      : costs_(costs),
        in_(instance),
        options_(options),
        result_(result),
        simulator_(costs),
        bound_(instance),
        orders_(instance) {}

  void run() {
    push(root());
    while (!open_.empty() && open_.top().bound < limit()) {
      const Entry entry = open_.top();
      if (must_stop()) return settle(entry.bound);
      open_.pop();
      const Node node = nodes_[entry.node];
      Domains domains = take(entry.node);
      if (!node.branch.has_value() ? !search_orders(domains) : !expand(node, domains))
        return settle(open_.empty() ? entry.bound : std::min(entry.bound, open_.top().bound));
    }
    result_.complete = true;
    if (result_.placed.has_value()) result_.bound = result_.makespan;
  }

 private:
  struct Node {
    std::optional<Index> branch;  // the unit to decide next; none: all are decided
    DeviceSet used = 0;           // devices that a unit was decided for
    Index decided = 0;
  };
  struct Entry {
    Ns bound;
    Index decided;
    Index node;

    // The top of the queue is the most promising; of these, the one that is decided furthest.
    friend bool operator<(const Entry& a, const Entry& b) {
      if (a.bound != b.bound) return a.bound > b.bound;
      return a.decided != b.decided ? a.decided < b.decided : a.node > b.node;
    }
  };

  Ns limit() const { return result_.placed.has_value() ? result_.makespan.count() : exact::kNever; }

  // Stopped where every plan not seen takes `open` or more.
  void settle(Ns open) {
    result_.bound = std::max(result_.bound, Time(std::min(open, limit())));
    result_.cancelled = options_.cancel != nullptr && options_.cancel->requested();
  }

  bool must_stop() const {
    return result_.work >= options_.work || open_.size() >= kMostOpen ||
           (options_.any && result_.placed.has_value()) ||
           (options_.cancel != nullptr && options_.cancel->requested());
  }

  std::pair<Node, Domains> root() const {
    Domains domains;
    for (const exact::Instance::Unit& unit : in_.units) domains.push_back(unit.devices);
    return {Node{}, std::move(domains)};
  }

  // Narrows the domains, and keeps the node if a better plan may be in it.
  void push(std::pair<Node, Domains> child) {
    auto& [node, domains] = child;
    result_.work += kBoundWork * static_cast<std::int64_t>(in_.num_ops);
    if (std::ranges::any_of(domains, [](DeviceSet set) { return set == 0; })) return;
    const Ns bound = bound_.tighten(domains, limit());
    if (bound >= limit()) return;
    node.branch = choose_unit(domains);
    if (free_.empty()) {
      free_.push_back(static_cast<Index>(nodes_.size()));
      nodes_.emplace_back();
      domains_.resize(domains_.size() + in_.units.size());
    }
    const Index at = free_.back();
    free_.pop_back();
    nodes_[at] = node;
    std::ranges::copy(domains, domains_.begin() + first(at));
    open_.push({bound, node.decided, at});
  }

  Domains take(Index node) {
    free_.push_back(node);
    return {domains_.begin() + first(node), domains_.begin() + first(node + 1)};
  }
  std::ptrdiff_t first(Index node) const {
    return static_cast<std::ptrdiff_t>(node * in_.units.size());
  }

  // The first undecided unit along the graph: its neighbors are decided already, so that it makes
  // the bounds rise soonest.
  std::optional<Index> choose_unit(const Domains& domains) const {
    for (const Index op : in_.order)
      if (!std::has_single_bit(domains[in_.unit_of[op]])) return in_.unit_of[op];
    return std::nullopt;
  }

  bool expand(const Node& node, const Domains& domains) {
    for (DeviceSet left = domains[*node.branch]; left != 0; left &= left - 1) {
      const auto device = static_cast<std::size_t>(std::countr_zero(left));
      // Of twins that nothing was decided for, one stands for all.
      if ((node.used & only(device)) == 0 &&
          (in_.twins[device] & ~node.used & (only(device) - 1) & domains[*node.branch]) != 0)
        continue;
      if (must_stop()) return false;
      Domains child = domains;
      child[*node.branch] = only(device);
      push({Node{{}, node.used | only(device), node.decided + 1}, std::move(child)});
    }
    return true;
  }

  // All decided: the best order. False when stopped.
  bool search_orders(const Domains& domains) {
    std::vector<Index> device;
    for (const Index unit : in_.unit_of)
      device.push_back(static_cast<Index>(std::countr_zero(domains[unit])));
    return std::ranges::all_of(relabelled(device), [&](const std::vector<Index>& labels) {
      std::vector<Index> placed;
      Domains decided(in_.units.size());
      for (std::size_t op = 0; op < in_.num_ops; ++op) {
        placed.push_back(labels[device[op]]);
        decided[in_.unit_of[op]] = only(placed.back());
      }
      if (bound_.tighten(decided, limit()) >= limit()) return true;
      return orders_.run(
          placed, bound_.tails(), limit(),
          [&](const PlacedGraph& plan, Ns makespan) { return offer(plan, makespan); },
          [&] {
            result_.work += static_cast<std::int64_t>(in_.num_ops);
            return must_stop();
          });
    });
  }

  // Exchanging twins changes nothing, except that one tensor for several of them is requested in
  // the order of their ids: the ways to name the devices of a placement that differ in that.
  std::vector<std::vector<Index>> relabelled(const std::vector<Index>& device) const {
    std::vector<Index> labels(in_.num_devices);
    std::iota(labels.begin(), labels.end(), Index{0});
    std::vector<std::vector<Index>> result{labels};
    if (in_.num_queues == 0) return result;
    std::vector<std::pair<Index, Index>> rivals;  // twins that one tensor goes to
    DeviceSet involved = 0;
    for (const exact::Instance::Tensor& tensor : in_.tensors) {
      DeviceSet reached = 0;
      for (const Index reader : tensor.readers) reached |= only(device[reader]);
      reached &= ~only(device[tensor.producer]);
      for (Index a = 0; a < in_.num_devices; ++a)
        for (Index b = a + 1; b < in_.num_devices; ++b)
          if ((reached & only(a)) != 0 && (reached & in_.twins[a] & only(b)) != 0) {
            rivals.emplace_back(a, b);
            involved |= only(a) | only(b);
          }
    }
    if (rivals.empty()) return result;
    std::vector<Index> movable;
    for (Index d = 0; d < in_.num_devices; ++d)
      if ((involved & only(d)) != 0) movable.push_back(d);
    std::set<std::vector<bool>> seen;
    std::vector<Index> image = movable;
    result.clear();
    do {
      bool allowed = true;
      for (std::size_t i = 0; i < movable.size(); ++i) {
        labels[movable[i]] = image[i];
        allowed =
            allowed && (image[i] == movable[i] || (in_.twins[movable[i]] & only(image[i])) != 0);
      }
      if (!allowed) continue;
      std::vector<bool> sooner;
      for (const auto& [a, b] : rivals) sooner.push_back(labels[a] < labels[b]);
      if (seen.insert(std::move(sooner)).second) result.push_back(labels);
    } while (std::next_permutation(image.begin(), image.end()));
    return result;
  }

  bool offer(const PlacedGraph& plan, Ns makespan) {
    const StepSummary& step = simulator_.run(plan);
    BAECHI_ASSERT(step.makespan == Time(makespan), "the search plays by the simulator's rules");
    if (!fits(step, costs_.cluster())) return false;
    result_.placed = plan;
    result_.makespan = step.makespan;
    return true;
  }

  const CostModel& costs_;
  const exact::Instance& in_;
  const ExactOptions& options_;
  ExactResult& result_;
  Simulator simulator_;
  exact::PlacementBound bound_;
  exact::OrderSearch orders_;
  std::priority_queue<Entry> open_;
  std::vector<Node> nodes_;
  std::vector<DeviceSet> domains_;  // of all nodes, one after the other
  std::vector<Index> free_;         // nodes that are taken off
};

}  // namespace

bool is_searchable(const CostModel& costs) { return exact::tabulate(costs).has_value(); }

ExactResult solve_exactly(const CostModel& costs, const ExactOptions& options) {
  ExactResult result;
  if (options.start != nullptr) {
    Simulator simulator(costs);
    const StepSummary& step = simulator.run(*options.start);
    if (fits(step, costs.cluster())) {
      result.placed = *options.start;
      result.makespan = step.makespan;
    }
  }
  const std::vector<NamedBound> bounds = lower_bounds(costs);
  if (!bounds.empty()) result.bound = bounds.front().value;
  if (result.placed.has_value() && result.bound >= result.makespan) {
    result.complete = true;
    return result;
  }
  const std::optional<exact::Instance> instance = exact::tabulate(costs, options.sequence);
  if (instance.has_value()) Search(costs, *instance, options, result).run();
  return result;
}

// From the best plan of the other placers, as far as the work goes.
PlaceResult place_exact(const CostModel& costs, const PlaceOptions& options) {
  std::optional<PlacedGraph> start;
  Time makespan;
  Simulator simulator(costs);
  std::optional<DoesNotFit> misfit;
  for (const Placer placer :
       {place_m_etf, place_m_sct, place_m_topo, place_chain, place_partition, place_single}) {
    PlaceResult found = placer(costs, options);
    if (auto* placed = std::get_if<PlacedGraph>(&found)) {
      const StepSummary& step = simulator.run(*placed);
      if (!fits(step, costs.cluster()) || (start.has_value() && step.makespan >= makespan))
        continue;
      makespan = step.makespan;
      start = std::move(*placed);
    } else if (!misfit.has_value()) {
      misfit = std::get<DoesNotFit>(found);
    }
  }
  ExactResult result = solve_exactly(costs, {.work = options.exact_work,
                                             .start = start.has_value() ? &*start : nullptr,
                                             .cancel = options.cancel});
  if (result.cancelled) throw Cancelled();
  if (result.placed.has_value()) return *std::move(result.placed);
  return misfit.value_or(DoesNotFit{OpId(0), Bytes(0)});
}

}  // namespace baechi
