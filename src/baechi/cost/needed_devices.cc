// SPDX-License-Identifier: Apache-2.0
#include "baechi/cost/needed_devices.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "baechi/base/assert.h"

namespace baechi {
namespace {

// Exchanging the two changes nothing but names. Equal links are one object.
bool exchangeable(const CostModel& costs, DeviceId a, DeviceId b) {
  const Cluster& cluster = costs.cluster();
  if (costs.class_of(a) != costs.class_of(b) || cluster[a].capacity != cluster[b].capacity ||
      &cluster.link(a, b) != &cluster.link(b, a))
    return false;
  if (cluster.links().size() == 1) return true;
  const IdRange<DeviceId> devices = cluster.devices();
  return std::all_of(devices.begin(), devices.end(), [&](DeviceId other) {
    return other == a || other == b ||
           (&cluster.link(a, other) == &cluster.link(b, other) &&
            &cluster.link(other, a) == &cluster.link(other, b));
  });
}

ClusterSpec spec_of(const Cluster& cluster, const IdVector<DeviceId, DeviceId>& kept) {
  ClusterSpec spec = cluster.spec();
  spec.devices.clear();
  std::unordered_set<std::string_view> names, kinds;
  for (const DeviceId device : kept) {
    spec.devices.push_back(cluster[device]);
    names.insert(cluster[device].name);
    kinds.insert(cluster[device].kind);
  }
  std::erase_if(spec.links, [&](const LinkRule& rule) {
    const auto& ends = rule.scope == LinkScope::kPair ? names : kinds;
    return (rule.scope == LinkScope::kPair || rule.scope == LinkScope::kKinds) &&
           !(ends.contains(rule.from) && ends.contains(rule.to));
  });
  return spec;
}

// What all operators take on a device of each class; absent where one cannot run there.
std::vector<std::optional<Time>> work_of_classes(const CostModel& costs) {
  std::vector<std::optional<Time>> work(costs.num_classes(), Time(0));
  for (std::size_t c = 0; c < work.size(); ++c)
    for (const std::optional<Time>& time : costs.class_times(DeviceClassId(c))) {
      if (!time.has_value()) {
        work[c].reset();
        break;
      }
      *work[c] += *time;
    }
  return work;
}

}  // namespace

NeededDevices::NeededDevices(const CostModel& costs, IdVector<DeviceId, DeviceId> kept,
                             std::vector<DeviceId> stand_ins)
    : kept_(std::move(kept)),
      stand_ins_(std::move(stand_ins)),
      cluster_(spec_of(costs.cluster(), kept_)),
      costs_(costs.graph(), cluster_) {}

std::unique_ptr<const NeededDevices> NeededDevices::of(const CostModel& costs) {
  return first_of_each_run(costs, std::max(kFew, costs.graph().num_ops()));
}

std::unique_ptr<const NeededDevices> NeededDevices::first_of_each_run(const CostModel& costs,
                                                                      std::size_t most) {
  BAECHI_ASSERT(most >= 2, "the links within a run are links of the small cluster");
  const std::size_t count = costs.cluster().num_devices();
  if (count <= most) return nullptr;
  IdVector<DeviceId, bool> pinned_to(count);
  if (costs.has_pins())
    for (const OpId op : costs.graph().ops())
      if (const auto device = costs.pin(op)) pinned_to[*device] = true;

  IdVector<DeviceId, DeviceId> kept;
  std::vector<DeviceId> stand_ins;
  std::optional<DeviceId> first;  // of the run
  std::size_t length = 0;
  for (const DeviceId device : costs.cluster().devices()) {
    if (!first.has_value() || pinned_to[device] || pinned_to[*first] ||
        !exchangeable(costs, *first, device)) {
      first = device;
      length = 0;
    }
    if (length++ < most) kept.push_back(device);
    if (length == most + 1) stand_ins.emplace_back(kept.size() - 1);
  }
  if (kept.size() == count) return nullptr;
  return std::unique_ptr<const NeededDevices>(
      new NeededDevices(costs, std::move(kept), std::move(stand_ins)));
}

std::vector<std::unique_ptr<const NeededDevices>> NeededDevices::of_faster_classes(
    const CostModel& costs) {
  std::vector<std::unique_ptr<const NeededDevices>> result;
  if (costs.num_classes() < 2 || costs.has_pins()) return result;
  const std::vector<std::optional<Time>> work = work_of_classes(costs);
  std::vector<std::size_t> classes;  // that run everything, the fastest first
  for (std::size_t c = 0; c < work.size(); ++c)
    if (work[c].has_value()) classes.push_back(c);
  std::ranges::stable_sort(classes, {}, [&](std::size_t c) { return *work[c]; });
  if (classes.empty()) return result;
  const auto add = [&](std::size_t count) {
    std::vector<bool> is_kept(costs.num_classes());
    for (std::size_t i = 0; i < count; ++i) is_kept[classes[i]] = true;
    IdVector<DeviceId, DeviceId> kept;
    for (const DeviceId device : costs.cluster().devices())
      if (is_kept[costs.class_of(device).index()]) kept.push_back(device);
    result.emplace_back(new NeededDevices(costs, std::move(kept), {}));
  };
  add(1);
  if (classes.size() > 2) add(classes.size() - 1);
  return result;
}

PlacedGraph NeededDevices::on_all(PlacedGraph placed, std::size_t num_devices) const {
  for (DeviceId& device : placed.device) device = original(device);
  if (!placed.order.has_value()) return placed;
  DeviceOrder order(num_devices);
  for (const DeviceId device : placed.order->keys())
    order[original(device)] = std::move((*placed.order)[device]);
  placed.order = std::move(order);
  return placed;
}

}  // namespace baechi
