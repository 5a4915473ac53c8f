// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/expansion.h"

#include <numeric>
#include <utility>

#include "baechi/base/assert.h"

namespace baechi {

Expansion Expansion::identity(std::size_t num_ops) {
  std::vector<OpId> members;
  members.reserve(num_ops);
  for (const OpId op : IdRange<OpId>(num_ops)) members.push_back(op);
  std::vector<std::uint32_t> begin(num_ops + 1);
  std::iota(begin.begin(), begin.end(), std::uint32_t{0});
  return {std::move(members), std::move(begin), MemberOrder::kTogether};
}

Expansion::Expansion(std::vector<OpId> members, std::vector<std::uint32_t> begin, MemberOrder order)
    : members_(std::move(members)), begin_(std::move(begin)), order_(order) {
  BAECHI_ASSERT(!begin_.empty() && begin_.front() == 0 && begin_.back() == members_.size(),
                "the rows of an expansion cover its members");
}

Expansion Expansion::after(const Expansion& inner) const {
  BAECHI_ASSERT(num_original() == inner.num_small(), "expansions compose end to end");
  std::vector<OpId> members;
  members.reserve(inner.num_original());
  std::vector<std::uint32_t> begin{0};
  begin.reserve(begin_.size());
  for (const OpId small : IdRange<OpId>(num_small())) {
    for (const OpId middle : this->members(small)) {
      const std::span<const OpId> row = inner.members(middle);
      members.insert(members.end(), row.begin(), row.end());
    }
    begin.push_back(static_cast<std::uint32_t>(members.size()));
  }
  const bool together = order_ == MemberOrder::kTogether && inner.order_ == MemberOrder::kTogether;
  return {std::move(members), std::move(begin),
          together ? MemberOrder::kTogether : MemberOrder::kApart};
}

PlacedGraph expand(const Expansion& expansion, const PlacedGraph& small) {
  BAECHI_ASSERT(small.device.size() == expansion.num_small(), "the plan is of the small graph");
  PlacedGraph placed;
  placed.device = Placement(expansion.num_original(), DeviceId(0));
  for (const OpId meta : small.device.keys())
    for (const OpId op : expansion.members(meta)) placed.device[op] = small.device[meta];
  if (!small.order.has_value() || expansion.member_order() == MemberOrder::kApart) return placed;

  placed.order.emplace(small.order->size());
  for (const DeviceId device : small.order->keys())
    for (const OpId meta : (*small.order)[device]) {
      const std::span<const OpId> row = expansion.members(meta);
      std::vector<OpId>& ops = (*placed.order)[device];
      ops.insert(ops.end(), row.begin(), row.end());
    }
  return placed;
}

}  // namespace baechi
