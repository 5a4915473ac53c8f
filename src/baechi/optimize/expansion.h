// SPDX-License-Identifier: Apache-2.0
// The way back from an optimised graph: which operators of the original graph each of its
// operators stands for, and in which order they run (Paper 3.1.3).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// How the members of a meta-operator run.
enum class MemberOrder : std::uint8_t {
  kTogether,  // one after the other, in the order listed: a device order expands by concatenation
  kApart,     // on one device, but not in one go (a backward operator long after its forward)
};

// Immutable. Every original operator is a member of exactly one operator of the small graph.
class Expansion {
 public:
  // Each operator stands for itself.
  static Expansion identity(std::size_t num_ops);

  // Members of small operator i: members[begin[i]] .. members[begin[i + 1] - 1]. Requires the
  // members to be a permutation of 0 .. members.size() - 1, and no row to be empty.
  Expansion(std::vector<OpId> members, std::vector<std::uint32_t> begin, MemberOrder order);

  std::size_t num_small() const { return begin_.size() - 1; }
  std::size_t num_original() const { return members_.size(); }
  MemberOrder member_order() const { return order_; }
  std::span<const OpId> members(OpId small) const {
    return std::span<const OpId>(members_).subspan(
        begin_[small.index()], begin_[small.index() + 1] - begin_[small.index()]);
  }

  // The expansion of this graph's small operators through `inner`, which made the graph that this
  // one started from: `inner` first shrank original -> middle, this one middle -> small.
  Expansion after(const Expansion& inner) const;

  friend bool operator==(const Expansion&, const Expansion&) = default;

 private:
  std::vector<OpId> members_;
  std::vector<std::uint32_t> begin_;
  MemberOrder order_;
};

// The plan of the small graph as a plan of the original one: members take their meta-operator's
// device. When all members run together and the plan has an order, so has the result, and it can
// be executed without deadlock whenever the small plan could; otherwise the result has no order
// and devices run what becomes ready first. O(operators).
PlacedGraph expand(const Expansion& expansion, const PlacedGraph& small);

}  // namespace baechi
