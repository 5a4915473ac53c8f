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
  std::unordered_set<std::string_view> names;
  for (const DeviceId device : kept) {
    spec.devices.push_back(cluster[device]);
    names.insert(cluster[device].name);
  }
  std::erase_if(spec.links, [&](const LinkRule& rule) {
    return rule.scope == LinkScope::kPair &&
           !(names.contains(rule.from) && names.contains(rule.to));
  });
  return spec;
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

}  // namespace baechi
