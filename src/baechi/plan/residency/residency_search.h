// SPDX-License-Identifier: Apache-2.0
// Residencies for placements and orders that there are, compared on the replay. Beyond the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/base/units.h"
#include "baechi/plan/residency/residency_choice.h"
#include "baechi/plan/residency/residency_replay.h"
#include "baechi/plan/residency/stored_units.h"

namespace baechi {

// What several searches may spend together, in operators that are replayed: so much, and more while nothing fits.
struct ReplayWork {
  std::int64_t limit = 0, limit_to_fit = 0;
  const CancelFlag* cancel = nullptr;
  std::int64_t spent = 0;
  bool fits = false;

  bool is_over() const;
};

enum class InOrder : std::uint8_t { kAsGiven, kUpdatesLast, kLastGradientsFirst };

inline constexpr double kAllStreamed = 1e9;

struct ResidencyTry {
  std::size_t start = 0;
  InOrder order = InOrder::kAsGiven;
  double units = 0.0, keep = 0.0;  // parts of the memory, as in ResidencyPrefer
  std::size_t lead = 6;
  double waits = 1.0;   // part of the memory, as in ResidencyPrefer
  double memory = 1.0;  // the part that counts as there
  StayFirst first = StayFirst::kSpread;
  double streams = 0.0;  // times what lets host and link end together
  StayFirst streams_first = StayFirst::kSpread;
  StoreRule rule = {};
  bool overtakes = false;  // as in ResidencyPrefer
  std::vector<GivenGap> given = {};
  std::vector<UnitPlace> places = {};
};

class ResidencySearch {
 public:
  // Refers to all of it.
  ResidencySearch(const ResidencyProblem& problem, const std::vector<ResidencyStart>& starts,
                  ReplayWork& work);

  // How good the best of it is: the less, the better.
  using Rating = std::tuple<bool, Bytes, Time>;
  // Glances, if any, are so many replays, without a look at what lies between.
  Rating try_as(const ResidencyTry& what, int glances = 0) { return tried(what, glances).rating; }
  // From there on one thing after the other otherwise, until nothing is better: each as it begins from the
  // replay of what it varies, or anew from ample memory.
  void improve(const ResidencyTry& from, bool anew = false) { improve(tried(from), anew); }
  // From the best on several things at random, until that has failed often.
  void wander();
  // From the best on, what is away before single readers, with at most so many operators in
  // replays; nothing if these are few for the step.
  void change_gaps(std::int64_t most);

  bool may_stream() const { return balanced_ > 0; }
  const ReplayedResidency* best() const { return best_.has_value() ? &*best_ : nullptr; }
  const ResidencyTry& best_try() const { return best_way_.what; }  // how it was found
  std::optional<ReplayedResidency> take() && { return std::move(best_); }

 private:
  using ByDevice = IdVector<DeviceId, Bytes>;
  using InThisOrder = std::pair<std::size_t, InOrder>;

  struct Seen {
    ByDevice peaks;
    Rating rating;
  };
  struct Way {  // how something was found
    ResidencyTry what;
    IdVector<OpId, OpSlot> slots;  // of its replay
    ByDevice memory;
    Rating rating;
  };
  // As beside another way, if there is one, it ends where a replay is clearly longer than that.
  Way tried(const ResidencyTry& what, int glances = 0, const Way* beside = nullptr,
            bool anew = false);
  void improve(Way best, bool anew);
  const Seen& replay_once(const ResidencyTry& what, ResidencyStart& start, const ByDevice& memory);
  const std::optional<ResidencyStart>& start_in(const InThisOrder& which);
  Rating offer(ReplayedResidency found, const ResidencyTry& what, const ResidencyStart& start,
               const ByDevice& memory);
  std::vector<GivenGap> gaps_of_best() const;
  std::vector<UnitPlace> places_of_best() const;
  UnitPlace other_place(std::size_t unit, UnitPlace now, bool further) const;
  void change_one_by_one();
  void change_at_random();
  double length_of(const Rating& rating) const;
  bool follow(Way& way, const std::function<bool(const Rating&)>& good);

  const ResidencyProblem problem_;
  const std::vector<ResidencyStart>& starts_;
  ReplayWork& work_;
  const std::vector<StoredUnit> units_;
  const double balanced_;  // part of updates that are streamed; 0 if none may be
  std::map<InThisOrder, std::optional<ResidencyStart>> in_order_;
  std::map<std::uint64_t, Seen> seen_;  // by what a replay depends on most
  std::optional<ReplayedResidency> best_;
  Way best_way_;
};

}  // namespace baechi
