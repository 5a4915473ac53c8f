// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/recompute/keep_or_recompute.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

namespace baechi {
namespace {

constexpr std::size_t kMostCuts = 48;
constexpr std::size_t kMostLabels = 64;  // of one cut, where there are many cuts

double time_per_byte(const ForwardRun& run) {
  return static_cast<double>(run.time.count()) /
         static_cast<double>(std::max<std::int64_t>(run.bytes.count(), 1));
}

// The time per byte of runs, cheapest first, below which a part of their bytes are.
std::vector<double> thresholds(const std::vector<ForwardRun>& runs) {
  std::vector<std::pair<double, std::int64_t>> sorted;
  std::int64_t total = 0;
  for (const ForwardRun& run : runs)
    if (run.may && run.needed && run.bytes > Bytes(0)) {
      sorted.emplace_back(time_per_byte(run), run.bytes.count());
      total += run.bytes.count();
    }
  std::sort(sorted.begin(), sorted.end());
  std::vector<double> result{std::numeric_limits<double>::infinity()};
  for (const int quarter : {3, 2, 1}) {
    std::int64_t sum = 0;
    for (const auto& [ratio, bytes] : sorted) {
      sum += bytes;
      if (sum < total / 4 * quarter) continue;
      if (ratio < result.back()) result.push_back(ratio);
      break;
    }
  }
  return result;
}

// The least time of what keeps up to so much, in a thousand steps of bytes or more: most of what can
// be reached in a dynamic program is dominated, and need not be sorted.
class Front {
 public:
  explicit Front(Bytes limit) {
    const auto count = static_cast<std::uint64_t>(std::max<std::int64_t>(limit.count(), 0));
    while (count >> shift_ >= 2 * kSteps) ++shift_;
    least_.resize((count >> shift_) + 1);
    clear();
  }

  void clear() { std::fill(least_.begin(), least_.end(), kNever); }
  void add(Bytes kept, Time time) {
    Time& least = least_[at(kept)];
    least = std::min(least, time);
  }
  // All are added.
  void close() {
    for (std::size_t i = 1; i < least_.size(); ++i) least_[i] = std::min(least_[i], least_[i - 1]);
  }
  // Something that keeps less takes no longer.
  bool beats(Bytes kept, Time time) const {
    const std::size_t i = at(kept);
    return i > 0 && least_[i - 1] <= time;
  }

 private:
  static constexpr std::uint64_t kSteps = 1000;
  static constexpr Time kNever{std::numeric_limits<std::int64_t>::max()};

  // Steps are powers of two: no division in the innermost loop.
  std::size_t at(Bytes kept) const { return static_cast<std::uint64_t>(kept.count()) >> shift_; }

  unsigned shift_ = 0;
  std::vector<Time> least_;
};

}  // namespace

KeepOrRecompute::KeepOrRecompute(std::vector<ForwardRun> runs) : runs_(std::move(runs)) {
  last_reader_.resize(runs_.size());
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    last_reader_[i] = i;
    for (const std::size_t reader : runs_[i].readers)
      last_reader_[i] = std::max(last_reader_[i], reader);
  }
  choose_cuts();
  const std::vector<double> most = thresholds(runs_);
  regions_.resize(cuts_.size());
  for (std::size_t to = 1; to < cuts_.size(); ++to)
    for (std::size_t from = 0; from < to; ++from) {
      const std::size_t first = regions_[to].size();
      for (const double threshold : most)
        for (const bool keep_last : {false, true}) {
          if (keep_last && to + 1 < cuts_.size()) continue;
          const Region way{.from = from, .most = threshold, .keep_last = keep_last};
          const Region found = region(cuts_[from], cuts_[to], way, nullptr);
          const bool dominated =
              std::any_of(regions_[to].begin() + static_cast<std::ptrdiff_t>(first),
                          regions_[to].end(), [&](const Region& other) {
                            return other.kept <= found.kept && other.again <= found.again &&
                                   other.time <= found.time;
                          });
          if (!dominated) regions_[to].push_back(found);
        }
    }
  Bytes low, high(1);
  for (const ForwardRun& run : runs_) high += run.bytes;
  while (high - low > Bytes(std::max<std::int64_t>(high.count() / 1000, 1))) {
    const Bytes middle = low + Bytes((high - low).count() / 2);
    (least_kept(middle).has_value() ? high : low) = middle;
  }
  least_ = high;
}

// Few places where little is read across, about equally far from each other in bytes.
void KeepOrRecompute::choose_cuts() {
  const std::size_t n = runs_.size();
  cuts_.assign(1, 0);
  std::vector<Bytes> crossing(n + 1);
  std::vector<Bytes> ending(n + 1);
  Bytes total, open;
  for (std::size_t i = 0; i < n; ++i) {
    total += runs_[i].bytes;
    open += runs_[i].bytes;
    ending[last_reader_[i]] += runs_[i].bytes;
    open -= ending[i];
    crossing[i + 1] = open;
  }
  Bytes sum;
  std::size_t first = 1, part = 1;  // of the cuts to choose from next
  for (std::size_t cut = 1; cut < n; ++cut) {
    sum += runs_[cut - 1].bytes;
    // In doubles, which are exact enough for a choice and the same everywhere.
    const double share = static_cast<double>(total.count()) * static_cast<double>(part);
    if (n > kMostCuts && static_cast<double>(sum.count()) * kMostCuts < share) continue;
    const auto at = [&](std::size_t i) {
      return crossing.begin() + static_cast<std::ptrdiff_t>(i);
    };
    cuts_.push_back(static_cast<std::size_t>(std::min_element(at(first), at(cut + 1)) - at(0)));
    first = cut + 1;
    ++part;
  }
  if (n > 0) cuts_.push_back(n);
}

