// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/components.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "baechi/base/wide.h"

namespace baechi::bounds {
namespace {

// With n devices two of the n + 1 largest sizes meet, three of the 2n + 1 largest, and so on: the
// least that some device gets, whatever the distribution. Stops at `enough`.
std::int64_t pigeonhole(std::vector<std::int64_t> sizes, std::size_t n, std::int64_t enough) {
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  std::int64_t most = sizes.empty() ? 0 : sizes.front();
  for (std::size_t together = 2; (together - 1) * n < sizes.size(); ++together) {
    // The `together` smallest of the (together - 1) n + 1 largest.
    const std::size_t last = (together - 1) * n;
    if (last + 1 < together) break;
    std::int64_t sum = 0;
    for (std::size_t i = last + 1 - together; i <= last; ++i) sum += sizes[i];
    most = std::max(most, sum);
    if (most >= enough || sizes[last] == 0 || together > 64) break;
  }
  return most;
}

}  // namespace

Components number(const Relaxation& relaxed, UnionFind& sets) {
  Components result;
  std::vector<std::optional<UnitId>> of_root(relaxed.held.size());
  result.of.reserve(relaxed.unit.size());
  for (const OpId op : relaxed.unit.keys()) {
    std::optional<UnitId>& component = of_root[sets.find(relaxed.unit[op].value())];
    if (!component.has_value()) component = UnitId(result.count++);
    result.of.push_back(*component);
  }
  return result;
}

UnionFind forced_together(const Relaxation& relaxed) {
  const std::size_t num_types = relaxed.num_types();
  UnionFind sets(relaxed.held.size());
  std::vector<std::optional<UnitId>> first_on(num_types);
  for (const OpId op : relaxed.unit.keys()) {
    std::optional<std::size_t> only;
    std::size_t possible = 0;
    for (std::size_t type = 0; type < num_types; ++type) {
      if (relaxed.time(op, type) >= kNever) continue;
      possible += relaxed.types[type].count;
      only = type;
    }
    if (possible != 1) continue;
    std::optional<UnitId>& first = first_on[*only];
    if (first.has_value()) sets.unite(first->value(), relaxed.unit[op].value());
    first = relaxed.unit[op];
  }
  return sets;
}

bool may_pack(const Relaxation& relaxed, const Lumps& lumps, Ns limit) {
  const std::size_t num_types = relaxed.num_types();
  std::int64_t largest = 0;
  WideInt total = 0;
  for (const DeviceType& type : relaxed.types) {
    largest = std::max(largest, type.capacity);
    total += static_cast<WideInt>(type.capacity) * static_cast<std::int64_t>(type.count);
  }
  std::vector<std::int64_t> work;
  for (std::size_t lump = 0; lump < lumps.size; ++lump) {
    Ns least = kNever;
    for (std::size_t type = 0; type < num_types; ++type)
      if (lumps.need[lump] <= relaxed.types[type].capacity)
        least = std::min(least, lumps.k[lump * num_types + type]);
    if (least >= limit) return false;
    work.push_back(least);
    total -= lumps.held[lump];
  }
  if (total < 0) return false;
  return pigeonhole(std::move(work), relaxed.num_devices, limit) < limit &&
         pigeonhole(lumps.held, relaxed.num_devices, largest + 1) <= largest;
}

std::vector<CutPair> cut_pairs(const Relaxation& relaxed, const HeadsTails& ends) {
  const std::size_t num_types = relaxed.num_types();
  std::vector<CutPair> pairs;
  std::vector<Ns> crossing(relaxed.num_links);
  for (const OpId op : relaxed.graph->ops()) {
    const auto edges = relaxed.graph->in_edges(op);
    for (std::size_t i = 0; i < edges.size();) {
      const OpId parent = edges[i].from;
      std::fill(crossing.begin(), crossing.end(), 0);
      for (; i < edges.size() && edges[i].from == parent; ++i) {
        if (!edges[i].tensor.has_value()) continue;
        for (std::size_t link = 0; link < relaxed.num_links; ++link) {
          const Ns c = relaxed.c[edges[i].tensor->index() * relaxed.num_links + link];
          crossing[link] =
              relaxed.transfers_queue ? crossing[link] + c : std::max(crossing[link], c);
        }
      }
      Ns least = kNever;
      for (std::size_t from = 0; from < num_types; ++from) {
        const std::size_t a = parent.index() * num_types + from;
        const Ns before = ends.b[a] + relaxed.k[a];
        if (before >= kNever) continue;
        for (std::size_t to = 0; to < num_types; ++to) {
          const auto& link = relaxed.link[from * num_types + to];
          const std::size_t z = op.index() * num_types + to;
          if (link.has_value())
            least = std::min(least, before + crossing[*link] + relaxed.k[z] + ends.q[z]);
        }
      }
      pairs.push_back({relaxed.unit[parent], relaxed.unit[op], least});
    }
  }
  return pairs;
}

}  // namespace baechi::bounds
