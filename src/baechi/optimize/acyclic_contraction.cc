// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/acyclic_contraction.h"

#include <algorithm>
#include <span>
#include <utility>

#include "baechi/base/assert.h"

namespace baechi {

AcyclicContraction::AcyclicContraction(const OpGraph& graph, const Options& options)
    : clusters_(graph.num_ops()),
      number_(graph.num_ops()),
      out_(graph.num_ops()),
      in_(graph.num_ops()),
      stamp_(graph.num_ops(), 0),
      options_(options) {
  std::uint32_t next = 0;
  for (const OpId op : graph.topological_order()) number_[op.index()] = next++;
  pool_.reserve(4 * graph.num_edges());
  for (const OpId op : graph.ops()) {
    const auto fill = [&](Row& row, std::span<const Edge> edges, bool outgoing) {
      row.begin = pool_.size();
      for (const Edge& edge : edges)
        pool_.push_back(outgoing ? edge.to.value() : edge.from.value());
      row.size = row.room = static_cast<std::uint32_t>(edges.size());
    };
    fill(out_[op.index()], graph.out_edges(op), true);
    fill(in_[op.index()], graph.in_edges(op), false);
  }
}

EdgeContraction AcyclicContraction::contract(OpId from, OpId to) {
  const std::uint32_t u = find(from), v = find(to);
  low_ = number_[u];
  high_ = number_[v];
  BAECHI_ASSERT(low_ < high_, "clusters stay numbered topologically");

  // With nothing on one side between the two, the merged cluster fits where the other end is, and
  // no second path leaves or arrives on that side.
  const Others children = others(u, v, true), parents = others(v, u, false);
  if (children == Others::kNone || parents == Others::kNone) {
    merge(u, v, children == Others::kNone ? high_ : low_);
    return EdgeContraction::kByDegree;
  }
  if (!options_.by_reachability) return EdgeContraction::kGaveUp;
  if (children != Others::kBetween || parents != Others::kBetween) {
    merge(u, v, children != Others::kBetween ? high_ : low_);
    return EdgeContraction::kByReachability;
  }

  after_.clear();
  before_.clear();
  Search second_path = search(u, v, true, after_);
  if (second_path == Search::kSeparate) second_path = search(v, u, false, before_);
  if (second_path == Search::kMeets) return EdgeContraction::kWouldCycle;
  if (second_path == Search::kTooLong) return EdgeContraction::kGaveUp;
  renumber(u, v);
  return EdgeContraction::kByReachability;
}

// Where the neighbours of `of` other than `but` are numbered; "between" when it takes too long.
AcyclicContraction::Others AcyclicContraction::others(std::uint32_t of, std::uint32_t but,
                                                      bool outgoing) {
  const Row& row = rows(outgoing)[of];
  if (row.size > options_.search_limit) return Others::kBetween;
  Others result = Others::kNone;
  for (std::size_t i = row.begin; i < row.begin + row.size; ++i) {
    const std::uint32_t x = clusters_.find(pool_[i]);
    if (x == of || x == but) continue;
    if (between(x)) return Others::kBetween;
    result = Others::kBeyond;
  }
  return result;
}

// Collects what is reachable from `start` between the two ends of the edge at hand, which itself is
// not followed, and sees whether a path leads to `stop`.
AcyclicContraction::Search AcyclicContraction::search(std::uint32_t start, std::uint32_t stop,
                                                      bool outgoing,
                                                      std::vector<std::uint32_t>& found) {
  ++round_;
  std::size_t steps_left = options_.search_limit;
  std::size_t done = 0;
  for (std::uint32_t at = start;; at = found[done++]) {
    const Row& row = rows(outgoing)[at];
    for (std::size_t i = row.begin; i < row.begin + row.size; ++i) {
      if (steps_left-- == 0) return Search::kTooLong;
      const std::uint32_t x = clusters_.find(pool_[i]);
      if (x == stop && at != start) return Search::kMeets;
      if (!between(x) || stamp_[x] == round_) continue;
      stamp_[x] = round_;
      found.push_back(x);
    }
    if (done == found.size()) return Search::kSeparate;
  }
}

// Ancestors of the edge's sink go first, then the merged cluster, then descendants of its source,
// in the numbers that all of them had: nobody else has to move.
void AcyclicContraction::renumber(std::uint32_t u, std::uint32_t v) {
  const auto by_number = [&](std::uint32_t a, std::uint32_t b) { return number_[a] < number_[b]; };
  std::sort(before_.begin(), before_.end(), by_number);
  std::sort(after_.begin(), after_.end(), by_number);
  slots_ = {low_, high_};
  for (const std::uint32_t x : before_) slots_.push_back(number_[x]);
  for (const std::uint32_t x : after_) slots_.push_back(number_[x]);
  std::sort(slots_.begin(), slots_.end());
  for (std::size_t i = 0; i < before_.size(); ++i) number_[before_[i]] = slots_[i];
  for (std::size_t i = 0; i < after_.size(); ++i)
    number_[after_[i]] = slots_[slots_.size() - after_.size() + i];
  merge(u, v, slots_[before_.size()]);
}

void AcyclicContraction::merge(std::uint32_t a, std::uint32_t b, std::uint32_t number) {
  clusters_.unite(a, b);
  const std::uint32_t into = std::min(a, b);
  number_[into] = number;
  for (const bool outgoing : {true, false}) {
    Row &x = rows(outgoing)[a], &y = rows(outgoing)[b];
    Row merged = x.size >= y.size ? x : y;
    append(merged, x.size >= y.size ? y : x, into);
    x = y = Row{};
    rows(outgoing)[into] = merged;
  }
}

// A row that is full first loses what became inner or repeated, then doubles: all contractions
// together copy O(edges log operators) entries.
void AcyclicContraction::append(Row& row, Row more, std::uint32_t owner) {
  if (row.size + more.size > row.room) {
    drop_repeats(row, owner);
    drop_repeats(more, owner);
  }
  if (row.size + more.size > row.room) {
    const std::size_t begin = pool_.size();
    pool_.resize(begin + 2 * (row.size + more.size));
    std::copy_n(pool_.begin() + static_cast<std::ptrdiff_t>(row.begin), row.size,
                pool_.begin() + static_cast<std::ptrdiff_t>(begin));
    row = {begin, row.size, 2 * (row.size + more.size)};
  }
  std::copy_n(pool_.begin() + static_cast<std::ptrdiff_t>(more.begin), more.size,
              pool_.begin() + static_cast<std::ptrdiff_t>(row.begin + row.size));
  row.size += more.size;
}

void AcyclicContraction::drop_repeats(Row& row, std::uint32_t owner) {
  ++round_;
  std::uint32_t kept = 0;
  for (std::size_t i = row.begin; i < row.begin + row.size; ++i) {
    const std::uint32_t x = clusters_.find(pool_[i]);
    if (x == owner || stamp_[x] == round_) continue;
    stamp_[x] = round_;
    pool_[row.begin + kept++] = x;
  }
  row.size = kept;
}

}  // namespace baechi
