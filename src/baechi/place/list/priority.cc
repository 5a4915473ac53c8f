// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/list/priority.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

namespace baechi {
namespace {

IdVector<OpId, Time> static_levels(const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  const std::span<const OpId> order = graph.topological_order();
  IdVector<OpId, Time> level(graph.num_ops());
  for (std::size_t i = order.size(); i-- > 0;) {
    const OpId op = order[i];
    Time after;
    for (const Edge& edge : graph.out_edges(op)) after = std::max(after, level[edge.to]);
    std::optional<Time> fastest;
    for (std::size_t c = 0; c < costs.num_classes(); ++c)
      if (const auto time = costs.class_times(DeviceClassId(c))[op])
        fastest = std::min(fastest.value_or(*time), *time);
    level[op] = after + fastest.value_or(Time(0));
  }
  return level;
}

// Suppliers that an operator which is none waits for.
IdVector<OpId, bool> called_for(const OpGraph& graph, const IdVector<OpId, bool>& suppliers) {
  IdVector<OpId, bool> called(graph.num_ops());
  const std::span<const OpId> order = graph.topological_order();
  for (std::size_t i = order.size(); i-- > 0;) {
    const auto out = graph.out_edges(order[i]);
    called[order[i]] =
        suppliers[order[i]] && std::any_of(out.begin(), out.end(), [&](const Edge& edge) {
          return !suppliers[edge.to] || called[edge.to];
        });
  }
  return called;
}

struct Keyed {
  std::uint64_t key;
  OpId op;
};
constexpr std::uint64_t kAfterSuppliers = std::uint64_t{1} << 63;

// Radix sort, digit by digit from the lowest; digits that all keys share cost one look. Stable, so
// equal keys stay in id order.
void sort_by_key(std::vector<Keyed>& ops) {
  constexpr int kDigitBits = 11;
  constexpr std::uint64_t kDigits = std::uint64_t{1} << kDigitBits;
  std::uint64_t differing = 0;
  for (const Keyed& keyed : ops) differing |= keyed.key ^ ops.front().key;
  std::vector<Keyed> sorted(ops);
  for (int shift = 0; shift < 64; shift += kDigitBits) {
    if (((differing >> shift) & (kDigits - 1)) == 0) continue;
    const auto digit = [&](const Keyed& keyed) { return (keyed.key >> shift) & (kDigits - 1); };
    std::array<std::size_t, kDigits + 1> begin{};
    for (const Keyed& keyed : ops) ++begin[digit(keyed) + 1];
    for (std::size_t d = 0; d < kDigits; ++d) begin[d + 1] += begin[d];
    for (const Keyed& keyed : ops) sorted[begin[digit(keyed)]++] = keyed;
    ops.swap(sorted);
  }
}

}  // namespace

Priority longest_way_first(const CostModel& costs, const IdVector<OpId, bool>& suppliers) {
  const IdVector<OpId, Time> level = static_levels(costs);
  const IdVector<OpId, bool> called = called_for(costs.graph(), suppliers);
  Time longest;
  for (const Time time : level) longest = std::max(longest, time);
  std::vector<Keyed> ops;
  ops.reserve(level.size());
  for (const OpId op : level.keys()) {
    const auto key = static_cast<std::uint64_t>((longest - level[op]).count());
    ops.push_back({called[op] ? key : key | kAfterSuppliers, op});
  }
  sort_by_key(ops);

  Priority priority;
  priority.by_rank.reserve(ops.size());
  for (const Keyed& keyed : ops) priority.by_rank.push_back(keyed.op);
  priority.rank.resize(level.size());
  for (std::size_t i = 0; i < level.size(); ++i)
    priority.rank[priority.by_rank[i]] = static_cast<std::uint32_t>(i);
  return priority;
}

}  // namespace baechi
