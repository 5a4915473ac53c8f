// SPDX-License-Identifier: Apache-2.0
#include "baechi/dnn_partitioning/dnnp_search.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "baechi/base/assert.h"
#include "baechi/base/random.h"
#include "baechi/dnn_partitioning/dnnp_assignment.h"
#include "baechi/dnn_partitioning/dnnp_bound.h"
#include "baechi/dnn_partitioning/dnnp_instance.h"
#include "baechi/dnn_partitioning/dnnp_segments.h"

namespace baechi {
namespace {

using dnnp::Assignment;
using dnnp::Index;
using dnnp::Instance;
using dnnp::kNever;
using dnnp::Ns;

// Loads and neighbors that a search looks at in a second of one core, about.
constexpr double kWorkPerSecond = 40e6;
constexpr double kBoundWorkPerSecond = 4e6;   // pairs of load and price that a bound looks at
constexpr std::size_t kStreams = 6;           // searches of a round
constexpr std::int64_t kFirstRound = 32'000;  // work of each of them in the first round
constexpr std::int64_t kRoundGrowth = 4;
constexpr std::int64_t kLongestHistory = 4000;

// Late acceptance: a move may be as bad as where the search was some steps ago.
class LocalSearch {
 public:
  LocalSearch(const Instance& instance, DnnpObjective objective, const std::vector<Index>& start,
              std::uint64_t seed, std::size_t history)
      : in_(instance),
        objective_(objective),
        random_(seed),
        now_(instance, instance.host()),
        best_parts_(start) {
    for (std::size_t group = 0; group < start.size(); ++group)
      if (start[group] != in_.host()) now_.move(group, start[group]);
    scale_ = std::max(1.0, static_cast<double>(now_.max_load()));
    cost_ = *cost();
    best_ = best_cost_value();
    history_.assign(history, cost_);
  }

  Ns best() const { return best_; }
  const std::vector<Index>& best_parts() const { return best_parts_; }

  template <class Stop>
  void run(std::int64_t work, const Stop& stop) {
    for (work_ = 0; work_ < work && !stop();) step();
  }

 private:
  // What is minimised: the latency; or a high power sum of the loads, which is the largest load
  // but for a slope where several are close to it. Nothing: calls wait for each other.
  std::optional<double> cost() {
    if (objective_ == DnnpObjective::kLatency) {
      work_ += static_cast<std::int64_t>(in_.num_accelerators * in_.num_accelerators / 4);
      const std::optional<Ns> latency = now_.latency();
      if (!latency.has_value()) return std::nullopt;
      return static_cast<double>(*latency);
    }
    double sum = 0;
    for (const Ns load : now_.loads()) {
      const double share = static_cast<double>(load) / scale_;
      const double fourth = share * share * share * share;
      sum += fourth * fourth * fourth * fourth;
    }
    return sum;
  }
  Ns best_cost_value() {
    return objective_ == DnnpObjective::kLatency ? *now_.latency() : now_.max_load();
  }

  void step() {
    changed_.clear();
    if (!propose()) {
      undo();
      ++work_;
      return;
    }
    const std::optional<double> cost = this->cost();
    double& late = history_[step_++ % history_.size()];
    if (!cost.has_value() || (*cost > cost_ && *cost >= late)) {
      undo();
    } else {
      cost_ = *cost;
      const Ns value = best_cost_value();
      if (value < best_) {
        best_ = value;
        best_parts_ = now_.parts();
      }
    }
    late = cost_;
  }

  void move(std::size_t group, std::size_t to) {
    changed_.emplace_back(static_cast<Index>(group), static_cast<Index>(now_.part(group)));
    const Instance::Group& row = in_.groups[group];
    work_ += static_cast<std::int64_t>(1 + row.reads.size() + row.makes.size() + row.before.size() +
                                       row.after.size());
    now_.move(group, to);
  }

  void undo() {
    for (auto change = changed_.rbegin(); change != changed_.rend(); ++change)
      now_.move(change->first, change->second);
  }

