// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/repetition.h"

#include <algorithm>
#include <map>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "baechi/graph/op_hash.h"

namespace baechi {
namespace {

// Surroundings up to so many edges away tell operators apart.
constexpr int kHops = 3;
// Classes of equal operators that are tried as the beat of a repetition, in all and as that of one
// number of periods; and repetitions that are looked for.
constexpr std::size_t kTried = 8, kBeatsOfOneLength = 2, kRepetitions = 3;
// A repetition of less than this part of the graph is not worth a look.
constexpr double kLeastPart = 0.1;

using Colours = IdVector<OpId, Hash>;

// What an operator takes and is.
Colours by_costs(const OpGraph& graph) {
  Colours colours(graph.num_ops());
  for (const OpId op : graph.ops()) colours[op] = mix(hash_of(graph, op), hash_of(graph[op].kind));
  return colours;
}

// What an operator is, by the first word of its kind ("Conv2d(44, 44)"), whatever it takes.
Colours by_kinds(const OpGraph& graph) {
  Colours colours(graph.num_ops());
  for (const OpId op : graph.ops()) {
    const std::string_view kind = graph[op].kind;
    colours[op] = mix(hash_of(kind.substr(0, kind.find_first_of("( "))),
                      graph[op].backward ? Hash{1} : Hash{0});
  }
  return colours;
}

// What an edge carries. By which port does not count: every time step has one of its own.
Hash bytes_of(const OpGraph& graph, const Edge& edge) {
  return edge.tensor.has_value() ? mix(Hash{1}, graph.size(*edge.tensor)) : Hash{0};
}

Colours refined(const OpGraph& graph, Colours colours) {
  for (int hop = 0; hop < kHops; ++hop) {
    Colours next(graph.num_ops());
    for (const OpId op : graph.ops()) {
      Hash around = 0;  // sums: the order of edges does not count
      for (const Edge& edge : graph.in_edges(op))
        around += mix(mix(colours[edge.from], bytes_of(graph, edge)), Hash{1});
      for (const Edge& edge : graph.out_edges(op))
        around += mix(mix(colours[edge.to], bytes_of(graph, edge)), Hash{2});
      next[op] = mix(colours[op], around);
    }
    colours = std::move(next);
  }
  return colours;
}

// Edges on the longest way to an operator.
IdVector<OpId, std::uint32_t> depths(const OpGraph& graph) {
  IdVector<OpId, std::uint32_t> depth(graph.num_ops());
  for (const OpId op : graph.topological_order())
    for (const Edge& edge : graph.in_edges(op))
      depth[op] = std::max(depth[op], depth[edge.from] + 1);
  return depth;
}

class Finder {
 public:
  Finder(const OpGraph& graph, std::size_t least, Colours own)
      : graph_(graph),
        least_(least),
        own_(std::move(own)),
        refined_(refined(graph, own_)),
        depth_(depths(graph)),
        taken_(graph.num_ops()) {}

  std::vector<Repetition> run() {
    std::vector<Repetition> found;
    while (found.size() < kRepetitions) {
      std::optional<Repetition> best = largest();
      if (!best.has_value()) break;
      for (const OpId op : graph_.ops())
        if (best->at[op].has_value()) taken_[op] = 1;
      found.push_back(*std::move(best));
    }
    return found;
  }

 private:
  // How many of a class are on the longest chain of them that ends at each operator, and at any.
  struct Counts {
    IdVector<OpId, std::uint32_t> to;
    std::uint32_t most = 0;
  };

  std::optional<Repetition> largest() const {
    std::optional<Repetition> best;
    auto most = static_cast<std::size_t>(kLeastPart * static_cast<double>(graph_.num_ops()));
    std::map<std::size_t, std::size_t> beats_of;  // by the number of periods
    std::size_t tried = 0;
    for (const std::vector<OpId>& members : classes()) {
      if (beats_of[members.size()] == kBeatsOfOneLength) continue;
      if (tried++ == kTried) break;
      Counts counts = count(members);
      if (counts.most != members.size()) continue;
      ++beats_of[members.size()];
      std::optional<Repetition> repetition = along(std::move(counts));
      if (!repetition.has_value()) continue;
      const std::size_t covered = repetition->whole.size() * repetition->slots;
      if (covered <= most) continue;
      most = covered;
      best = std::move(repetition);
    }
    return best;
  }