KeepOrRecompute::Region KeepOrRecompute::region(std::size_t begin, std::size_t end,
                                                const Region& way,
                                                std::vector<bool>* repeated) const {
  Region result{.from = way.from, .most = way.most, .keep_last = way.keep_last};
  std::vector<bool> again(end - begin);
  for (std::size_t i = end; i-- > begin;) {
    const ForwardRun& run = runs_[i];
    const bool inside = last_reader_[i] < end && !(way.keep_last && i + 1 == end);
    bool use = run.needed;
    for (const std::size_t reader : run.readers)
      use = use || (reader < end && again[reader - begin]);
    // What takes long is kept; what the backward pass needs only to make others again is not.
    const bool cheap = !run.needed || time_per_byte(run) <= way.most;
    if (run.may && inside && use && cheap) {
      again[i - begin] = true;
      result.again += run.bytes;
      result.time += run.time;
    } else if (use || !inside) {
      result.kept += run.bytes;
    }
  }
  if (repeated != nullptr)
    for (std::size_t i = begin; i < end; ++i) (*repeated)[i] = again[i - begin];
  return result;
}

std::optional<std::vector<const KeepOrRecompute::Region*>> KeepOrRecompute::least_kept(
    Bytes limit) const {
  std::vector<std::optional<Bytes>> kept(cuts_.size());
  std::vector<const Region*> chosen(cuts_.size());
  kept[0] = Bytes(0);
  for (std::size_t to = 1; to < cuts_.size(); ++to)
    for (const Region& region : regions_[to]) {
      if (!kept[region.from].has_value()) continue;
      const Bytes sum = *kept[region.from] + region.kept;
      if (sum + region.again > limit || (kept[to].has_value() && *kept[to] <= sum)) continue;
      kept[to] = sum;
      chosen[to] = &region;
    }
  if (!kept.back().has_value()) return std::nullopt;
  return chosen;
}

std::vector<bool> KeepOrRecompute::regions_within(Bytes limit) const {
  std::vector<bool> repeated(runs_.size());
  const auto chosen = least_kept(limit);
  for (std::size_t at = cuts_.size() - 1; chosen.has_value() && at > 0; at = (*chosen)[at]->from)
    region(cuts_[(*chosen)[at]->from], cuts_[at], *(*chosen)[at], &repeated);
  return repeated;
}

std::optional<std::vector<bool>> KeepOrRecompute::within(Bytes limit) const {
  std::vector<std::vector<Label>> labels(cuts_.size());
  labels[0].push_back({Bytes(0), Time(0), nullptr, 0});
  Front front(limit);
  for (std::size_t to = 1; to < cuts_.size(); ++to) {
    const auto each = [&](const auto& take) {
      for (const Region& region : regions_[to])
        for (std::size_t i = 0; i < labels[region.from].size(); ++i) {
          const Label& label = labels[region.from][i];
          const Bytes kept = label.kept + region.kept;
          if (kept + region.again > limit) break;  // labels are sorted by what they keep
          take(Label{kept, label.time + region.time, &region, i});
        }
    };
    front.clear();
    each([&](const Label& label) { front.add(label.kept, label.time); });
    front.close();
    std::vector<Label> found;
    each([&](const Label& label) {
      if (!front.beats(label.kept, label.time)) found.push_back(label);
    });
    std::stable_sort(found.begin(), found.end(), [](const Label& a, const Label& b) {
      return a.kept != b.kept ? a.kept < b.kept : a.time < b.time;
    });
    for (const Label& label : found)
      if (labels[to].empty() || label.time < labels[to].back().time) labels[to].push_back(label);
    // Evenly spread ones of too many, the first and the last among them.
    if (labels[to].size() > kMostLabels && runs_.size() > kMostCuts) {
      std::vector<Label> few;
      for (std::size_t i = 0; i < kMostLabels; ++i)
        few.push_back(labels[to][i * (labels[to].size() - 1) / (kMostLabels - 1)]);
      labels[to] = std::move(few);
    }
  }
  std::vector<bool> repeated(runs_.size());
  if (cuts_.size() == 1) return repeated;
  if (labels.back().empty()) return std::nullopt;
  std::size_t at = cuts_.size() - 1, which = labels.back().size() - 1;
  while (at > 0) {
    const Label& label = labels[at][which];
    region(cuts_[label.region->from], cuts_[at], *label.region, &repeated);
    at = label.region->from;
    which = label.before;
  }
  return repeated;
}

}  // namespace baechi