  bool propose() {
    const std::size_t group = pick_group();
    const std::size_t from = now_.part(group);
    const std::size_t to = pick_part(group);
    if (to == from) return false;
    const std::uint64_t kind = random_.below(8);
    if (kind < 2) return swap(group, to);
    return move_region(group, to, kind < 5 ? 1 : 2 + random_.below(kind < 7 ? 6 : 30));
  }

  // Often one of those that make the objective what it is.
  std::size_t pick_group() {
    const std::size_t n = in_.groups.size();
    std::size_t group = random_.below(n);
    if (objective_ == DnnpObjective::kLatency || random_.below(3) == 0) return group;
    const auto& loads = now_.loads();
    const auto busiest = static_cast<std::size_t>(std::ranges::max_element(loads) - loads.begin());
    for (std::size_t tries = 0; tries < n && now_.part(group) != busiest; ++tries)
      group = group + 1 == n ? 0 : group + 1;
    return group;
  }

  // Mostly where a neighbor is.
  std::size_t pick_part(std::size_t group) {
    const Instance::Group& row = in_.groups[group];
    if (random_.below(5) > 0) {
      const std::size_t neighbors = row.before.size() + row.after.size();
      for (int tries = 0; tries < 3 && neighbors > 0; ++tries) {
        const std::size_t at = random_.below(neighbors);
        const std::size_t other =
            at < row.before.size() ? row.before[at] : row.after[at - row.before.size()];
        if (now_.part(other) != now_.part(group)) return now_.part(other);
      }
    }
    return random_.below(in_.num_accelerators + (in_.has_host ? 1 : 0));
  }

  bool allowed(std::size_t group, std::size_t part) const {
    return in_.time_on(group, part) < kNever;
  }

  bool swap(std::size_t group, std::size_t to) {
    const std::size_t from = now_.part(group), n = in_.groups.size();
    std::size_t other = random_.below(n);
    for (std::size_t tries = 0; now_.part(other) != to; ++tries) {
      if (tries == n) return false;
      other = other + 1 == n ? 0 : other + 1;
    }
    if (!allowed(group, to) || !allowed(other, from)) return false;
    move(group, to);
    if (!now_.has_room(other, from)) return false;
    move(other, from);
    return now_.bytes(to) <= in_.capacity[to];
  }

  // The group and up to `size` - 1 others of its part that are near it in the graph.
  bool move_region(std::size_t group, std::size_t to, std::size_t size) {
    const std::size_t from = now_.part(group);
    region_.assign(1, static_cast<Index>(group));
    // Grown in one direction or both.
    const std::uint64_t direction = size > 1 ? random_.below(3) : 0;
    for (std::size_t next = 0; next < region_.size(); ++next) {
      const std::size_t member = region_[next];
      if (!allowed(member, to) || !now_.has_room(member, to)) return next > 0;
      move(member, to);
      const Instance::Group& row = in_.groups[member];
      if (direction != 1) grow(row.before, from, size);
      if (direction != 2) grow(row.after, from, size);
    }
    return true;
  }
  void grow(const std::vector<Index>& neighbors, std::size_t from, std::size_t size) {
    for (const Index other : neighbors)
      if (region_.size() < size && now_.part(other) == from &&
          std::ranges::find(region_, other) == region_.end())
        region_.push_back(other);
  }

