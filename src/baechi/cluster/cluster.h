// SPDX-License-Identifier: Apache-2.0
// The cluster (Paper 2.1, 3.1.4): n memory-limited devices, perhaps unequal, and the links between
// them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"

namespace baechi {

class Bandwidth : public Quantity<Bandwidth> {  // bytes per second
 public:
  static constexpr const char* kName = "bandwidth";
  using Quantity::Quantity;
};

// How fast a device is beside others of its kind, in parts per million: an operator takes
// ceil(time * 1,000,000 / speed).
class Speed : public Quantity<Speed> {
 public:
  static constexpr const char* kName = "speed";
  using Quantity::Quantity;
};
inline constexpr Speed kFullSpeed{1'000'000};

struct Device {
  std::string name;  // unique in the cluster
  std::string kind;  // which of an operator's compute times holds here
  Bytes capacity;
  std::string host;
  Speed speed = kFullSpeed;

  friend bool operator==(const Device&, const Device&) = default;
};

inline constexpr std::size_t kMaxDevices = 1024;  // the link table is quadratic

enum class CommunicationMode : std::uint8_t {
  kParallel,    // transfers never wait for each other
  kSequential,  // Paper 3.1.4: one transfer at a time per device, in or out
  kDuplex,      // one in and one out at a time per device
};

// Whether a device runs operators while it sends (docs/reference/semantics.md, "Sends that block").
enum class Sends : std::uint8_t { kFree, kBlocking };

// Which ordered pairs of devices a link rule is for. The most specific rule wins, the last one
// among equals; the enumerators are in that order.
enum class LinkScope : std::uint8_t { kDefault, kOtherHost, kSameHost, kKinds, kPair };

struct LinkRule {
  LinkScope scope = LinkScope::kDefault;
  std::string from, to;   // device names for kPair, device kinds for kKinds, else empty
  bool both_ways = true;  // kPair, kKinds: also for (to, from)
  Time latency;
  std::optional<Bandwidth> bandwidth;  // absent: unlimited
  // Shared channels on the path. "{from}", "{to}", "{from_host}" and "{to_host}" stand for the
  // pair's device and host names, so that one rule can give each host its own bus or NIC.
  std::vector<std::string> channels;

  friend bool operator==(const LinkRule&, const LinkRule&) = default;
};

// What one thread per host takes to ask for work: for an operator, for a transfer, and of every step
// before the first of them (docs/reference/semantics.md, "The host that asks").
struct HostTime {
  Time call, send;
  Time step = {};

  friend bool operator==(const HostTime&, const HostTime&) = default;
};

// What a message takes its ends, which run nothing meanwhile: who sends it, and who receives it
// (docs/reference/semantics.md, "Messages that take their ends' time").
struct MessageTime {
  Time send, receive;

  friend bool operator==(const MessageTime&, const MessageTime&) = default;
};

// A cluster as a user writes it.
struct ClusterSpec {
  std::string name;
  std::vector<Device> devices;
  std::vector<LinkRule> links;
  CommunicationMode communication = CommunicationMode::kSequential;
  Sends sends = Sends::kFree;
  std::optional<HostTime> host_time = {};  // absent: asking takes no time
  std::optional<MessageTime> message_time = {};

  friend bool operator==(const ClusterSpec&, const ClusterSpec&) = default;
};

// The resolved link of one ordered pair.
struct Link {
  Time latency;
  std::optional<Bandwidth> bandwidth;
  std::vector<ChannelId> channels;  // sorted; one transfer at a time in each, unless kParallel

  Time transfer_time(Bytes size) const;  // latency + size / bandwidth, rounded up

  friend bool operator==(const Link&, const Link&) = default;
};

// Immutable, and checked: names are unique, numbers positive, and some rule covers every pair.
class Cluster {
 public:
  // Throws InputError naming the device or link at fault.
  explicit Cluster(ClusterSpec spec);

  const ClusterSpec& spec() const { return spec_; }
  const std::string& name() const { return spec_.name; }
  CommunicationMode communication() const { return spec_.communication; }
  const std::optional<HostTime>& host_time() const { return spec_.host_time; }
  bool sends_block() const { return spec_.sends == Sends::kBlocking; }
  const std::optional<MessageTime>& message_time() const { return spec_.message_time; }
  // Hosts are numbered in the order of their first devices.
  std::size_t num_hosts() const { return num_hosts_; }
  std::size_t host_of(DeviceId device) const { return host_of_[device.index()]; }

  std::size_t num_devices() const { return spec_.devices.size(); }
  IdRange<DeviceId> devices() const { return IdRange<DeviceId>(num_devices()); }
  const Device& operator[](DeviceId device) const { return spec_.devices[device.index()]; }
  std::optional<DeviceId> find(std::string_view name) const;
  Bytes largest_capacity() const;

  // Requires from != to. Pairs with equal links share one Link object: its address tells classes
  // of links apart.
  const Link& link(DeviceId from, DeviceId to) const { return links_[link_index(from, to)]; }
  // All links that differ, in the order in which the pairs, row by row, first have them, and how
  // many pairs have each. Tables by link need no row per pair.
  std::span<const Link> links() const { return links_; }
  std::span<const std::size_t> pairs_by_link() const { return pairs_; }
  std::size_t link_index(DeviceId from, DeviceId to) const {  // into links()
    return link_of_[from.index() * num_devices() + to.index()];
  }
  std::size_t num_channels() const { return channels_.size(); }
  IdRange<ChannelId> channels() const { return channels_.keys(); }
  const std::string& channel_name(ChannelId channel) const { return channels_[channel]; }

 private:
  ClusterSpec spec_;
  IdVector<ChannelId, std::string> channels_;
  std::vector<Link> links_;
  std::vector<std::size_t> pairs_;      // by link
  std::vector<std::uint32_t> link_of_;  // row-major by (from, to)
  std::size_t num_hosts_ = 0;
  std::vector<std::size_t> host_of_;  // by device
};

// `count` equal devices "gpu:0", "gpu:1", ... of kind "gpu" on one host, linked pairwise alike.
struct UniformCluster {
  std::size_t count = 1;
  Bytes capacity;
  Time latency;
  std::optional<Bandwidth> bandwidth = {};
  CommunicationMode communication = CommunicationMode::kSequential;
};
ClusterSpec uniform_cluster(const UniformCluster& uniform);

}  // namespace baechi
