// SPDX-License-Identifier: Apache-2.0
// Beyond the paper: earliest finish by upward rank, HEFT (Topcuoglu, Hariri and Wu 2002), for
// devices that are not equal. m-ETF takes the operator that can start first; this one the operator
// that most waits for, wherever it is done first, into a gap if one is left. A plan that would run
// out of memory gives way to one with an account of what is held.
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/place/allowed_devices.h"
#include "baechi/place/list/believed_memory.h"
#include "baechi/place/list/heft_by_account.h"
#include "baechi/place/list/suppliers.h"
#include "baechi/place/list/transfer_times.h"
#include "baechi/place/placer.h"
#include "baechi/simulate/execution_simulator.h"

namespace baechi {
namespace {

// What a tensor takes between two devices in the mean of all pairs, in nanoseconds.
class MeanTransfer {
 public:
  explicit MeanTransfer(const Cluster& cluster) {
    constexpr Bytes kMany{std::int64_t{1} << 30};
    const auto links = cluster.links();
    if (links.empty()) return;
    double many = 0;
    for (const Link& link : links) {
      latency_ += static_cast<double>(link.transfer_time(Bytes(0)).count());
      many += static_cast<double>(link.transfer_time(kMany).count());
    }
    per_byte_ = (many - latency_) / static_cast<double>(kMany.count() * std::int64_t(links.size()));
    latency_ /= static_cast<double>(links.size());
  }
  double operator()(Bytes size) const {
    return latency_ + per_byte_ * static_cast<double>(size.count());
  }

 private:
  double latency_ = 0, per_byte_ = 0;
};

// The longest way from an operator to the end of the step, in the mean of all devices and links.
IdVector<OpId, double> upward_ranks(const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  const MeanTransfer mean_transfer(costs.cluster());
  std::vector<std::size_t> devices(costs.num_classes());
  for (const DeviceId device : costs.cluster().devices()) ++devices[costs.class_of(device).index()];
  IdVector<OpId, double> rank(graph.num_ops());
  const auto order = graph.topological_order();
  for (std::size_t i = order.size(); i-- > 0;) {
    const OpId op = order[i];
    double after = 0, work = 0;
    std::size_t count = 0;
    for (const Edge& edge : graph.out_edges(op))
      after = std::max(
          after,
          rank[edge.to] + (edge.tensor.has_value() ? mean_transfer(graph.size(*edge.tensor)) : 0));
    for (std::size_t c = 0; c < devices.size(); ++c)
      if (const auto time = costs.class_times(DeviceClassId(c))[op]) {
        work += static_cast<double>(time->count()) * static_cast<double>(devices[c]);
        count += devices[c];
      }
    rank[op] = after + (count > 0 ? work / static_cast<double>(count) : 0);
  }
  return rank;
}

// Parents go first: they have at least the rank of their children, and the earlier place.
std::vector<OpId> by_rank(const CostModel& costs, const IdVector<OpId, double>& rank) {
  const auto order = costs.graph().topological_order();
  std::vector<OpId> sorted(order.begin(), order.end());
  std::ranges::stable_sort(sorted, [&](OpId a, OpId b) { return rank[a] > rank[b]; });
  return sorted;
}

constexpr std::ptrdiff_t kMostGaps = 1024;  // that are looked at for one operator

class Heft {
 public:
  Heft(const CostModel& costs, const AllowedDevices& allowed, const PlaceOptions& options,
       const IdVector<OpId, double>& rank)
      : costs_(costs),
        graph_(costs.graph()),
        allowed_(allowed),
        options_(options),
        order_(by_rank(costs, rank)),
        transfer_times_(costs),
        memory_(costs, options.memory, options.headroom),
        supplier_(find_suppliers(costs)),
        slots_(graph_.num_ops()),
        group_device_(graph_.num_groups()),
        lines_(costs.cluster().num_devices()) {}

  PlaceResult run() {
    for (const bool suppliers : {false, true})  // of what reads them, then those that nobody reads
      for (const OpId op : order_) {
        if (supplier_[op] != suppliers || slots_[op].placed) continue;
        const std::optional<DeviceId> device = best_device(op);
        if (!device.has_value()) return DoesNotFit{op, least_short_.value_or(Bytes(0))};
        place(op, *device);
        if (++decisions_ % 1024 == 0) throw_if_cancelled(options_.cancel);
      }
    return take();
  }

 private:
  struct Slot {
    Time end;
    DeviceId device{0};
    bool placed = false;
  };
  struct Busy {  // a device, with an operator
    Time start, end;
    OpId op;
  };
  struct Gap {
    std::size_t before;  // what is there already, and comes after it
    Time start;
  };

  bool opens_group(OpId op) const {
    const auto group = graph_[op].group;
    return group.has_value() && !group_device_[*group].has_value();
  }

  std::optional<DeviceId> decided(OpId op) const {
    if (const auto group = graph_[op].group; group.has_value() && group_device_[*group].has_value())
      return group_device_[*group];
    if (const auto pin = costs_.pin(op)) return pin;
    if (options_.home != nullptr && allowed_(op, (*options_.home)[op])) return (*options_.home)[op];
    return std::nullopt;
  }

