// SPDX-License-Identifier: Apache-2.0
#include "baechi/dnn_partitioning/dnnp_bound.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "baechi/base/wide.h"
#include "baechi/dnn_partitioning/dnnp_segments.h"
#include "baechi/dnn_partitioning/dnnp_set_diagram.h"

namespace baechi::dnnp {
namespace {

constexpr double kScale = 0x1.0p40;     // of prices: about what one accelerator has
constexpr Ns kFine = 1000;              // a thousandth of the value is little
constexpr std::size_t kFewPairs = 300;  // to begin with; more where uniting them misleads
constexpr int kMostRounds = 400, kPatience = 60;

// What the host takes within a limit at most: the dearest per time first, the last in part.
struct HostShare {
  Price most = 0;
  std::vector<double> share;  // of every group
};

HostShare share_of_host(const Instance& in, const std::vector<Price>& prices, Ns limit) {
  HostShare host{0, std::vector<double>(prices.size(), 0.0)};
  if (!in.has_host) return host;
  const auto time = [&](std::size_t group) { return in.time_on(group, in.host()); };
  std::vector<std::size_t> order;
  for (std::size_t group = 0; group < prices.size(); ++group)
    if (prices[group] > 0 && time(group) < kNever) order.push_back(group);
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return static_cast<WideInt>(prices[a]) * time(b) > static_cast<WideInt>(prices[b]) * time(a);
  });
  Ns room = limit;
  for (const std::size_t group : order) {
    if (time(group) > room) {
      const WideInt part = static_cast<WideInt>(prices[group]) * room / time(group) + 1;
      host.most += static_cast<Price>(part);
      host.share[group] = static_cast<double>(room) / static_cast<double>(time(group));
      break;
    }
    room -= time(group);
    host.most += prices[group];
    host.share[group] = 1.0;
  }
  return host;
}

// The shortest time on an accelerator, or on any part.
std::vector<Price> least_times(const Instance& in, std::size_t num_parts) {
  std::vector<Price> least(in.groups.size(), kNever);
  for (std::size_t group = 0; group < least.size(); ++group)
    for (std::size_t part = 0; part < num_parts; ++part)
      least[group] = std::min(least[group], in.time_on(group, part));
  return least;
}

