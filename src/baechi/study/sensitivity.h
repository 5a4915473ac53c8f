// SPDX-License-Identifier: Apache-2.0
// How much wrong profiles cost (Paper 5, Figure 8): place with costs that are off, replay with the
// true ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/plan/perturb.h"
#include "baechi/plan/request/answer.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/steps/sizes.h"

namespace baechi {

struct SensitivitySample {
  std::uint64_t seed = 0;
  // Of the plan made with wrong costs, under the true ones; absent when it fits neither as it is
  // nor repaired.
  std::optional<Time> makespan = {};
  // It would have run out of memory with the true tensor sizes, and was repaired.
  bool repaired = false;
  std::string method;  // whose plan it is; empty when the wrong costs let nothing fit
  std::uint32_t micro_batches = 1;

  friend bool operator==(const SensitivitySample&, const SensitivitySample&) = default;
};

struct Distribution {  // quartiles interpolate between the two nearest samples
  Time min, lower_quartile, median, upper_quartile, max;
};
// Requires at least one value.
Distribution distribution_of(std::vector<Time> values);

inline constexpr std::size_t kMostSamples = 100'000;

struct Sensitivity {
  double fraction = 0;
  Time true_makespan;  // of the plan made with the true costs
  std::string true_method;
  std::uint32_t true_micro_batches = 1;
  std::vector<SensitivitySample> samples;
  std::optional<Distribution> steps = {};  // of the samples that fit; absent when none does
};

// Plans `perturbations.samples` + 1 times; throws InputError for 0 or more than kMostSamples. The
// answer is Unplaceable when the true costs let nothing fit. An operator is off by as much at every
// batch size. Stopped by its flag: the samples so far; throws Cancelled when there is none.
std::variant<Sensitivity, Unplaceable> sensitivity(const GraphSizes& sizes, const Cluster& cluster,
                                                   const StepRequest& request,
                                                   const Perturbations& perturbations);

}  // namespace baechi