  // When the inputs are there. Suppliers that are to be placed come along, and take their time.
  Time ready(OpId op, DeviceId device) const {
    Time at, work;
    for (const Edge& edge : graph_.in_edges(op)) {
      const Slot& parent = slots_[edge.from];
      if (!parent.placed) {
        work += costs_.compute_time(edge.from, device).value_or(Time(0));
        continue;
      }
      Time arrival = parent.end;
      if (parent.device != device && edge.tensor.has_value())
        arrival += transfer_times_(*edge.tensor, parent.device, device);
      at = std::max(at, arrival);
    }
    return std::max(at, work);
  }

  // The first time that a device has nothing else to do for so long.
  Gap gap(DeviceId device, Time ready, Time takes) const {
    const std::vector<Busy>& line = lines_[device];
    const auto first = std::partition_point(line.begin(), line.end(),
                                            [&](const Busy& busy) { return busy.end <= ready; });
    Time start = ready;
    const auto last = line.end() - first > kMostGaps ? first + kMostGaps : line.end();
    for (auto next = first; next != last; ++next) {
      if (start + takes <= next->start)
        return {static_cast<std::size_t>(next - line.begin()), start};
      start = std::max(start, next->end);
    }
    return {line.size(), last == line.end() ? start : std::max(start, line.back().end)};
  }

  Bytes overrun(OpId op, DeviceId device) const {
    Bytes copies;
    for (const Edge& edge : graph_.in_edges(op))
      if (edge.tensor.has_value() && slots_[edge.from].placed && slots_[edge.from].device != device)
        copies += graph_.size(*edge.tensor);
    return memory_.overrun({op, device, copies, opens_group(op), !decided(op).has_value()});
  }

  std::optional<DeviceId> best_device(OpId op) {
    const std::optional<DeviceId> only = decided(op);
    std::optional<DeviceId> best;
    std::optional<Time> earliest;
    least_short_.reset();
    for (const DeviceId device : costs_.cluster().devices()) {
      if (!allowed_(op, device) || only.value_or(device) != device) continue;
      if (!memory_.ample()) {
        const Bytes over = overrun(op, device);
        if (over > Bytes(0)) {
          least_short_ = std::min(least_short_.value_or(over), over);
          continue;
        }
      }
      const Time takes = *costs_.compute_time(op, device);
      const Time end = gap(device, ready(op, device), takes).start + takes;
      if (earliest.has_value() && end >= *earliest) continue;
      earliest = end;
      best = device;
    }
    return best;
  }

  void place(OpId op, DeviceId device) {
    for (const Edge& edge : graph_.in_edges(op))
      if (!slots_[edge.from].placed) place_supplier(edge.from, device);
    const Time takes = *costs_.compute_time(op, device);
    const Gap found = gap(device, ready(op, device), takes);
    std::vector<Busy>& line = lines_[device];
    line.insert(line.begin() + static_cast<std::ptrdiff_t>(found.before),
                {found.start, found.start + takes, op});
    slots_[op] = {found.start + takes, device, true};
    const bool opens = opens_group(op);
    if (opens) group_device_[*graph_[op].group] = device;
    if (memory_.ample()) return;
    memory_.take(op, device, opens);
    // Outputs of a step come and go: what stays is what counts, unless all of it is reserved.
    memory_.free_later(device, Time(0), graph_.output_bytes(op));
    memory_.advance(device, Time(0));
  }

  void place_supplier(OpId op, DeviceId reader) {
    const DeviceId wanted = decided(op).value_or(reader);
    if (allowed_(op, wanted)) return place(op, wanted);
    const auto devices = costs_.cluster().devices();
    place(op, *std::find_if(devices.begin(), devices.end(),
                            [&](DeviceId device) { return allowed_(op, device); }));
  }

  PlacedGraph take() const {
    Placement placement;
    placement.reserve(graph_.num_ops());
    for (const Slot& slot : slots_) placement.push_back(slot.device);
    DeviceOrder order(lines_.size());
    for (const DeviceId device : order.keys())
      for (const Busy& busy : lines_[device]) order[device].push_back(busy.op);
    return {std::move(placement), std::move(order)};
  }

  const CostModel& costs_;
  const OpGraph& graph_;
  const AllowedDevices& allowed_;
  const PlaceOptions& options_;
  const std::vector<OpId> order_;
  TransferTimes transfer_times_;
  BelievedMemory memory_;
  IdVector<OpId, bool> supplier_;
  IdVector<OpId, Slot> slots_;
  IdVector<GroupId, std::optional<DeviceId>> group_device_;
  IdVector<DeviceId, std::vector<Busy>> lines_;
  std::optional<Bytes> least_short_;
  std::size_t decisions_ = 0;
};

}  // namespace

PlaceResult place_heft(const CostModel& costs, const PlaceOptions& options) {
  const AllowedDevices allowed(costs);
  if (const auto op = allowed.first_impossible()) return DoesNotFit{*op, Bytes(0)};
  const IdVector<OpId, double> rank = upward_ranks(costs);
  PlaceResult result = Heft(costs, allowed, options, rank).run();
  const auto* placed = std::get_if<PlacedGraph>(&result);
  if (placed != nullptr &&
      !find_overflow(simulate(costs, *placed, {.cancel = options.cancel}), costs.cluster()))
    return result;
  PlaceResult other = place_heft_by_account(costs, allowed, options, rank);
  return placed != nullptr && std::holds_alternative<DoesNotFit>(other) ? result : other;
}

}  // namespace baechi