// Without transfers: the longest group alone, and the work shared out, with times for prices.
Ns without_transfers(const Instance& in, const std::vector<Price>& times, Ns value) {
  Ns low = 0, high = value;
  for (const Ns time : least_times(in, in.num_parts())) low = std::max(low, time);
  WideInt all = 0;
  for (const Price time : times) all += time;
  while (low < high) {
    const Ns middle = low + (high - low) / 2;
    const WideInt accelerators =
        static_cast<WideInt>(middle) * static_cast<Ns>(in.num_accelerators);
    if (all > accelerators + share_of_host(in, times, middle).most)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// Looks for prices that prove a limit on the load impossible: they add up to more than all parts
// together can have. Prices go down where the dearest sets are and up elsewhere (a subgradient of
// the excess, deflected by the directions before).
class PriceSearch {
 public:
  PriceSearch(const Instance& in, std::vector<Price> times, Ns ignored, const BoundEffort& effort)
      : in_(in), effort_(effort), prices_(times.begin(), times.end()) {
    const std::vector<Sequence> sequences = good_sequences(in);
    const std::size_t n = in.groups.size() + 1;
    most_pairs_ = std::clamp<std::size_t>(2'000'000 / n, 64, 16'000);
    const std::size_t most_states = std::clamp<std::size_t>(200'000 / n, 8, 2'000);
    for (std::size_t part = 0; part < in.num_accelerators; ++part) {
      if (in.type[part] < kinds_.size()) {
        kinds_[in.type[part]].count += 1;
        continue;
      }
      std::optional<SetDiagram> least;
      for (const Sequence& sequence : sequences) {
        SetDiagram diagram(in, sequence, part, most_states, ignored);
        if (!least.has_value() || diagram.num_states() < least->num_states())
          least = std::move(diagram);
      }
      kinds_.push_back({1, 1.0, *std::move(least)});
    }
  }

  // Whether it is proved that every placement has a load above `limit`.
  bool refutes(Ns limit, std::int64_t& work) {
    State state{prices_, std::vector<double>(prices_.size(), 0.0), kFewPairs};
    std::optional<double> least;
    for (int round = 0, idle = 0; round < kMostRounds && idle < kPatience; ++round) {
      if (work >= effort_.work || effort_.stop()) return false;
      const std::optional<double> excess = step(state, limit, work);
      if (!excess.has_value()) return false;
      if (*excess <= 0.0) {
        prices_ = state.prices;
        return true;
      }
      ++idle;
      if (least.has_value() && *excess > 0.95 * *least) continue;
      least = excess;
      idle = 0;
    }
    return false;
  }

 private:
  struct Kind {  // accelerators that cannot be told apart
    Price count = 0;
    double has = 1.0;  // of all prices, at last count
    SetDiagram diagram;
  };
  struct State {
    std::vector<double> prices, direction;
    std::size_t pairs;  // of the diagrams' layers
  };

  // One step downhill. How much more than all prices the parts can have together, in units of
  // kScale; 0 where that is proved to be less; absent where the host can have everything.
  std::optional<double> step(State& state, Ns limit, std::int64_t& work) {
    const std::optional<std::vector<Price>> prices = rounded(state.prices);
    if (!prices.has_value()) return std::nullopt;
    const HostShare host = share_of_host(in_, *prices, limit);
    Price needed = -host.most;  // of the accelerators
    for (const Price price : *prices) needed += price;
    if (needed <= 0) return std::nullopt;
    std::vector<double> gradient;
    for (const double share : host.share) gradient.push_back(1.0 - share);
    double all = 0.0;
    for (const Kind& kind : kinds_) all += kind.has * static_cast<double>(kind.count);
    Price most = 0;
    for (Kind& kind : kinds_) {
      // Of several kinds each one's dearest set is wanted, also where another kind has room.
      const Price share =
          kinds_.size() == 1
              ? (needed - 1) / kind.count
              : static_cast<Price>(0.95 * kind.has / all * static_cast<double>(needed - 1));
      const DearestSet set = kind.diagram.dearest(*prices, limit, share, state.pairs, work);
      most += set.most * kind.count;
      kind.has = static_cast<double>(set.most) / kScale;
      for (const Index group : set.groups) gradient[group] -= static_cast<double>(kind.count);
      if (set.load > limit) state.pairs = std::min(2 * state.pairs, most_pairs_);
    }
    if (most < needed) return 0.0;
    const double excess = static_cast<double>(most - needed + 1) / kScale;
    move(state, *prices, gradient, excess);
    return excess;
  }

  std::optional<std::vector<Price>> rounded(const std::vector<double>& prices) const {
    double all = 0.0;
    for (const double price : prices) all += price;
    if (all <= 0.0) return std::nullopt;
    const double unit = kScale * static_cast<double>(in_.num_accelerators) / all;
    std::vector<Price> whole;
    for (const double price : prices) whole.push_back(static_cast<Price>(price * unit));
    return whole;
  }

  static void move(State& state, const std::vector<Price>& prices,
                   const std::vector<double>& gradient, double excess) {
    constexpr double kDeflection = 1.5, kStep = 1.5;
    const auto product = [](const std::vector<double>& a, const std::vector<double>& b) {
      double sum = 0.0;
      for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
      return sum;
    };
    const double along = product(gradient, state.direction);
    const double before =
        along < 0.0 ? -kDeflection * along / product(state.direction, state.direction) : 0.0;
    for (std::size_t i = 0; i < gradient.size(); ++i)
      state.direction[i] = gradient[i] + before * state.direction[i];
    const double length = product(state.direction, state.direction);
    if (length <= 0.0) return;
    for (std::size_t i = 0; i < prices.size(); ++i)
      state.prices[i] = std::max(0.0, static_cast<double>(prices[i]) / kScale +
                                          kStep * excess / length * state.direction[i]);
  }

  const Instance& in_;
  const BoundEffort& effort_;
  std::vector<double> prices_;  // the last that proved something; of times to begin with
  std::vector<Kind> kinds_;
  std::size_t most_pairs_ = 0;
};

}  // namespace

Ns max_load_bound(const Instance& in, Ns value, const BoundEffort& effort) {
  if (in.num_accelerators == 0 || value <= 0) return value;
  std::vector<Price> times = least_times(in, in.num_accelerators);
  for (std::size_t group = 0; group < times.size(); ++group)
    if (times[group] >= kNever) times[group] = in.time_on(group, in.host());
  Ns low = without_transfers(in, times, value);
  std::int64_t work = 0;
  // Cheap tensors make many states; they are looked at last.
  for (const Ns ignored : {value / kFine, Ns{0}}) {
    if (work >= effort.work) break;
    PriceSearch search(in, times, ignored, effort);
    Ns high = value;
    while (high - low > value / kFine && work < effort.work) {
      const Ns middle = low + (high - low) / 2;
      if (search.refutes(middle, work))
        low = middle + 1;
      else
        high = middle;
    }
    if (high == value && low < value && search.refutes(value - 1, work)) low = value;
    if (low == value) break;
  }
  return low;
}

}  // namespace baechi::dnnp
