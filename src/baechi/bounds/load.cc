// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/load.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "baechi/base/wide.h"

namespace baechi::bounds {
namespace {

constexpr std::int64_t kScale = kPricedBytes;

// Looks for good weights. First those of time: a device that gets more than its share becomes
// dearer; who gets what is decided softly at first and ever more sharply, since lumps with equal
// costs would all change sides at once. Then prices of memory, one device type at a time, and a
// climb along single coordinates. Works on a sample, since any weights give a bound, and with
// products and quotients alone, since those have the same bits on every platform.
class WeightSearch {
 public:
  WeightSearch(const Relaxation& relaxed, const Lumps& lumps)
      : lumps_(lumps), num_types_(relaxed.num_types()), stride_(1 + lumps.size / kSample) {
    double all_held = 0.0;
    for (const std::int64_t bytes : lumps.held) all_held += static_cast<double>(bytes);
    for (std::size_t lump = 0; lump < lumps.size; lump += stride_)
      held_ += static_cast<double>(lumps.held[lump]);
    for (const DeviceType& type : relaxed.types) {
      count_.push_back(static_cast<double>(type.count));
      capacity_.push_back(count_.back() * static_cast<double>(type.capacity) *
                          (all_held > 0.0 ? held_ / all_held : 1.0));
    }
  }

  LoadWeights run() {
    const Point timed = weigh_time();
    std::vector<Point> starts{timed};
    for (std::size_t type = 0; type < num_types_; ++type) {
      if (held_ <= capacity_[type]) continue;
      starts.push_back(price_memory(timed, type));
      Point without = timed;
      without.y[type] = 0.0;
      starts.push_back(price_memory(without, type));
    }
    Point best = *std::ranges::max_element(starts, {}, &Point::value);
    polish(best);
    return rounded(best);
  }

 private:
  static constexpr std::size_t kSample = 800, kSteps = 60;

  struct Point {
    std::vector<double> y, u;  // of a nanosecond and of a byte, by type
    double value = 0.0;        // the bound they give on the sample
  };

  void evaluate(Point& point) const {
    double value = 0.0, weight = 0.0;
    for (std::size_t type = 0; type < num_types_; ++type) {
      value -= point.u[type] * capacity_[type];
      weight += point.y[type] * count_[type];
    }
    for (std::size_t lump = 0; lump < lumps_.size; lump += stride_) value += least(point, lump);
    point.value = weight > 0.0 ? value / weight : 0.0;
  }

  double least(const Point& point, std::size_t lump) const {
    const auto held = static_cast<double>(lumps_.held[lump]);
    std::optional<double> least;
    for (std::size_t type = 0; type < num_types_; ++type) {
      const Ns k = lumps_.k[lump * num_types_ + type];
      if (k >= kNever) continue;
      const double cost = point.y[type] * static_cast<double>(k) + point.u[type] * held;
      if (!least.has_value() || cost < *least) least = cost;
    }
    return least.value_or(0.0);
  }

  // With times in proportion to speeds, weights equal to the speeds are the best there are: start
  // there.
  Point weigh_time() const {
    Point point{std::vector<double>(num_types_), std::vector<double>(num_types_, 0.0)};
    for (std::size_t type = 0; type < num_types_; ++type) {
      double fastest = 0.0, taken = 0.0;
      for (std::size_t lump = 0; lump < lumps_.size; lump += stride_) {
        const Ns* k = &lumps_.k[lump * num_types_];
        if (k[type] >= kNever) continue;
        fastest += static_cast<double>(*std::min_element(k, k + num_types_));
        taken += static_cast<double>(k[type]);
      }
      point.y[type] = taken > 0.0 ? std::max(fastest / taken, 1e-6) : 1.0;
    }
    evaluate(point);
    Point best = point;
    for (std::size_t step = 0; step < kSteps; ++step) {
      shift(point, step);
      evaluate(point);
      if (point.value > best.value) best = point;
    }
    return best;
  }

  // One step of the ascent: the weights follow the loads of a soft assignment.
  void shift(Point& point, std::size_t step) const {
    const std::size_t squarings = 3 + step * 5 / kSteps;
    std::vector<double> load(num_types_, 0.0), share(num_types_);
    for (std::size_t lump = 0; lump < lumps_.size; lump += stride_) {
      const double cheapest = least(point, lump);
      const Ns* k = &lumps_.k[lump * num_types_];
      double sum = 0.0;
      for (std::size_t type = 0; type < num_types_; ++type) {
        share[type] = 0.0;
        if (k[type] >= kNever) continue;
        const double cost = point.y[type] * static_cast<double>(k[type]);
        share[type] = cost > 0.0 ? cheapest / cost : 1.0;
        for (std::size_t i = 0; i < squarings; ++i) share[type] *= share[type];
        share[type] *= count_[type];
        sum += share[type];
      }
      for (std::size_t type = 0; type < num_types_; ++type)
        if (share[type] > 0.0) load[type] += share[type] / sum * static_cast<double>(k[type]);
    }
    double weighted_load = 0.0, weight = 0.0;
    for (std::size_t type = 0; type < num_types_; ++type) {
      weighted_load += point.y[type] * load[type];
      weight += point.y[type] * count_[type];
    }
    if (weighted_load <= 0.0) return;
    const double pace = 8.0 / (8.0 + static_cast<double>(step));
    for (std::size_t type = 0; type < num_types_; ++type) {
      const double excess = load[type] / count_[type] * weight / weighted_load - 1.0;
      point.y[type] *= std::clamp(1.0 + pace * excess, 0.5, 2.0);
    }
  }

