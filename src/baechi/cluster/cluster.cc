// SPDX-License-Identifier: Apache-2.0
#include "baechi/cluster/cluster.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"

namespace baechi {
namespace {

std::string describe(const LinkRule& rule) {
  switch (rule.scope) {
    case LinkScope::kDefault:
      return "the default link";
    case LinkScope::kOtherHost:
      return "the link between hosts";
    case LinkScope::kSameHost:
      return "the link within a host";
    case LinkScope::kKinds:
      return "the link between kinds " + in_quotes(rule.from) + " and " + in_quotes(rule.to);
    case LinkScope::kPair:
      return "the link from " + in_quotes(rule.from) + " to " + in_quotes(rule.to);
  }
  BAECHI_ASSERT(false, "unknown link scope");
  return {};
}

void check_devices(const ClusterSpec& spec) {
  if (spec.devices.empty()) throw InputError("the cluster has no devices");
  std::vector<std::string_view> names;
  for (const Device& device : spec.devices) {
    if (device.name.empty()) throw InputError("a device has an empty name");
    if (device.kind.empty())
      throw InputError("device " + in_quotes(device.name) + " has an empty kind");
    if (device.capacity <= Bytes(0))
      throw InputError("device " + in_quotes(device.name) +
                       " has no memory: " + std::to_string(device.capacity.count()) + " bytes");
    if (device.speed <= Speed(0))
      throw InputError("device " + in_quotes(device.name) + " has a speed that is not positive");
    names.push_back(device.name);
  }
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end())
    throw InputError("duplicate device name " + in_quotes(*twice));
}

constexpr std::array<std::string_view, 4> kPlaceholders{"{from}", "{to}", "{from_host}",
                                                        "{to_host}"};

// Braces are for placeholders: a misspelt one would be one channel for all pairs.
void check_channel(const LinkRule& rule, std::string_view pattern) {
  for (std::size_t at = 0; at < pattern.size(); ++at) {
    if (pattern[at] != '{' && pattern[at] != '}') continue;
    const auto known = std::find_if(
        kPlaceholders.begin(), kPlaceholders.end(),
        [&](std::string_view placeholder) { return pattern.substr(at).starts_with(placeholder); });
    if (known == kPlaceholders.end())
      throw InputError(describe(rule) + " names the channel " + in_quotes(pattern) +
                       ": between braces only {from}, {to}, {from_host} and {to_host} are known");
    at += known->size() - 1;
  }
}

void check_rule(const ClusterSpec& spec, const LinkRule& rule) {
  if (rule.latency < Time(0)) throw InputError(describe(rule) + " has a negative latency");
  if (rule.bandwidth.has_value() && *rule.bandwidth <= Bandwidth(0))
    throw InputError(describe(rule) + " has a bandwidth that is not positive");
  for (const std::string& channel : rule.channels) {
    if (channel.empty()) throw InputError(describe(rule) + " names an empty channel");
    check_channel(rule, channel);
  }
  if (rule.scope != LinkScope::kPair && rule.scope != LinkScope::kKinds) return;
  for (const std::string& end : {rule.from, rule.to}) {
    const bool known = std::any_of(spec.devices.begin(), spec.devices.end(), [&](const Device& d) {
      return (rule.scope == LinkScope::kPair ? d.name : d.kind) == end;
    });
    if (!known)
      throw InputError(describe(rule) + " names an unknown " +
                       (rule.scope == LinkScope::kPair ? "device " : "device kind ") +
                       in_quotes(end));
  }
  if (rule.scope == LinkScope::kPair && rule.from == rule.to)
    throw InputError(describe(rule) + " joins a device with itself");
}

bool covers(const LinkRule& rule, const Device& from, const Device& to) {
  switch (rule.scope) {
    case LinkScope::kDefault:
      return true;
    case LinkScope::kOtherHost:
      return from.host != to.host;
    case LinkScope::kSameHost:
      return from.host == to.host;
    case LinkScope::kKinds:
      return (rule.from == from.kind && rule.to == to.kind) ||
             (rule.both_ways && rule.from == to.kind && rule.to == from.kind);
    case LinkScope::kPair:
      return (rule.from == from.name && rule.to == to.name) ||
             (rule.both_ways && rule.from == to.name && rule.to == from.name);
  }
  return false;
}

// Replaces "{from}" and its like by the names of the pair.
std::string expand_channel(const std::string& pattern, const Device& from, const Device& to) {
  std::string name;
  for (std::size_t at = 0; at < pattern.size();) {
    const auto stands_for = [&](std::string_view placeholder, const std::string& value) {
      if (pattern.compare(at, placeholder.size(), placeholder) != 0) return false;
      name += value;
      at += placeholder.size();
      return true;
    };
    if (stands_for(kPlaceholders[0], from.name) || stands_for(kPlaceholders[1], to.name) ||
        stands_for(kPlaceholders[2], from.host) || stands_for(kPlaceholders[3], to.host))
      continue;
    name += pattern[at++];
  }
  return name;
}

}  // namespace

