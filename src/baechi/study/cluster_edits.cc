// SPDX-License-Identifier: Apache-2.0
#include "baechi/study/cluster_edits.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/base/wide.h"

namespace baechi {
namespace {

constexpr std::string_view kCpu = "cpu";

bool names_device(const LinkRule& rule, const std::string& name) {
  return rule.scope == LinkScope::kPair && (rule.from == name || rule.to == name);
}

// "gpu:3" after "gpu:2"; else the name with a number.
std::string free_name(const ClusterSpec& spec, const std::string& like) {
  const std::size_t colon = like.rfind(':');
  const std::string stem = like.substr(0, colon == std::string::npos ? like.size() : colon) + ":";
  for (std::size_t number = 0;; ++number) {
    std::string name = stem + std::to_string(number);
    if (std::none_of(spec.devices.begin(), spec.devices.end(),
                     [&](const Device& device) { return device.name == name; }))
      return name;
  }
}

std::int64_t scaled_down(std::int64_t value, Factor factor, const char* quantity) {
  if (factor.count() < 1)
    throw InputError(std::string(quantity) + " times 0 is none: give a factor above 0");
  const std::int64_t up = scale_up(value, factor.count(), kFullSpeed.count(), quantity);
  const bool exact = WideInt{up} * kFullSpeed.count() == WideInt{value} * factor.count();
  return std::max<std::int64_t>(1, exact ? up : up - 1);
}

bool spans_hosts(const ClusterSpec& spec) {
  return std::any_of(spec.devices.begin(), spec.devices.end(), [&](const Device& device) {
    return device.host != spec.devices.front().host;
  });
}

}  // namespace

void check_tried_devices(std::size_t count) {
  if (count == 0) throw InputError("devices: a cluster has at least one, not 0");
  if (count > kMostTriedDevices)
    throw InputError("devices: at most " + std::to_string(kMostTriedDevices) +
                     " can be tried, not " + std::to_string(count));
}

ClusterSpec with_device_like(ClusterSpec spec, std::size_t like) {
  BAECHI_ASSERT(like < spec.devices.size(), "there is such a device");
  Device added = spec.devices[like];
  added.name = free_name(spec, added.name);
  const std::string& model = spec.devices[like].name;
  const std::vector<LinkRule> rules = spec.links;
  for (LinkRule rule : rules) {
    if (!names_device(rule, model)) continue;
    if (rule.from == model) rule.from = added.name;
    if (rule.to == model) rule.to = added.name;
    spec.links.push_back(std::move(rule));
  }
  spec.devices.push_back(std::move(added));
  return spec;
}

ClusterSpec without_device(ClusterSpec spec, std::size_t at) {
  BAECHI_ASSERT(at < spec.devices.size(), "there is such a device");
  const std::string name = spec.devices[at].name;
  spec.devices.erase(spec.devices.begin() + static_cast<std::ptrdiff_t>(at));
  std::erase_if(spec.links, [&](const LinkRule& rule) { return names_device(rule, name); });
  return spec;
}

ClusterSpec with_devices(ClusterSpec spec, std::size_t count) {
  BAECHI_ASSERT(count > 0, "a cluster has devices");
  while (spec.devices.size() != count) {
    const std::size_t last = spec.devices.size() - 1;
    spec = last >= count ? without_device(std::move(spec), last)
                         : with_device_like(std::move(spec), last);
  }
  return spec;
}

ClusterSpec largest_first(ClusterSpec spec) {
  std::stable_sort(spec.devices.begin(), spec.devices.end(),
                   [](const Device& a, const Device& b) { return a.capacity > b.capacity; });
  return spec;
}

bool lacks_pinned_device(const OpGraph& graph, const ClusterSpec& spec) {
  std::set<std::string_view> names;
  for (const Device& device : spec.devices) names.insert(device.name);
  return std::ranges::any_of(graph.ops(), [&](OpId op) {
    return graph[op].pin.has_value() && !names.contains(*graph[op].pin);
  });
}

ClusterSpec with_memory(ClusterSpec spec, Bytes capacity) {
  for (Device& device : spec.devices) device.capacity = capacity;
  return spec;
}

ClusterSpec with_memory(ClusterSpec spec, Factor factor) {
  for (Device& device : spec.devices)
    device.capacity = Bytes(scaled_down(device.capacity.count(), factor, "memory"));
  return spec;
}

ClusterSpec with_speed(ClusterSpec spec, Factor factor) {
  for (Device& device : spec.devices)
    device.speed = Speed(scaled_down(device.speed.count(), factor, "speed"));
  return spec;
}

ClusterSpec with_link(ClusterSpec spec, Time latency, Bandwidth bandwidth) {
  LinkRule link;
  link.latency = latency;
  link.bandwidth = bandwidth;
  if (spans_hosts(spec)) {
    // What names kinds or devices outranks hosts: it stays, since it may cross them.
    std::erase_if(spec.links,
                  [](const LinkRule& rule) { return rule.scope == LinkScope::kSameHost; });
    link.scope = LinkScope::kSameHost;
    spec.links.push_back(std::move(link));
    return spec;
  }
  std::set<std::string> kinds;
  for (const Device& device : spec.devices)
    if (device.kind != kCpu) kinds.insert(device.kind);
  const auto kind_of = [&](const std::string& name) {
    for (const Device& device : spec.devices)
      if (device.name == name) return device.kind;
    return std::string();
  };
  std::erase_if(spec.links, [&](const LinkRule& rule) {
    return rule.scope == LinkScope::kPair && kinds.contains(kind_of(rule.from)) &&
           kinds.contains(kind_of(rule.to));
  });
  link.scope = LinkScope::kKinds;
  for (const std::string& from : kinds)
    for (const std::string& to : kinds) {
      link.from = from;
      link.to = to;
      spec.links.push_back(link);
    }
  return spec;
}

}  // namespace baechi
