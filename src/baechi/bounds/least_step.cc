// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/least_step.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "baechi/graph/unroll.h"

namespace baechi {
namespace {

struct SharesDevice {
  std::vector<OpId> ops;
  std::optional<Time> before, after;  // the shortest of its members' longest paths
};

class LeastStep {
 public:
  LeastStep(const CostModel& costs, std::uint32_t micro_batches)
      : costs_(costs),
        graph_(costs.graph()),
        micro_batches_(micro_batches),
        once_(once_per_step(graph_)) {
    std::vector<bool> seen(costs.num_classes(), false);
    for (const DeviceId device : costs.cluster().devices()) {
      const std::size_t like = costs.class_of(device).index();
      if (!seen[like]) classes_.push_back(device);
      seen[like] = true;
      speeds_ += speed(device);
    }
  }

  std::optional<Time> bound() const {
    Time longest;
    double load = 0;
    const std::optional<std::vector<SharesDevice>> all = sharing_devices();
    if (!all.has_value()) return std::nullopt;
    for (const SharesDevice& each : *all) {
      std::optional<Time> shortest;
      std::optional<double> least;  // of any parts of the work that add up to one
      for (const DeviceId device : classes_) {
        const std::optional<Time> work = work_on(device, each.ops);
        if (!work.has_value()) continue;
        shortest = std::min(shortest.value_or(*work), *work);
        const double part = speed(device) / speeds_ * static_cast<double>(work->count());
        least = std::min(least.value_or(part), part);
      }
      if (!shortest.has_value()) return std::nullopt;
      longest = std::max(longest, *each.before + *shortest + *each.after);
      load += *least;
    }
    constexpr double kRounding = 1 - 1e-9;  // more than the sum can be off
    return std::max(longest, Time(static_cast<std::int64_t>(load * kRounding)));
  }

 private:
  double speed(DeviceId device) const {
    return static_cast<double>(costs_.cluster()[device].speed.count());
  }

  std::optional<Time> work_on(DeviceId device, const std::vector<OpId>& ops) const {
    Time work;
    for (const OpId op : ops) {
      const std::optional<Time> time = costs_.compute_time(op, device);
      if (!time.has_value()) return std::nullopt;
      work += *time * (once_[op] ? 1 : micro_batches_);
    }
    return work;
  }

  // Nothing where an operator can run nowhere.
  std::optional<std::vector<SharesDevice>> sharing_devices() const {
    IdVector<OpId, Time> least(graph_.num_ops()), before = least, after = least;
    for (const OpId op : graph_.ops()) {
      std::optional<Time> shortest;
      for (const DeviceId device : classes_)
        if (const auto time = costs_.compute_time(op, device))
          shortest = std::min(shortest.value_or(*time), *time);
      if (!shortest.has_value()) return std::nullopt;
      least[op] = *shortest;
    }
    const auto order = graph_.topological_order();
    for (const OpId op : order)
      for (const Edge& edge : graph_.out_edges(op))
        before[edge.to] = std::max(before[edge.to], before[op] + least[op]);
    for (std::size_t i = order.size(); i-- > 0;)
      for (const Edge& edge : graph_.out_edges(order[i]))
        after[order[i]] = std::max(after[order[i]], least[edge.to] + after[edge.to]);
    std::vector<SharesDevice> result(graph_.num_groups());
    for (const OpId op : graph_.ops()) {
      const std::optional<GroupId> group = graph_[op].group;
      SharesDevice& own = group.has_value() ? result[group->index()] : result.emplace_back();
      own.ops.push_back(op);
      own.before = std::min(own.before.value_or(before[op]), before[op]);
      own.after = std::min(own.after.value_or(after[op]), after[op]);
    }
    return result;
  }

  const CostModel& costs_;
  const OpGraph& graph_;
  const std::int64_t micro_batches_;
  const IdVector<OpId, bool> once_;
  std::vector<DeviceId> classes_;  // one device of each
  double speeds_ = 0;              // of all devices together
};

}  // namespace

std::optional<Time> least_step(const CostModel& micro_batch, std::uint32_t micro_batches) {
  return LeastStep(micro_batch, micro_batches).bound();
}

}  // namespace baechi
