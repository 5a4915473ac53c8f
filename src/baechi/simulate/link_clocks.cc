// SPDX-License-Identifier: Apache-2.0
#include "baechi/simulate/link_clocks.h"

#include <limits>

#include "baechi/base/wide.h"

namespace baechi::simulation {
namespace {

constexpr std::int64_t kNanosecondsPerSecond = 1'000'000'000;

}  // namespace

LinkClock::LinkClock(const Link& link) : link_(&link), bandwidth_(0), inverse_(0) {
  if (!link.bandwidth.has_value() || *link.bandwidth <= Bandwidth(1)) return;
  bandwidth_ = static_cast<std::uint64_t>(link.bandwidth->count());
  inverse_ = static_cast<std::uint64_t>((WideUnsigned{1} << 64) / bandwidth_);
}

Time LinkClock::transfer_time(Bytes size) const {
  if (!link_->bandwidth.has_value()) return link_->latency;
  constexpr std::int64_t kLargest =
      std::numeric_limits<std::int64_t>::max() / kNanosecondsPerSecond;
  if (bandwidth_ == 0 || size.count() > kLargest) return link_->transfer_time(size);

  // `quotient` is the true one or one less, since inverse_ > 2^64 / bandwidth_ - 1.
  const auto dividend = static_cast<std::uint64_t>(size.count() * kNanosecondsPerSecond);
  const auto quotient =
      static_cast<std::uint64_t>((static_cast<WideUnsigned>(dividend) * inverse_) >> 64);
  const std::uint64_t rest = dividend - quotient * bandwidth_;
  const std::uint64_t rounded_up = quotient + (rest > 0 ? 1 : 0) + (rest > bandwidth_ ? 1 : 0);
  return link_->latency + Time(static_cast<std::int64_t>(rounded_up));
}

LinkClocks::LinkClocks(const Cluster& cluster)
    : cluster_(&cluster), clocks_(cluster.links().begin(), cluster.links().end()) {}

}  // namespace baechi::simulation
