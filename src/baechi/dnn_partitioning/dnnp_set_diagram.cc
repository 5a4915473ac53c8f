// SPDX-License-Identifier: Apache-2.0
#include "baechi/dnn_partitioning/dnnp_set_diagram.h"

#include <algorithm>
#include <array>
#include <optional>

namespace baechi::dnnp {
namespace {

// Two bits of a state per tensor under way.
constexpr std::size_t kSlots = 32;
constexpr std::uint64_t kTaken = 1, kLeft = 2, kBoth = 3;

struct Way {  // of a net through the sequence
  std::size_t net = 0, first = 0, last = 0, source = 0;
  Ns out = 0, in = 0;
  std::optional<std::size_t> slot = {};

  Ns least() const { return std::min(out, in); }
};

struct Touch {  // of a net by the group in turn
  std::size_t way = 0;
  bool first = false, last = false, source = false, source_seen = false;
};

// The nets that cost more than what is ignored, each in a slot of its own while it is under way;
// where slots are short the cheapest has none.
std::vector<Way> ways_of(const Instance& in, const std::vector<std::size_t>& at, std::size_t part,
                         Ns ignored) {
  std::vector<Way> ways;
  for (std::size_t net = 0; net < in.nets.size(); ++net) {
    const std::size_t source = at[in.nets[net].source];
    Way way{net, source, source, source, in.out_of(net, part), in.in_to(net, part)};
    if (std::max(way.out, way.in) <= ignored) continue;
    for (const Index reader : in.nets[net].readers) {
      way.first = std::min(way.first, at[reader]);
      way.last = std::max(way.last, at[reader]);
    }
    ways.push_back(way);
  }
  std::ranges::stable_sort(ways, {}, &Way::first);
  std::array<std::optional<std::size_t>, kSlots> held;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    std::size_t cheapest = 0;
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      if (!held[slot].has_value() || ways[*held[slot]].last < ways[i].first) {
        cheapest = slot;
        held[slot].reset();
        break;
      }
      if (ways[*held[slot]].least() < ways[*held[cheapest]].least()) cheapest = slot;
    }
    if (const auto other = held[cheapest]; other.has_value()) {
      if (ways[*other].least() >= ways[i].least()) continue;
      ways[*other].slot.reset();
    }
    held[cheapest] = i;
    ways[i].slot = cheapest;
  }
  return ways;
}

// What taking or leaving a group costs by the tensors that it touches; the state goes along.
Ns follow(const std::vector<Touch>& touches, const std::vector<Way>& ways, bool taken,
          std::uint64_t& state) {
  const std::uint64_t side = taken ? kTaken : kLeft;
  Ns cost = 0;
  for (const Touch& touch : touches) {
    const Way& way = ways[touch.way];
    if (!way.slot.has_value()) continue;
    const std::size_t shift = 2 * *way.slot;
    std::uint64_t now = touch.first ? side : (state >> shift) & kBoth;
    if (now == kBoth) {
      if (touch.source) cost += (taken ? way.out : way.in) - way.least();
    } else if (now != side) {
      // Where the source is still to come, what it costs in either case.
      const bool source_taken = touch.source ? taken : now == kTaken;
      cost += !touch.source_seen ? way.least() : source_taken ? way.out : way.in;
      now = kBoth;
    }
    state &= ~(kBoth << shift);
    if (!touch.last) state |= now << shift;
  }
  return cost;
}

}  // namespace

