// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/residency/residency_search.h"

#include <algorithm>
#include <array>
#include <limits>

#include "baechi/plan/residency/residency_orders.h"

namespace baechi {
namespace {

constexpr std::array kOrders{InOrder::kAsGiven, InOrder::kUpdatesLast,
                             InOrder::kLastGradientsFirst};
constexpr std::array kFirst{StayFirst::kSpread, StayFirst::kLate, StayFirst::kLarge};
constexpr std::array<double, 5> kUnitParts{0.0, 0.4, 0.6, 0.8, 1.0};
constexpr std::array<double, 6> kKeepParts{0.0, 0.5, 0.8, 0.9, 0.95, 1.0};
constexpr std::array<std::size_t, 4> kLeads{0, 6, 12, 24};
constexpr std::array<double, 4> kMemory{1.0, 0.7, 0.6, 0.5};  // as on devices with so much less
constexpr int kHalvings = 2;
constexpr int kGlances = 2, kCorrections = 5;  // of replays that correct the account of one choice
constexpr std::size_t kMostSettled = 4;        // plans whose order a file may not tell

std::uint64_t digest_of(const ResidencyTry& what, const Residency& residency) {
  std::uint64_t digest = what.first_come ? 1 : 0;
  const auto add = [&](std::uint64_t value) {
    digest = (digest ^ (value + 1)) * 0x9E3779B97F4A7C15U;
    digest ^= digest >> 32U;
  };
  add(what.start);
  add(static_cast<std::uint64_t>(what.order));
  for (const AwayTensor& away : residency.away) {
    add(away.producer.index());
    add(away.port);
    add(away.fetches.size());
    for (const Fetch& fetch : away.fetches) {
      add(fetch.after.has_value() ? fetch.after->index() + 1 : 0);
      add(fetch.readers.size());
      for (const OpId reader : fetch.readers) add(reader.index());
    }
  }
  for (const OpId op : residency.on_store) add(op.index());
  return digest;
}

}  // namespace

bool ReplayWork::is_over() const {
  return spent >= (fits ? limit : limit_to_fit) || (cancel != nullptr && cancel->requested());
}

ResidencySearch::ResidencySearch(const ResidencyProblem& problem,
                                 const std::vector<ResidencyStart>& starts, ReplayWork& work)
    : problem_(problem),
      starts_(starts),
      work_(work),
      units_(units_for_store(problem.costs, problem.step, store_of(problem.costs.cluster()))) {}

void ResidencySearch::improve(ResidencyTry from) {
  Rating best = try_as(from), before;
  do {
    before = best;
    const auto vary = [&](auto ResidencyTry::* what, const auto& values) {
      const ResidencyTry given = from;
      for (const auto value : values) {
        ResidencyTry other = given;
        other.*what = value;
        if (value == given.*what || work_.is_over()) continue;
        const Rating rating = try_as(other);
        if (rating >= best) continue;
        best = rating;
        from = other;
      }
    };
    vary(&ResidencyTry::order, kOrders);
    vary(&ResidencyTry::first, kFirst);
    vary(&ResidencyTry::lead, kLeads);
    vary(&ResidencyTry::units, kUnitParts);
    vary(&ResidencyTry::keep, kKeepParts);
    vary(&ResidencyTry::memory, kMemory);
  } while (best < before && !work_.is_over());
}

std::optional<ReplayedResidency> ResidencySearch::take() && {
  for (ReplayedResidency& found : best_)
    if (!found.fits || problem_.step.micro_batches == 1 || settle(problem_, found))
      return std::move(found);
  return std::nullopt;
}

// Where it does not fit at first, but with a smaller account does, what lies between, too.
ResidencySearch::Rating ResidencySearch::try_as(const ResidencyTry& what, bool glance) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  Rating best{true, Bytes(kMost), Time(kMost)};
  const std::optional<ResidencyStart>& given = start_in({what.start, what.order});
  if (!given.has_value()) return best;
  const Cluster& cluster = problem_.costs.cluster();
  ByDevice memory(cluster.num_devices());
  for (const DeviceId device : cluster.devices())
    memory[device] = Bytes(static_cast<std::int64_t>(
        static_cast<double>(cluster[device].capacity.count()) * what.memory));
  const ByDevice there = memory;
  ResidencyStart start = *given;
  std::optional<ByDevice> fitting, too_much;
  ByDevice peaks;
  const auto fits = [&] {
    const Seen& seen = replay_once(what, start, memory);
    best = std::min(best, seen.rating);
    peaks = seen.peaks;
    const bool all = std::ranges::all_of(
        cluster.devices(), [&](DeviceId device) { return peaks[device] <= there[device]; });
    (all ? fitting : too_much) = memory;
    return all;
  };
  for (int round = 0;
       round < (glance ? kGlances : kCorrections) && (best_.empty() || !work_.is_over()); ++round) {
    if (fits()) {
      if (round > 1) break;
      continue;
    }
    for (const DeviceId device : cluster.devices()) {
      const Bytes excess = peaks[device] - std::min(peaks[device], there[device]);
      memory[device] -= std::min(memory[device], excess);
    }
  }
  for (int round = 0; round < (glance ? 0 : kHalvings) && fitting.has_value() &&
                      too_much.has_value() && !work_.is_over();
       ++round) {
    for (const DeviceId device : cluster.devices())
      memory[device] = Bytes(((*fitting)[device] + (*too_much)[device]).count() / 2);
    fits();
  }
  return best;
}

const ResidencySearch::Seen& ResidencySearch::replay_once(const ResidencyTry& what,
                                                          ResidencyStart& start,
                                                          const ByDevice& memory) {
  const ResidencyPrefer prefer{what.lead, what.units, what.keep, what.first, memory};
  Residency residency = choose_residency(problem_, start, units_, prefer);
  const auto [at, is_new] = seen_.try_emplace(digest_of(what, residency));
  if (is_new) {
    ReplayedResidency found = replay(problem_, start, std::move(residency), what.first_come);
    at->second = {found.peaks, found.rating()};
    work_.spent += static_cast<std::int64_t>(found.placed.device.size());
    work_.fits = work_.fits || found.fits;
    offer(std::move(found), what);
  }
  return at->second;
}

const std::optional<ResidencyStart>& ResidencySearch::start_in(const InThisOrder& which) {
  const auto [at, is_new] = in_order_.try_emplace(which);
  if (!is_new) return at->second;
  const ResidencyStart& start = starts_[which.first];
  if (which.second == InOrder::kAsGiven)
    at->second = start;
  else if (which.second == InOrder::kUpdatesLast)
    at->second = with_updates_last(problem_, start);
  else if (problem_.step.micro_batches == 1)
    at->second = with_last_gradients_first(problem_, start);
  return at->second;
}

// Keeps the best few.
void ResidencySearch::offer(ReplayedResidency found, const ResidencyTry& what) {
  const auto at = std::ranges::find_if(
      best_, [&](const ReplayedResidency& other) { return found.rating() < other.rating(); });
  if (at == best_.begin()) best_try_ = what;
  best_.insert(at, std::move(found));
  if (best_.size() > kMostSettled) best_.pop_back();
}

}  // namespace baechi