  // Equal forward operators, in topological order, that may wait for each other; the largest
  // classes first.
  std::vector<std::vector<OpId>> classes() const {
    std::map<Hash, std::vector<OpId>> by_colour;
    for (const OpId op : graph_.topological_order())
      if (taken_[op] == 0 && !graph_[op].backward) by_colour[refined_[op]].push_back(op);
    std::vector<std::vector<OpId>> classes;
    for (auto& [colour, members] : by_colour)
      if (members.size() >= least_ && all_deeper(members)) classes.push_back(std::move(members));
    std::sort(classes.begin(), classes.end(), [](const auto& a, const auto& b) {
      return a.size() != b.size() ? a.size() > b.size() : a.front() < b.front();
    });
    return classes;
  }

  // Operators that wait for each other are at different depths.
  bool all_deeper(const std::vector<OpId>& members) const {
    std::vector<std::uint32_t> depths;
    for (const OpId op : members) depths.push_back(depth_[op]);
    std::sort(depths.begin(), depths.end());
    return std::adjacent_find(depths.begin(), depths.end()) == depths.end();
  }

  Counts count(const std::vector<OpId>& members) const {
    Counts counts{IdVector<OpId, std::uint32_t>(graph_.num_ops())};
    for (const OpId op : members) counts.to[op] = 1;
    for (const OpId op : graph_.topological_order()) {
      std::uint32_t before = 0;
      for (const Edge& edge : graph_.in_edges(op)) before = std::max(before, counts.to[edge.from]);
      counts.to[op] += before;
      counts.most = std::max(counts.most, counts.to[op]);
    }
    return counts;
  }

  // The period of every operator: how many of a class are before it. What is before all of them
  // belongs to its first reader, and a backward operator to its forward one or to what it
  // continues.
  IdVector<OpId, std::uint32_t> periods(Counts counts) const {
    IdVector<OpId, std::uint32_t> period = std::move(counts.to);
    const auto order = graph_.topological_order();
    const std::uint32_t last = counts.most;
    for (auto op = order.rbegin(); op != order.rend(); ++op) {
      if (period[*op] > 0 || graph_.out_edges(*op).empty()) continue;
      std::uint32_t first = last;
      for (const Edge& edge : graph_.out_edges(*op)) first = std::min(first, period[edge.to]);
      period[*op] = first;
    }
    for (const OpId op : order) {
      if (!graph_[op].backward) continue;
      if (const std::optional<OpId> forward = graph_[op].forward) {
        period[op] = period[*forward];
        continue;
      }
      std::uint32_t least = last;
      for (const Edge& edge : graph_.in_edges(op))
        if (graph_[edge.from].backward) least = std::min(least, period[edge.from]);
      period[op] = least;
    }
    return period;
  }

