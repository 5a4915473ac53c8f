// SPDX-License-Identifier: Apache-2.0
#include "baechi/study/next_steps.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/plan/steps/step_request.h"
#include "baechi/study/cluster_edits.h"

namespace baechi {
namespace {

constexpr std::int64_t kMostMicroBatches = 256;

std::string in_words(std::int64_t number) {
  return std::to_string(number) + (number == 1 ? " micro-batch" : " micro-batches");
}

// The nearest divisors of the mini-batch below and above.
std::vector<std::int64_t> near_divisors(std::int64_t mini_batch, std::int64_t number) {
  std::vector<std::int64_t> near;
  for (std::int64_t n = number - 1; n >= 1; --n)
    if (mini_batch % n == 0) {
      near.push_back(n);
      break;
    }
  for (std::int64_t n = number + 1; n <= std::min(mini_batch, kMostMicroBatches); ++n)
    if (mini_batch % n == 0) {
      near.push_back(n);
      break;
    }
  return near;
}

}  // namespace

PipelineLimit pipeline_limit(const Plan& plan) {
  PipelineLimit limit;
  for (const DeviceId device : plan.devices.keys())
    if (plan.devices[device].busy > limit.busy) limit = {device, {}, plan.devices[device].busy};
  std::map<std::pair<DeviceId, DeviceId>, Time> sent;
  for (const Transfer& transfer : plan.schedule.transfers)
    sent[{transfer.from, transfer.to}] += transfer.end - transfer.start;
  for (const auto& [ends, busy] : sent)
    if (busy > limit.busy) limit = {ends.first, ends.second, busy};
  return limit;
}

std::vector<ScenarioOutcome> next_steps(const GraphSizes& sizes, const Plan& plan,
                                        const CancelFlag* cancel) {
  std::vector<ScenarioOutcome> told;
  const bool small = plan.schedule.slots.size() <= kMostForNextSteps;
  if (plan.micro_batches < 2 || !small || !plan.residency.empty() || plan.replicas.any())
    return told;
  StepRequest request{.search = {.budget = kBudgetOfMany}};
  request.search.place.cancel = cancel;
  request.search.bounds = false;
  request.micro_batches = {plan.micro_batches};
  if (!plan.recomputed.empty()) request.recompute = Recompute::kAuto;
  if (const auto samples = samples_of_step(sizes, request, plan.micro_batches)) {
    StepRequest other = request;
    other.mini_batch = samples;
    for (const std::int64_t number : near_divisors(*samples, plan.micro_batches)) {
      other.micro_batches = {static_cast<std::uint32_t>(number)};
      try {
        told.push_back(
            run_scenario(sizes, {in_words(number), plan.cluster, samples}, other).outcome);
      } catch (const InputError&) {  // of more operators than a graph may have
        continue;
      }
    }
  }
  try {
    const ClusterSpec twice = with_memory(plan.cluster, Factor(2 * kFullSpeed.count()));
    told.push_back(
        run_scenario(sizes.first(), {"twice the memory", twice}, request, &plan).outcome);
  } catch (const InputError&) {  // more than 63 bits hold
    return told;
  }
  return told;
}

}  // namespace baechi
