// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/residency/residency_search.h"

#include <algorithm>
#include <array>
#include <limits>

#include "baechi/base/random.h"
#include "baechi/plan/residency/residency_orders.h"

namespace baechi {
namespace {

constexpr std::array kOrders{InOrder::kAsGiven, InOrder::kUpdatesLast,
                             InOrder::kLastGradientsFirst};
constexpr std::array kFirst{StayFirst::kSpread, StayFirst::kLate, StayFirst::kLarge};
constexpr std::array<double, 5> kUnitParts{0.0, 0.4, 0.6, 0.8, 1.0};
constexpr std::array<double, 6> kKeepParts{0.0, 0.5, 0.8, 0.9, 0.95, 1.0};
constexpr std::array<std::size_t, 4> kLeads{0, 6, 24, 48};
constexpr std::array<double, 4> kMemory{1.0, 0.7, 0.6, 0.5};  // as on devices with so much less
constexpr std::array<double, 4> kWaits{0.9, 0.75, 0.5, 0.0};
constexpr double kLeastAway = 0.1;              // part of weights and state: results take room, too
constexpr double kFewer = 0.85, kMore = 1.2;    // times the updates that are streamed
constexpr int kExact = 2;                       // of replays that correct the account of one choice
constexpr int kCorrections = 6, kHalvings = 2;  // of such replays
constexpr int kNearCorrections = 3, kNearHalvings = 1;  // beside a way that has been replayed
constexpr int kMisled = 2;        // replays that begin from ample memory may be much too long
constexpr double kClearly = 1.1;  // times what it is beside
constexpr std::array kStreams{0.0, 0.6, 0.72, 0.85, 1.0, 1.2, 1.5};
constexpr int kFailures = 200;
constexpr std::uint64_t kMoreChanges = 3, kWanderSeed = 0x6a96;
constexpr double kAnew = 0.5;  // of changes at random

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

// The settings that every try has; those of streamed updates come beside them.
template <class Visit>
void for_each_setting(const Visit& visit) {
  visit(&ResidencyTry::order, kOrders);
  visit(&ResidencyTry::first, kFirst);
  visit(&ResidencyTry::lead, kLeads);
  visit(&ResidencyTry::units, kUnitParts);
  visit(&ResidencyTry::keep, kKeepParts);
  visit(&ResidencyTry::memory, kMemory);
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

void ResidencySearch::improve(Way best, bool anew) {
  for (bool better = true; better && !work_.is_over();) {
    better = false;
    const auto vary = [&](auto ResidencyTry::* what, const auto& values) {
      const ResidencyTry given = best.what;
      for (const auto value : values) {
        ResidencyTry other = given;
        other.*what = value;
        if (value == given.*what || work_.is_over()) continue;
        Way way = tried(other, 0, &best, anew);
        if (way.rating >= best.rating) continue;
        best = std::move(way);
        better = true;
      }
    };
    if (may_stream()) {
      const double streams = best.what.streams;
      vary(&ResidencyTry::streams,
           std::array{streams > 0 ? streams * kMore : 1.0, streams * kFewer, kAllStreamed});
      if (best.what.streams > 0) vary(&ResidencyTry::streams_first, kFirst);
    }
    for_each_setting(vary);
    if (best.what.waits < 1) vary(&ResidencyTry::waits, kWaits);
  }
}

void ResidencySearch::wander() {
  Random random(kWanderSeed);
  for (int failed = 0; best_.has_value() && failed < kFailures && !work_.is_over(); ++failed) {
    const Way best = best_way_;
    ResidencyTry other = best.what;
    for (std::uint64_t changes = 2 + random.below(kMoreChanges); changes > 0; --changes) {
      const std::uint64_t chosen = random.below(may_stream() ? 8 : 6);
      std::uint64_t at = 0;
      const auto draw = [&](auto ResidencyTry::* what, const auto& values) {
        if (at++ == chosen) other.*what = values[random.below(values.size())];
      };
      for_each_setting(draw);
      draw(&ResidencyTry::streams_first, kFirst);
      draw(&ResidencyTry::streams, kStreams);
    }
    const bool anew = random.chance(kAnew);
    Way way = tried(other, 0, &best, anew);
    if (way.rating >= best.rating) continue;
    improve(std::move(way), anew);
    failed = 0;
  }
}

// Where it does not fit at first, but with a smaller account does, what lies between, too.
ResidencySearch::Way ResidencySearch::tried(const ResidencyTry& what, int glances,
                                            const Way* beside, bool anew) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  Way best{what, {}, {}, {true, Bytes(kMost), Time(kMost)}};
  const std::optional<ResidencyStart>& given = start_in({what.start, what.order});
  if (!given.has_value()) return best;
  const Cluster& cluster = problem_.costs.cluster();
  ByDevice there(cluster.num_devices());
  for (const DeviceId device : cluster.devices())
    there[device] = Bytes(static_cast<std::int64_t>(
        static_cast<double>(cluster[device].capacity.count()) * what.memory));
  ByDevice memory = there;
  ResidencyStart start = *given;
  const bool near = beside != nullptr && !anew && !beside->slots.empty() &&
                    beside->what.order == what.order && beside->what.start == what.start;
  if (near) {
    start.slots = beside->slots;
    if (beside->what.memory == what.memory) memory = beside->memory;
  }
  std::optional<ByDevice> fitting, too_much;
  ByDevice peaks;
  bool longer = false;
  int replays = 0;
  const auto fits = [&] {
    const Seen& seen = replay_once(what, start, memory);
    if (seen.rating < best.rating) best = {what, start.slots, memory, seen.rating};
    peaks = seen.peaks;
    longer = beside != nullptr && (near || ++replays > kMisled) &&
             !std::get<bool>(beside->rating) &&
             static_cast<double>(std::get<Time>(seen.rating).count()) >
                 kClearly * static_cast<double>(std::get<Time>(beside->rating).count());
    const bool all = std::ranges::all_of(
        cluster.devices(), [&](DeviceId device) { return peaks[device] <= there[device]; });
    (all ? fitting : too_much) = memory;
    return all;
  };
  const int rounds = glances > 0 ? glances : near ? kNearCorrections : kCorrections;
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
  const int halvings = glances > 0 ? 0 : near ? kNearHalvings : kHalvings;
  for (int round = 0; round < halvings && fitting.has_value() && too_much.has_value() && !longer &&
                      !work_.is_over();
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
  } else {  // to choose it again takes half as long as a replay
    work_.spent += static_cast<std::int64_t>(problem_.costs.graph().num_ops() / 2);
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