  // Most periods look alike: those are whole. Nothing where too few are.
  std::optional<Repetition> along(Counts counts) const {
    const std::size_t periods = counts.most + std::size_t{1};
    const IdVector<OpId, std::uint32_t> period = this->periods(std::move(counts));
    std::vector<Hash> looks(periods);  // sums: the order of operators does not count
    std::vector<std::size_t> sizes(periods);
    for (const OpId op : graph_.ops()) {
      if (taken_[op] != 0) continue;
      looks[period[op]] += mix(refined_[op], Hash{3});
      ++sizes[period[op]];
    }
    std::map<Hash, std::vector<std::uint32_t>> alike;
    for (std::uint32_t i = 0; i < periods; ++i) alike[looks[i]].push_back(i);
    const std::vector<std::uint32_t>* whole = nullptr;
    std::size_t most = 0;  // operators
    for (const auto& [look, those] : alike) {
      const std::size_t covered = those.size() * sizes[those.front()];
      if (those.size() < least_ || covered <= most) continue;
      most = covered;
      whole = &those;
    }
    if (whole == nullptr) return std::nullopt;

    std::vector<std::vector<OpId>> members(periods);
    for (const OpId op : graph_.topological_order())
      if (taken_[op] == 0) members[period[op]].push_back(op);
    for (std::vector<OpId>& ops : members)
      std::stable_sort(ops.begin(), ops.end(),
                       [&](OpId a, OpId b) { return colour(a) < colour(b); });
    Repetition result;
    result.periods = periods;
    result.whole = *whole;
    const std::vector<OpId>& pattern = members[result.whole.front()];
    result.slots = pattern.size();
    result.at = IdVector<OpId, std::optional<Repetition::Position>>(graph_.num_ops());
    for (std::uint32_t i = 0; i < periods; ++i) assign(i, members[i], pattern, result);
    return result;
  }

  // A whole period beside the pattern, slot by slot; one at the ends as far as it has the same
  // operators, whatever their surroundings.
  void assign(std::uint32_t period, std::span<const OpId> ops, std::span<const OpId> pattern,
              Repetition& result) const {
    std::map<Hash, std::vector<std::uint32_t>> free;  // slots, by the operator's own colour
    const bool whole = std::binary_search(result.whole.begin(), result.whole.end(), period);
    for (std::uint32_t slot = 0; slot < pattern.size(); ++slot) {
      if (whole)
        result.at[ops[slot]] = {period, slot};
      else
        free[own_[pattern[slot]]].push_back(slot);
    }
    if (whole) return;
    std::map<Hash, std::size_t> used;
    for (const OpId op : ops) {
      const auto slots = free.find(own_[op]);
      if (slots == free.end()) continue;
      if (std::size_t& next = used[own_[op]]; next < slots->second.size())
        result.at[op] = {period, slots->second[next++]};
    }
  }

  std::pair<Hash, Hash> colour(OpId op) const { return {own_[op], refined_[op]}; }

  const OpGraph& graph_;
  const std::size_t least_;
  const Colours own_, refined_;
  const IdVector<OpId, std::uint32_t> depth_;
  IdVector<OpId, char> taken_;  // by a repetition that was found before
};

}  // namespace

std::vector<Repetition> find_repetitions(const OpGraph& graph, std::size_t least) {
  std::vector<Repetition> found = Finder(graph, least, by_costs(graph)).run();
  // Measured times of equal operators differ, and so do the sizes of cells that become narrower.
  if (found.empty()) found = Finder(graph, least, by_kinds(graph)).run();
  return found;
}

Images::Images(const OpGraph& graph, const std::vector<Repetition>& repetitions)
    : seats_(graph.num_ops()) {
  for (const Repetition& repetition : repetitions) {
    const std::size_t first = rows_.size();
    rows_.resize(first + repetition.slots, {decltype(Row::ops)(repetition.periods)});
    for (const OpId op : graph.ops()) {
      const auto& at = repetition.at[op];
      if (!at.has_value()) continue;
      const auto row = static_cast<std::uint32_t>(first + at->slot);
      rows_[row].ops[at->period] = op;
      seats_[op] = Seat{row, at->period};
    }
  }
}

std::int64_t Images::before(OpId op) const {
  return seats_[op].has_value() ? std::int64_t{seats_[op]->period} : 0;
}

std::int64_t Images::behind(OpId op) const {
  if (!seats_[op].has_value()) return 0;
  return static_cast<std::int64_t>(rows_[seats_[op]->row].ops.size()) - 1 - seats_[op]->period;
}

std::optional<OpId> Images::image(OpId op, std::int64_t shift) const {
  if (-shift > before(op) || shift > behind(op) || !seats_[op].has_value()) return std::nullopt;
  const Seat& seat = *seats_[op];
  return rows_[seat.row].ops[static_cast<std::size_t>(std::int64_t{seat.period} + shift)];
}

}  // namespace baechi
