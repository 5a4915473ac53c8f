// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/replica_sets.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace baechi {
namespace {

// Divides devices of one class, neighbours first, and then what is left of all classes.
class ReplicaSets {
 public:
  ReplicaSets(const Cluster& cluster, std::uint32_t count) : cluster_(cluster), count_(count) {
    for (const DeviceId device : cluster.devices()) {
      const auto like = std::ranges::find_if(classes_, [&](const std::vector<DeviceId>& all) {
        return rank(all.front()) == rank(device);
      });
      if (like != classes_.end())
        like->push_back(device);
      else
        classes_.push_back({device});
    }
  }

  ReplicaDevices divide(bool neighbours_in_a_set) const {
    std::vector<std::vector<DeviceId>> positions;
    std::vector<DeviceId> left;
    for (const std::vector<DeviceId>& all : classes_) {
      const std::size_t each = all.size() / count_;
      for (std::size_t i = 0; i < each; ++i) {
        std::vector<DeviceId>& position = positions.emplace_back();
        for (std::size_t r = 0; r < count_; ++r)
          position.push_back(neighbours_in_a_set ? all[r * each + i] : all[i * count_ + r]);
      }
      left.insert(left.end(), all.begin() + static_cast<std::ptrdiff_t>(each * count_), all.end());
    }
    std::ranges::stable_sort(left, [&](DeviceId a, DeviceId b) { return rank(a) > rank(b); });
    for (std::size_t first = 0; first + count_ <= left.size();) {
      const auto begin = left.begin() + static_cast<std::ptrdiff_t>(first);
      if (cluster_[left[first]].kind != cluster_[left[first + count_ - 1]].kind) {
        ++first;  // of one kind there are fewer
        continue;
      }
      positions.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(count_));
      first += count_;
    }
    std::ranges::stable_sort(positions);
    ReplicaDevices sets(count_);
    for (const std::vector<DeviceId>& position : positions)
      for (std::size_t r = 0; r < count_; ++r) sets[r].push_back(position[r]);
    return sets;
  }

 private:
  std::tuple<std::string_view, Speed, Bytes> rank(DeviceId device) const {
    const Device& data = cluster_[device];
    return {data.kind, data.speed, data.capacity};
  }

  const Cluster& cluster_;
  const std::size_t count_;
  std::vector<std::vector<DeviceId>> classes_;
};

}  // namespace

std::vector<ReplicaDevices> replica_sets(const Cluster& cluster, std::uint32_t replicas) {
  const ReplicaSets sets(cluster, replicas);
  std::vector<ReplicaDevices> ways{sets.divide(true)};
  if (ways.front().front().empty()) return {};
  if (cluster.links().size() == 1) return ways;
  ReplicaDevices other = sets.divide(false);
  if (other != ways.front()) ways.push_back(std::move(other));
  return ways;
}

Cluster cluster_of_one(const Cluster& cluster, const ReplicaDevices& sets, Bytes less) {
  ClusterSpec spec = cluster.spec();
  spec.devices.clear();
  const auto gone = [&](const std::string& name) {
    return !name.empty() && std::ranges::none_of(sets.front(), [&](DeviceId device) {
      return cluster[device].name == name;
    });
  };
  std::erase_if(spec.links, [&](const LinkRule& rule) {
    return rule.scope == LinkScope::kPair && (gone(rule.from) || gone(rule.to));
  });
  for (std::size_t i = 0; i < sets.front().size(); ++i) {
    Device device = cluster[sets.front()[i]];
    for (const std::vector<DeviceId>& set : sets) {
      device.speed = std::min(device.speed, cluster[set[i]].speed);
      device.capacity = std::min(device.capacity, cluster[set[i]].capacity);
    }
    device.capacity = device.capacity > less ? device.capacity - less : Bytes(1);
    spec.devices.push_back(std::move(device));
  }
  return Cluster(std::move(spec));
}

}  // namespace baechi