SetDiagram::SetDiagram(const Instance& in, const Sequence& sequence, std::size_t part,
                       std::size_t most_states, Ns ignored)
    : sequence_(sequence) {
  std::vector<std::size_t> at(sequence.size());
  for (std::size_t i = 0; i < sequence.size(); ++i) at[sequence[i]] = i;
  std::vector<Way> ways = ways_of(in, at, part, ignored);
  std::vector<std::vector<Touch>> touches(sequence.size());
  for (std::size_t i = 0; i < ways.size(); ++i) {
    const auto touch = [&](std::size_t group) {
      const std::size_t step = at[group];
      touches[step].push_back({i, step == ways[i].first, step == ways[i].last,
                               step == ways[i].source, step >= ways[i].source});
    };
    touch(in.nets[ways[i].net].source);
    for (const Index reader : in.nets[ways[i].net].readers) touch(reader);
  }
  std::vector<std::uint64_t> states{0}, next;
  std::vector<std::size_t> under_way;
  for (std::size_t step = 0; step < sequence.size(); ++step) {
    for (const Touch& touch : touches[step])
      if (touch.first) under_way.push_back(touch.way);
    std::erase_if(under_way, [&](std::size_t way) {
      return ways[way].last == step || !ways[way].slot.has_value();
    });
    const bool here = in.time_on(sequence[step], part) < kNever &&
                      in.groups[sequence[step]].bytes <= in.capacity[part];
    while (true) {
      next.clear();
      for (const bool taken : {false, true})
        for (std::uint64_t state : states) {
          if (taken && !here) continue;
          follow(touches[step], ways, taken, state);
          next.push_back(state);
        }
      std::ranges::sort(next);
      next.erase(std::unique(next.begin(), next.end()), next.end());
      if (next.size() <= most_states || under_way.empty()) break;
      const auto cheapest = std::ranges::min_element(
          under_way, {}, [&](std::size_t way) { return ways[way].least(); });
      for (std::uint64_t& state : states) state &= ~(kBoth << 2 * *ways[*cheapest].slot);
      ways[*cheapest].slot.reset();
      under_way.erase(cheapest);
    }
    const auto place = [&](std::uint64_t state) {
      return static_cast<Index>(std::ranges::lower_bound(next, state) - next.begin());
    };
    std::vector<State>& layer = layers_.emplace_back();
    for (const std::uint64_t state : states) {
      std::uint64_t left = state, taken = state;
      State row;
      row.cost_left = follow(touches[step], ways, false, left);
      row.if_left = row.if_taken = place(left);
      row.cost_taken = kNever;
      if (here) {
        row.cost_taken =
            in.time_on(sequence[step], part) + follow(touches[step], ways, true, taken);
        row.if_taken = place(taken);
      }
      layer.push_back(row);
    }
    states = next;
  }
}

std::size_t SetDiagram::num_states() const {
  std::size_t all = 0;
  for (const std::vector<State>& layer : layers_) all += layer.size();
  return all;
}

namespace {

struct Pair {  // of load and price, and where it came from in the layer before
  Ns load = 0;
  Price price = 0;
  Index state = 0, pair = 0;
  bool taken = false;
};
using Pairs = std::vector<Pair>;  // of a state; loads and prices ascend

// Keeps what no other one beats: less load and no less price.
void keep_unbeaten(Pairs& pairs) {
  std::ranges::sort(pairs, [](const Pair& a, const Pair& b) {
    if (a.load != b.load) return a.load < b.load;
    if (a.price != b.price) return a.price > b.price;
    if (a.state != b.state) return a.state < b.state;
    return a.pair < b.pair;
  });
  std::size_t kept = 0;
  for (const Pair& pair : pairs)
    if (kept == 0 || pair.price > pairs[kept - 1].price) pairs[kept++] = pair;
  pairs.resize(kept);
}

// Unites neighbors: the load of the first with the price of the second beats both.
void unite(Pairs& pairs, std::size_t most) {
  while (pairs.size() > most) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < pairs.size(); i += 2) {
      Pair united = pairs[std::min(i + 1, pairs.size() - 1)];
      united.load = pairs[i].load;
      pairs[kept++] = united;
    }
    pairs.resize(kept);
  }
}

}  // namespace

class DearestSearch {
 public:
  DearestSearch(const SetDiagram& diagram, const std::vector<Price>& prices, Ns limit, Price above)
      : diagram_(diagram), prices_(prices), limit_(limit), above_(above) {
    const double unit = static_cast<double>(above) / static_cast<double>(std::max<Ns>(limit, 1));
    constexpr std::array<double, kRates> kShares{0.7, 0.9, 1.0, 1.1, 1.3, 1.6};
    for (std::size_t r = 0; r < kRates; ++r) rates_[r] = kShares[r] * unit;
    double all = 0.0;
    for (const Price price : prices) all += static_cast<double>(price);
    // The sums below are rounded: terms are kept above -2 * all, so that they are off by less.
    floor_ = -2.0 * all;
    enough_ = static_cast<double>(above) - 1e-9 * all;
  }