  const Instance& in_;
  DnnpObjective objective_;
  Random random_;
  Assignment now_;
  double scale_ = 1, cost_ = 0;
  std::vector<double> history_;
  std::size_t step_ = 0;
  std::int64_t work_ = 0;
  std::vector<std::pair<Index, Index>> changed_;  // group, part before
  std::vector<Index> region_;
  Ns best_ = 0;
  std::vector<Index> best_parts_;
};

struct Start {
  Ns value;
  std::vector<Index> parts;
};

std::optional<Ns> value_of(const Instance& in, DnnpObjective objective,
                           const std::vector<Index>& parts) {
  Assignment assignment(in, in.host());
  for (std::size_t group = 0; group < parts.size(); ++group)
    if (parts[group] != in.host()) assignment.move(group, parts[group]);
  if (objective == DnnpObjective::kMaxLoad) return assignment.max_load();
  return assignment.latency();
}

// The best first, none twice.
std::vector<Start> starts_of(const Instance& in, DnnpObjective objective) {
  std::vector<Start> starts;
  for (const dnnp::Sequence& sequence : dnnp::good_sequences(in)) {
    std::optional<std::vector<Index>> parts = dnnp::cut_into_segments(in, sequence, objective);
    if (!parts.has_value()) continue;
    const std::optional<Ns> value = value_of(in, objective, *parts);
    if (value.has_value()) starts.push_back({*value, *std::move(parts)});
  }
  std::ranges::stable_sort(starts, {}, &Start::value);
  return starts;
}

Placement placement_of(const Instance& in, const std::vector<Index>& parts) {
  Placement placement;
  for (const Index group : in.group_of) placement.push_back(in.parts[parts[group]]);
  return placement;
}

// The group that is hardest to place: the one with the most bytes, or that may go nowhere.
DoesNotFit misfit(const Instance& in) {
  std::size_t worst = 0;
  for (std::size_t group = 0; group < in.groups.size(); ++group) {
    bool anywhere = false;
    for (std::size_t part = 0; part < in.num_parts(); ++part)
      anywhere = anywhere || in.time_on(group, part) < kNever;
    if (!anywhere) return {in.groups[group].ops.front(), Bytes(0)};
    if (in.groups[group].bytes > in.groups[worst].bytes) worst = group;
  }
  std::int64_t room = 0, all = 0;
  for (std::size_t part = 0; part < in.num_accelerators; ++part) room += in.capacity[part];
  for (const Instance::Group& group : in.groups) all += group.bytes;
  return {in.groups[worst].ops.front(), Bytes(std::max<std::int64_t>(0, all - room))};
}

}  // namespace

std::variant<DnnpPlacement, DoesNotFit> place_for(const CostModel& costs, DnnpObjective objective,
                                                  const DnnpOptions& options) {
  const Instance in = dnnp::tabulate(costs);
  std::vector<Start> starts = starts_of(in, objective);
  if (starts.empty()) return misfit(in);
  Random random(options.seed);
  Start best = starts.front();
  const Ns segments = best.value;
  bool stopped = false;
  const auto stop = [&] {
    stopped = stopped || (options.cancel != nullptr && options.cancel->requested());
    return stopped;
  };
  // Rounds of the same length whatever the budget, which only says where to stop: more of it is
  // never worse.
  auto left = static_cast<std::int64_t>(options.budget * kWorkPerSecond);
  for (std::int64_t round = kFirstRound; left > 0 && !stop(); round *= kRoundGrowth)
    for (std::size_t stream = 0; stream < kStreams && left > 0; ++stream) {
      // From every start, and again and again from the best so far.
      const bool fresh = stream % 2 == 1 && stream / 2 + 1 < starts.size();
      const Start& start = fresh ? starts[stream / 2 + 1] : best;
      const auto history = static_cast<std::size_t>(std::min(round / 1000, kLongestHistory));
      LocalSearch search(in, objective, start.parts, random.next(), history);
      search.run(std::min(left, round), stop);
      left -= round;
      if (search.best() < best.value) best = {search.best(), search.best_parts()};
    }
  DnnpPlacement result{placement_of(in, best.parts), Time(best.value), Time(segments)};
  if (objective == DnnpObjective::kMaxLoad) {
    const auto work = static_cast<std::int64_t>(options.budget * kBoundWorkPerSecond);
    result.bound = Time(dnnp::max_load_bound(in, best.value, {work, stop}));
  }
  result.stopped_early = stopped;
  BAECHI_ASSERT(dnnp_score(costs, result.device, objective).value == result.value,
                "the search keeps the score's accounts");
  return result;
}

}  // namespace baechi
