// SPDX-License-Identifier: Apache-2.0
// What transfers take over the links of a cluster, without dividing by the bandwidth each time.
#pragma once

#include <cstdint>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"

namespace baechi::simulation {

// Link::transfer_time() with the division by the bandwidth turned into a multiplication.
class LinkClock {
 public:
  explicit LinkClock(const Link& link);
  Time transfer_time(Bytes size) const;

 private:
  const Link* link_;
  std::uint64_t bandwidth_;  // 0: take the slow way
  std::uint64_t inverse_;    // floor(2^64 / bandwidth)
};

// A clock for each link of a cluster, which must outlive them.
class LinkClocks {
 public:
  explicit LinkClocks(const Cluster& cluster);
  // Requires from != to.
  Time transfer_time(DeviceId from, DeviceId to, Bytes size) const {
    return clocks_[cluster_->link_index(from, to)].transfer_time(size);
  }

 private:
  const Cluster* cluster_;
  std::vector<LinkClock> clocks_;  // by Cluster::link_index
};

}  // namespace baechi::simulation