  DearestSet run(std::size_t most_pairs, std::int64_t& work) {
    weigh_rest();
    const std::size_t n = diagram_.layers_.size();
    pairs_.assign(n + 1, {});
    pairs_[0].assign(1, {Pair{}});
    for (std::size_t step = 0; step < n; ++step) {
      extend(step);
      std::vector<Pairs>& next = pairs_[step + 1];
      for (Pairs& pairs : next) {
        work += static_cast<std::int64_t>(pairs.size() + 1);
        keep_unbeaten(pairs);
        unite(pairs, most_pairs / next.size() + 1);
      }
    }
    const Pairs& ends = pairs_[n][0];
    if (ends.empty() || ends.back().price <= above_) return {above_, {}, 0};
    return trace_back(static_cast<Index>(ends.size() - 1));
  }

 private:
  static constexpr std::size_t kRates = 6;

  // What the groups to come can add at most: with a price on load instead of a limit.
  void weigh_rest() {
    const std::size_t n = diagram_.layers_.size();
    rest_.resize(n + 1);
    rest_[n].assign(1, {});
    for (std::size_t step = n; step-- > 0;) {
      const auto price = static_cast<double>(prices_[diagram_.sequence_[step]]);
      for (const SetDiagram::State& state : diagram_.layers_[step]) {
        std::array<double, kRates>& rest = rest_[step].emplace_back();
        for (std::size_t r = 0; r < kRates; ++r) {
          rest[r] =
              rest_[step + 1][state.if_left][r] - rates_[r] * static_cast<double>(state.cost_left);
          if (state.cost_taken < kNever)
            rest[r] = std::max(rest[r], rest_[step + 1][state.if_taken][r] + price -
                                            rates_[r] * static_cast<double>(state.cost_taken));
          rest[r] = std::max(rest[r], floor_);
        }
      }
    }
  }

  void extend(std::size_t step) {
    const std::vector<SetDiagram::State>& layer = diagram_.layers_[step];
    pairs_[step + 1].resize(rest_[step + 1].size());
    for (Index at = 0; at < layer.size(); ++at) {
      const SetDiagram::State& state = layer[at];
      follow(step, at, state.if_left, state.cost_left, false);
      if (state.cost_taken < kNever) follow(step, at, state.if_taken, state.cost_taken, true);
    }
  }

  void follow(std::size_t step, Index from, Index to, Ns cost, bool taken) {
    const Price price = taken ? prices_[diagram_.sequence_[step]] : 0;
    const std::array<double, kRates>& rest = rest_[step + 1][to];
    const Pairs& pairs = pairs_[step][from];
    for (Index i = 0; i < pairs.size(); ++i) {
      const Pair next{pairs[i].load + cost, pairs[i].price + price, from, i, taken};
      if (next.load > limit_) break;
      const auto room = static_cast<double>(limit_ - next.load);
      double more = rest[0] + rates_[0] * room;
      for (std::size_t r = 1; r < kRates; ++r) more = std::min(more, rest[r] + rates_[r] * room);
      if (static_cast<double>(next.price) + more > enough_) pairs_[step + 1][to].push_back(next);
    }
  }

  DearestSet trace_back(Index last) const {
    DearestSet found;
    Index state = 0, at = last;
    found.most = pairs_.back()[state][at].price;
    for (std::size_t step = diagram_.layers_.size(); step-- > 0;) {
      const Pair& pair = pairs_[step + 1][state][at];
      const SetDiagram::State& before = diagram_.layers_[step][pair.state];
      found.load += pair.taken ? before.cost_taken : before.cost_left;
      if (pair.taken) found.groups.push_back(diagram_.sequence_[step]);
      state = pair.state;
      at = pair.pair;
    }
    return found;
  }

  const SetDiagram& diagram_;
  const std::vector<Price>& prices_;
  Ns limit_;
  Price above_;
  std::array<double, kRates> rates_{};
  double floor_ = 0.0, enough_ = 0.0;
  std::vector<std::vector<std::array<double, kRates>>> rest_;  // [layer][state]
  std::vector<std::vector<Pairs>> pairs_;                      // [layer][state]
};

DearestSet SetDiagram::dearest(const std::vector<Price>& prices, Ns limit, Price above,
                               std::size_t most_pairs, std::int64_t& work) const {
  return DearestSearch(*this, prices, limit, above).run(most_pairs, work);
}

}  // namespace baechi::dnnp
