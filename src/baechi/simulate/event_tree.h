// SPDX-License-Identifier: Apache-2.0
// The next event of every device, and the earliest of them all. A tree of winners: changing one
// device's event costs log2(devices) comparisons, reading the earliest none.
#pragma once

#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/base/wide.h"

namespace baechi::simulation {

// A moment, and the round within it (docs/reference/semantics.md, "Within one moment").
struct Instant {
  Time at;
  std::uint32_t round = 0;

  friend constexpr auto operator<=>(const Instant&, const Instant&) = default;
};

// An operator that finishes, or a device that chooses what to start. In one round all operators
// finish, by id, before any device chooses. (Rounds of one moment never reach 2^31: each starts an
// operator, and has one finish.)
class Event {
 public:
  static constexpr Event finish(Instant when, OpId op) { return {when, 0, op.value()}; }
  static constexpr Event choice(Instant when, DeviceId device) { return {when, 1, device.value()}; }

  constexpr Instant when() const { return {at_, static_cast<std::uint32_t>(rank_ >> 33)}; }
  constexpr bool is_choice() const { return ((rank_ >> 32) & 1) != 0; }
  constexpr OpId op() const { return OpId(static_cast<std::uint32_t>(rank_)); }
  constexpr DeviceId device() const { return DeviceId(static_cast<std::uint32_t>(rank_)); }

  friend constexpr auto operator<=>(const Event&, const Event&) = default;

 private:
  friend class EventTree;
  constexpr Event(Instant when, std::uint64_t phase, std::uint32_t id)
      : at_(when.at), rank_(std::uint64_t{when.round} << 33 | phase << 32 | id) {}

  // Which of two devices is next is a coin toss, so this is written without branches.
  constexpr bool precedes(const Event& other) const {
    const auto at = static_cast<std::uint64_t>(at_.count());
    const auto other_at = static_cast<std::uint64_t>(other.at_.count());
    return (WideUnsigned{at} << 64 | rank_) < (WideUnsigned{other_at} << 64 | other.rank_);
  }

  Time at_;
  std::uint64_t rank_;
};

class EventTree {
 public:
  explicit EventTree(std::size_t num_devices) : leaves_(std::bit_ceil(num_devices)) { clear(); }

  void clear() { nodes_.assign(2 * leaves_, nothing()); }
  void set(DeviceId device, Event event) {
    std::size_t at = leaves_ + device.index();
    nodes_[at] = event;
    for (at /= 2; at > 0; at /= 2) {
      nodes_[at] = nodes_[2 * at + (nodes_[2 * at + 1].precedes(nodes_[2 * at]) ? 1 : 0)];
    }
  }
  void remove(DeviceId device) { set(device, nothing()); }
  bool empty() const { return top() == nothing(); }
  Event top() const { return nodes_[1]; }

 private:
  // Later than every event: no operator has this id in this round.
  static constexpr Event nothing() {
    constexpr auto kLast = std::numeric_limits<std::uint32_t>::max();
    return {{Time(std::numeric_limits<std::int64_t>::max()), kLast >> 1}, 1, kLast};
  }

  std::size_t leaves_;
  std::vector<Event> nodes_;  // the root is 1, the children of i are 2i and 2i + 1
};

}  // namespace baechi::simulation