  // The best price for the memory of one type, around what the time on the others is worth.
  Point price_memory(Point point, std::size_t type) const {
    evaluate(point);
    Point best = point;
    double elsewhere = 0.0;
    for (std::size_t lump = 0; lump < lumps_.size; lump += stride_) {
      std::optional<double> cheapest;
      for (std::size_t other = 0; other < num_types_; ++other) {
        const Ns k = lumps_.k[lump * num_types_ + other];
        if (other == type || k >= kNever) continue;
        const double cost = point.y[other] * static_cast<double>(k);
        if (!cheapest.has_value() || cost < *cheapest) cheapest = cost;
      }
      elsewhere += cheapest.value_or(0.0);
    }
    point.u[type] = elsewhere / held_ / 64.0;
    for (int doubling = 0; doubling <= 12; ++doubling, point.u[type] *= 2.0) {
      evaluate(point);
      if (point.value > best.value) best = point;
    }
    if (best.u[type] > 0.0) climb(best, &Point::u, type);
    return best;
  }

  // Multiplies one coordinate by ever smaller factors while that helps.
  void climb(Point& point, std::vector<double> Point::* coordinate, std::size_t type) const {
    constexpr int kMostMoves = 32;
    for (const double factor : {2.0, 1.4, 1.2, 1.1, 1.05, 1.02})
      for (const double by : {factor, 1.0 / factor})
        for (int moves = 0; moves < kMostMoves; ++moves) {
          Point moved = point;
          (moved.*coordinate)[type] *= by;
          evaluate(moved);
          if (moved.value <= point.value + 1e-6 * std::abs(point.value)) break;
          point = std::move(moved);
        }
  }

  void polish(Point& point) const {
    for (std::size_t type = 0; type < num_types_; ++type) {
      if (point.y[type] > 0.0) climb(point, &Point::y, type);
      if (point.u[type] > 0.0) climb(point, &Point::u, type);
    }
  }

  LoadWeights rounded(const Point& point) const {
    const double largest = *std::ranges::max_element(point.y);
    const auto scale = static_cast<double>(kScale);
    LoadWeights weights;
    for (std::size_t type = 0; type < num_types_; ++type) {
      weights.y.push_back(static_cast<std::int64_t>(point.y[type] / largest * scale));
      weights.price.push_back(
          static_cast<std::int64_t>(std::min(point.u[type] / largest * scale * scale, 0x1.0p60)));
    }
    return weights;
  }

  const Lumps& lumps_;
  const std::size_t num_types_, stride_;
  std::vector<double> count_, capacity_;  // capacities scaled down to the sample
  double held_ = 0.0;                     // by the sample
};

}  // namespace

Ns ceil_divide(WideInt dividend, WideInt divisor) {
  if (dividend <= 0 || divisor <= 0) return 0;
  return static_cast<Ns>((dividend + divisor - 1) / divisor);
}

std::int64_t total_weight(const Relaxation& relaxed, const LoadWeights& weights) {
  std::int64_t total = 0;
  for (std::size_t type = 0; type < relaxed.num_types(); ++type)
    total += static_cast<std::int64_t>(relaxed.types[type].count) * weights.y[type];
  return total;
}

Lumps lumps(const Relaxation& relaxed, const IdVector<OpId, UnitId>& component,
            std::size_t num_components) {
  const std::size_t num_types = relaxed.num_types();
  Lumps result;
  result.size = num_components;
  result.k.assign(num_components * num_types, 0);
  result.held.assign(num_components, 0);
  std::vector<std::int64_t> permanent(num_components, 0), running(num_components, 0);
  std::vector<bool> counted(relaxed.held.size(), false);
  for (const OpId op : component.keys()) {
    const std::size_t lump = component[op].index();
    for (std::size_t type = 0; type < num_types; ++type) {
      Ns& k = result.k[lump * num_types + type];
      k = std::min(kNever, k + relaxed.time(op, type));
    }
    const UnitId unit = relaxed.unit[op];
    if (counted[unit.index()]) continue;
    counted[unit.index()] = true;
    result.held[lump] += relaxed.held[unit];
    permanent[lump] += relaxed.permanent[unit];
    running[lump] = std::max(running[lump], relaxed.running[unit]);
  }
  for (std::size_t lump = 0; lump < num_components; ++lump)
    result.need.push_back(std::max(result.held[lump], permanent[lump] + running[lump]));
  return result;
}

LoadWeights balance(const Relaxation& relaxed, const Lumps& lumps) {
  if (relaxed.num_types() == 1) return {{1}, {0}};
  return WeightSearch(relaxed, lumps).run();
}

std::optional<WideInt> least_cost(const Lumps& lumps, const LoadWeights& weights) {
  const std::size_t num_types = weights.y.size();
  WideInt total = 0;
  for (std::size_t lump = 0; lump < lumps.size; ++lump) {
    std::optional<WideInt> least;
    for (std::size_t type = 0; type < num_types; ++type) {
      const Ns k = lumps.k[lump * num_types + type];
      if (k >= kNever) continue;
      const WideInt cost = static_cast<WideInt>(weights.y[type]) * k * kScale +
                           static_cast<WideInt>(weights.price[type]) * lumps.held[lump];
      if (!least.has_value() || cost < *least) least = cost;
    }
    if (!least.has_value()) return std::nullopt;
    total += *least;
  }
  return total;
}

Ns load(const Relaxation& relaxed, const Lumps& lumps, const LoadWeights& weights) {
  std::optional<WideInt> total = least_cost(lumps, weights);
  if (!total.has_value()) return kNever;
  for (std::size_t type = 0; type < relaxed.num_types(); ++type)
    *total -= static_cast<WideInt>(weights.price[type]) * relaxed.types[type].capacity *
              static_cast<std::int64_t>(relaxed.types[type].count);
  return ceil_divide(*total, static_cast<WideInt>(total_weight(relaxed, weights)) * kScale);
}

}  // namespace baechi::bounds
