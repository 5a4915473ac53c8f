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
constexpr std::array<double, 4> kWaits{0.9, 0.75, 0.5, 0.0};
constexpr double kLeastAway = 0.1;            // part of weights and state: results take room, too
constexpr double kFewer = 0.85, kMore = 1.2;  // times the updates that are streamed
constexpr int kHalvings = 2;
constexpr int kExact = 2, kCorrections = 6;  // of replays that correct the account of one choice
constexpr double kClearly = 1.1;             // times what it is to beat

std::uint64_t digest_of(const ResidencyTry& what, const Residency& residency) {
  std::uint64_t digest = what.rule.first_come ? 1 : 0;
  const auto add = [&](std::uint64_t value) {
    digest = (digest ^ (value + 1)) * 0x9E3779B97F4A7C15U;
    digest ^= digest >> 32U;
  };
  add(what.rule.queues ? 1 : 0);
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

// The part of what the host would take for updates which, streamed, lets host and link end together, or
// where the devices take longer, both before these.
double balanced_streams(const ResidencyProblem& problem, const ResidencyStart& start,
                        const std::vector<StoredUnit>& units) {
  const Cluster& cluster = problem.costs.cluster();
  double on_host = 0, bytes = 0, before = 0, room = 0, sent = 0;
  for (const StoredUnit& unit : units) {
    if (!unit.may_stream) continue;
    on_host += static_cast<double>(unit.on_host.count());
    bytes += static_cast<double>(unit.bytes.count());
    for (const OpId op : unit.members)
      if (is_update(problem.step, op)) {
        const auto at = static_cast<double>(start.slots[op].start.count());
        before = before == 0 ? at : std::min(before, at);
      }
  }
  if (on_host == 0) return 0;
  for (const DeviceId device : cluster.devices()) {
    if (device == start.store) continue;
    room += static_cast<double>(cluster[device].capacity.count());
    const auto all = static_cast<std::int64_t>(bytes);
    sent = static_cast<double>(cluster.link(device, start.store).transfer_time(Bytes(all)).count());
  }
  const double away = std::max(kLeastAway, 1 - room / bytes);
  on_host *= away;
  sent *= away;
  const double together = (before + on_host) * sent / (on_host + sent);
  const double step = std::max(together, static_cast<double>(end_of(start).count()));
  const double least = std::max(0.0, 1 - (step - before) / std::max(on_host, 1.0));
  const double most = std::min(1.0, step / std::max(sent, 1.0));
  return away * std::max(kLeastAway, least + std::max(0.0, most - least) / 4);
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
      units_(units_for_store(problem.costs, problem.step, store_of(problem.costs.cluster()))),
      balanced_(balanced_streams(problem, starts.front(), units_)) {}

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
        const Rating rating = try_as(other, 0, &best);
        if (rating >= best) continue;
        best = rating;
        from = other;
      }
    };
    if (may_stream()) {
      const double streams = from.streams;
      vary(&ResidencyTry::streams,
           std::array{streams > 0 ? streams * kMore : 1.0, streams * kFewer, kAllStreamed});
      if (from.streams > 0) vary(&ResidencyTry::streams_first, kFirst);
    }
    vary(&ResidencyTry::order, kOrders);
    vary(&ResidencyTry::first, kFirst);
    vary(&ResidencyTry::lead, kLeads);
    vary(&ResidencyTry::units, kUnitParts);
    vary(&ResidencyTry::keep, kKeepParts);
    vary(&ResidencyTry::memory, kMemory);
    if (from.waits < 1) vary(&ResidencyTry::waits, kWaits);
  } while (best < before && !work_.is_over());
}

// Where it does not fit at first, but with a smaller account does, what lies between, too.
ResidencySearch::Rating ResidencySearch::try_as(const ResidencyTry& what, int glances,
                                                const Rating* to_beat) {
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
  bool longer = false;
  const auto fits = [&] {
    const Seen& seen = replay_once(what, start, memory);
    best = std::min(best, seen.rating);
    peaks = seen.peaks;
    longer = to_beat != nullptr && !std::get<bool>(*to_beat) &&
             static_cast<double>(std::get<Time>(seen.rating).count()) >
                 kClearly * static_cast<double>(std::get<Time>(*to_beat).count());
    const bool all = std::ranges::all_of(
        cluster.devices(), [&](DeviceId device) { return peaks[device] <= there[device]; });
    (all ? fitting : too_much) = memory;
    return all;
  };
  const int rounds = glances > 0 ? glances : kCorrections;
  for (int round = 0; round < rounds && !longer && (!best_.has_value() || !work_.is_over());
       ++round) {
    if (fits()) {
      if (round > 1) break;
      continue;
    }
    for (const DeviceId device : cluster.devices()) {
      const Bytes excess = peaks[device] - std::min(peaks[device], there[device]);
      memory[device] -= std::min(memory[device], round < kExact ? excess : excess * 2);
    }
  }
  for (int round = 0; round < (glances > 0 ? 0 : kHalvings) && fitting.has_value() &&
                      too_much.has_value() && !longer && !work_.is_over();
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
  const ResidencyPrefer prefer{.lead = what.lead,
                               .waits = what.waits,
                               .units = what.units,
                               .keep = what.keep,
                               .first = what.first,
                               .streams = std::min(1.0, what.streams * balanced_),
                               .streams_first = what.streams_first,
                               .overtakes = what.overtakes,
                               .memory = memory,
                               .given = what.given,
                               .places = what.places};
  Residency residency = choose_residency(problem_, start, units_, prefer);
  const auto [at, is_new] = seen_.try_emplace(digest_of(what, residency));
  if (is_new) {
    ReplayedResidency found = replay(problem_, start, std::move(residency), what.rule);
    work_.spent += static_cast<std::int64_t>(found.placed.device.size());
    at->second.peaks = found.peaks;
    at->second.rating = offer(std::move(found), what, start, memory);
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

// Keeps the best, in an order that a file can tell; how good it is in that.
ResidencySearch::Rating ResidencySearch::offer(ReplayedResidency found, const ResidencyTry& what,
                                               const ResidencyStart& start,
                                               const ByDevice& memory) {
  const auto better = [&] { return !best_.has_value() || found.rating() < best_->rating(); };
  if (found.fits && better() && problem_.step.micro_batches > 1) {
    work_.spent += static_cast<std::int64_t>(found.placed.device.size());
    if (!settle(problem_, found) && found.fits) return {true, Bytes(0), found.makespan};
  }
  const Rating rating = found.rating();
  if (!better()) return rating;
  work_.fits = work_.fits || found.fits;
  best_ = std::move(found);
  best_way_ = {what, start.slots, memory, rating};
  return rating;
}

}  // namespace baechi
