// SPDX-License-Identifier: Apache-2.0
// Steps with second runs whose residencies are searched with tries that they share. Beyond the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/graph/recomputation.h"
#include "baechi/graph/unroll.h"
#include "baechi/plan/residency/residency_search.h"

namespace baechi {

// A step with certain second runs, which is searched.
struct SearchedVariant {
  std::vector<Recomputation> again;
  std::unique_ptr<Unrolled> step;
  std::unique_ptr<CostModel> costs;
  std::vector<ResidencyStart> starts;
  std::optional<std::size_t> part;  // that they spare of what can be; nothing if that is not known
  std::vector<std::size_t> which;   // they are, of all sequences in all groupings
  std::optional<ResidencySearch> search;

  ResidencyProblem problem() const { return {*step, *costs}; }
  std::size_t start_at(ResidencyStart start,
                       std::size_t which_it_is);  // added if there is none like it
};

// Variants refer to it: it stays where it is.
struct ResidingPool {
  // Parts of the tries, one after the other: a glance at everything; a few tries of the best of it;
  // then of the best choice of second runs.
  static constexpr double kUntilGlanced = 0.25, kUntilFirst = 0.45, kUntilSecond = 0.7,
                          kUntilThird = 0.85, kUntilVaried = 0.6;

  static constexpr int kGlances = 2;  // replays of each start

  struct Candidate {
    double step = 0;  // longer where it did not fit at a glance
    std::size_t variant = 0, start = 0;
  };

  ReplayWork work;
  std::int64_t limit = 0, limit_to_fit = 0;
  std::vector<std::unique_ptr<SearchedVariant>> variants;
  std::vector<Candidate> candidates;

  bool fits() const { return !variants.empty() && variants.front()->search->best()->fits; }
  Time step() const { return variants.front()->search->best()->makespan; }

  void spend_until(double part);
  void spend_more(double part);
  Candidate rate(std::size_t variant, std::size_t start, int glances = kGlances);
  void send_all_away(std::size_t start);   // of the last variant
  Candidate glance_at(std::size_t start);  // of the last variant
  std::size_t tries_of(const Candidate& candidate, std::int64_t replayed) const;
  void try_candidates();
  // Of a choice of second runs that spares so many parts; nothing if there is none.
  using MakeSparing = std::function<std::unique_ptr<SearchedVariant>(std::size_t)>;
  // From the best choice of second runs on, fewer and more, with all else as it is there: in wide
  // steps, then in smaller ones.
  void vary_runs(std::size_t widest, std::size_t parts, const MakeSparing& make);
  // The best ones from how they were found, then from elsewhere, then the others.
  void improve();
  // Of the best, what is away before single readers, with a few more tries than so many.
  void change_gaps(std::int64_t tries, std::int64_t tries_to_fit);
  // The best first, without those that nothing was tried of.
  void sort();
  // Steps whose operators, without updates, keep all devices busy for longer.
  void leave_out_longer_than(Time step);

 private:
  SearchedVariant* sparing(std::size_t part, const MakeSparing& make);
};

}  // namespace baechi