Time Link::transfer_time(Bytes size) const {
  if (!bandwidth.has_value()) return latency;
  return latency + Time(scale_up(size.count(), 1'000'000'000, bandwidth->count(), "transfer time"));
}

Cluster::Cluster(ClusterSpec spec) : spec_(std::move(spec)) {
  check_devices(spec_);
  for (const LinkRule& rule : spec_.links) check_rule(spec_, rule);
  if (spec_.host_time.has_value() &&
      std::min({spec_.host_time->call, spec_.host_time->send, spec_.host_time->step}) < Time(0))
    throw InputError("the host time is negative");
  if (spec_.message_time.has_value() &&
      (spec_.message_time->send < Time(0) || spec_.message_time->receive < Time(0)))
    throw InputError("the time of a message is negative");
  for (const DeviceId device : devices()) {
    const auto alike = std::ranges::find(spec_.devices, (*this)[device].host, &Device::host);
    const auto first = static_cast<std::size_t>(alike - spec_.devices.begin());
    host_of_.push_back(first == device.index() ? num_hosts_++ : host_of_[first]);
  }

  const std::size_t n = num_devices();
  link_of_.assign(n * n, 0);
  std::vector<std::optional<std::uint32_t>> link_of_rule(spec_.links.size());  // without channels
  for (const DeviceId from : devices()) {
    for (const DeviceId to : devices()) {
      if (from == to) continue;
      const LinkRule* best = nullptr;
      for (const LinkRule& rule : spec_.links)
        if (covers(rule, (*this)[from], (*this)[to]) &&
            (best == nullptr || rule.scope >= best->scope))
          best = &rule;
      if (best == nullptr)
        throw InputError("no link rule covers " + in_quotes((*this)[from].name) + " to " +
                         in_quotes((*this)[to].name) + ": add a default link");

      std::optional<std::uint32_t>& known =
          link_of_rule[static_cast<std::size_t>(best - spec_.links.data())];
      if (known.has_value()) {
        link_of_[from.index() * n + to.index()] = *known;
        ++pairs_[*known];
        continue;
      }
      Link link{best->latency, best->bandwidth, {}};
      for (const std::string& pattern : best->channels) {
        const std::string name = expand_channel(pattern, (*this)[from], (*this)[to]);
        const auto at = std::find(channels_.begin(), channels_.end(), name);
        const ChannelId channel = at == channels_.end()
                                      ? channels_.push_back(name)
                                      : ChannelId(static_cast<std::size_t>(at - channels_.begin()));
        link.channels.push_back(channel);
      }
      std::sort(link.channels.begin(), link.channels.end());
      link.channels.erase(std::unique(link.channels.begin(), link.channels.end()),
                          link.channels.end());
      const auto same = std::find(links_.begin(), links_.end(), link);
      const auto index = static_cast<std::uint32_t>(same - links_.begin());
      if (same == links_.end()) {
        links_.push_back(std::move(link));
        pairs_.push_back(0);
      }
      link_of_[from.index() * n + to.index()] = index;
      ++pairs_[index];
      if (best->channels.empty()) known = index;
    }
  }
}

std::optional<DeviceId> Cluster::find(std::string_view name) const {
  for (const DeviceId device : devices())
    if ((*this)[device].name == name) return device;
  return std::nullopt;
}

Bytes Cluster::largest_capacity() const {
  Bytes largest;
  for (const Device& device : spec_.devices) largest = std::max(largest, device.capacity);
  return largest;
}

ClusterSpec uniform_cluster(const UniformCluster& uniform) {
  ClusterSpec spec;
  for (std::size_t i = 0; i < uniform.count; ++i)
    spec.devices.push_back(
        {"gpu:" + std::to_string(i), "gpu", uniform.capacity, "localhost", kFullSpeed});
  LinkRule link;
  link.latency = uniform.latency;
  link.bandwidth = uniform.bandwidth;
  spec.links = {link};
  spec.communication = uniform.communication;
  return spec;
}

}  // namespace baechi
