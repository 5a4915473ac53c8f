// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/recompute/sparing_choices.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

namespace baechi {
namespace {

DeviceRuns on_one_device(const CostModel& costs, const SecondRuns& runs) {
  const std::span<const OpId> order = costs.graph().topological_order();
  const std::vector<OpId> sequence(order.begin(), order.end());
  return std::move(forward_runs(costs, runs, sequence, nullptr, 1).front());
}

Bytes bytes_of(const DeviceRuns& device) {
  Bytes whole;
  for (const ForwardRun& run : device.runs) whole += run.bytes;
  return whole;
}

}  // namespace

SparingChoices::SparingChoices(const CostModel& costs, const SecondRuns& runs)
    : SparingChoices(costs, on_one_device(costs, runs)) {}

SparingChoices::SparingChoices(const CostModel& costs, DeviceRuns device)
    : none_(costs.graph().num_ops()),
      ops_(std::move(device.ops)),
      whole_(bytes_of(device)),
      choice_(std::move(device.runs)) {}

std::optional<IdVector<OpId, bool>> SparingChoices::at(std::size_t part, std::size_t parts) const {
  const Bytes spared = whole_ - std::min(whole_, choice_.least());
  const auto each = spared.count() / static_cast<std::int64_t>(parts);
  const auto again = choice_.within(whole_ - Bytes(each * static_cast<std::int64_t>(part)));
  if (!again.has_value()) return std::nullopt;
  return chosen(*again);
}

std::vector<SparingChoice> SparingChoices::from_few_to_all(std::size_t count) const {
  std::vector<SparingChoice> choices;
  for (std::size_t part = 1; part <= count; ++part) {
    std::optional<IdVector<OpId, bool>> again = part < count ? at(part, count) : all();
    if (again.has_value() && (choices.empty() || choices.back().again != *again))
      choices.push_back({*std::move(again), part});
  }
  return choices;
}

IdVector<OpId, bool> SparingChoices::chosen(const std::vector<bool>& again) const {
  IdVector<OpId, bool> result = none_;
  for (std::size_t run = 0; run < again.size(); ++run) result[ops_[run]] = again[run];
  return result;
}

}  // namespace baechi
