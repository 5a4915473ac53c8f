// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/cut.h"

#include <algorithm>
#include <optional>
#include <span>

#include "baechi/bounds/load.h"
#include "baechi/bounds/one_machine.h"
#include "baechi/bounds/window.h"

namespace baechi::bounds {
namespace {

class Hypothesis {
 public:
  Hypothesis(const Relaxation& relaxed, const HeadsTails& ends, std::size_t rounds,
             std::span<const Distance> distances)
      : base_(relaxed),
        pairs_(cut_pairs(relaxed, ends)),
        forced_(forced_together(relaxed)),
        rounds_(rounds),
        distances_(distances) {}

  // Whether no step is shorter than `limit`.
  bool refuted(Ns limit) const {
    UnionFind sets = forced_;
    std::optional<Relaxation> narrowed;
    const Relaxation* relaxed = &base_;
    std::optional<HeadsTails> sharper;
    for (std::size_t round = 0; round < rounds_; ++round) {
      bool changed = false;
      for (const CutPair& pair : sharper ? cut_pairs(*relaxed, *sharper) : pairs_)
        if (pair.least >= limit) changed |= sets.unite(pair.from.value(), pair.to.value());
      if (round > 0 && !changed) return false;
      const Components components = number(base_, sets);
      const Lumps regions = lumps(*relaxed, components.of, components.count);
      if (!may_pack(base_, regions, limit)) return true;
      if (base_.num_types() > 1 && load(base_, regions, balance(base_, regions)) >= limit)
        return true;
      if (round + 1 == rounds_) return false;

      if (base_.num_types() > 1) relaxed = &narrow(narrowed, regions, components);
      sharper = star(*relaxed, components.of, distances_);
      if (longest(*relaxed, *sharper) >= limit ||
          one_device_each(*relaxed, *sharper, components.of, components.count) >= limit ||
          window(*relaxed, *sharper, balance(*relaxed, regions)) >= limit)
        return true;
    }
    return false;
  }

 private:
  // A region may only be where all of it can be and fits.
  const Relaxation& narrow(std::optional<Relaxation>& narrowed, const Lumps& regions,
                           const Components& components) const {
    if (!narrowed.has_value()) narrowed = base_;
    const std::size_t num_types = base_.num_types();
    for (const OpId op : components.of.keys()) {
      const std::size_t region = components.of[op].index();
      for (std::size_t type = 0; type < num_types; ++type)
        if (regions.k[region * num_types + type] >= kNever ||
            regions.need[region] > base_.types[type].capacity)
          narrowed->k[op.index() * num_types + type] = kNever;
    }
    return *narrowed;
  }

  const Relaxation& base_;
  const std::vector<CutPair> pairs_;
  const UnionFind forced_;
  const std::size_t rounds_;
  const std::span<const Distance> distances_;
};

// No plan that fits needs longer: until its end some operator or transfer is always under way.
Ns longest_step(const Relaxation& relaxed) {
  const std::size_t num_types = relaxed.num_types();
  Ns sum = 0;
  for (std::size_t op = 0; op < relaxed.k_min.size(); ++op) {
    Ns slowest = 0;
    for (std::size_t type = 0; type < num_types; ++type)
      if (const Ns k = relaxed.k[op * num_types + type]; k < kNever) slowest = std::max(slowest, k);
    sum += slowest;
  }
  for (const TensorId tensor : relaxed.graph->tensors()) {
    Ns slowest = 0;
    for (std::size_t link = 0; link < relaxed.num_links; ++link)
      slowest = std::max(slowest, relaxed.c[tensor.index() * relaxed.num_links + link]);
    sum += slowest * static_cast<Ns>(relaxed.num_devices);
  }
  return sum;
}

}  // namespace

Ns cut(const Relaxation& relaxed, const HeadsTails& ends, Ns known,
       std::span<const Distance> distances, std::size_t most_steps) {
  if (relaxed.num_devices == 1) return known;
  // What one hypothesis costs, about, in operators and edges looked at; and what we would spend.
  constexpr std::size_t kBudget = 400'000, kManyRounds = 4, kFewestSteps = 12;
  const std::size_t size = (relaxed.unit.size() + relaxed.graph->num_edges()) *
                           relaxed.num_types() * relaxed.num_types();
  const std::size_t rounds = size * kManyRounds * 8 <= kBudget ? kManyRounds : 1;
  const std::size_t steps =
      std::clamp(kBudget / (size * rounds + 1), std::min(kFewestSteps, most_steps), most_steps);
  const Hypothesis hypothesis(relaxed, ends, rounds, distances);

  // Gallops up from the known bound while hypotheses fall, then bisects.
  const Ns longest = longest_step(relaxed);
  Ns proved = known;
  std::optional<Ns> open;  // a limit that could not be refuted
  Ns stride = 1 + known / 32;
  for (std::size_t step = 0; step < steps; ++step) {
    if (open.has_value() && *open <= proved + 1) break;
    const Ns beyond = std::min(proved + (step == 0 ? 1 : stride), longest + 1);
    const Ns limit = open.has_value() ? proved + (*open - proved) / 2 : beyond;
    if (hypothesis.refuted(limit)) {
      if (limit > longest) return kNever;
      proved = limit;
      if (step > 0) stride *= 3;
    } else {
      open = limit;
      if (step == 0) break;
    }
  }
  return proved;
}

}  // namespace baechi::bounds
