// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "baechi/place/pipeline/named.h"
#include "unit/test_paths.h"

namespace baechi::pipeline {
namespace {

std::string listed(const NamedSchedule& schedule, std::uint32_t rank, std::uint32_t ranks,
                   std::uint32_t micro_batches) {
  const auto actions = schedule.actions(rank, ranks, micro_batches);
  if (!actions.has_value()) return "undefined";
  std::string text;
  for (const RankAction& action : *actions) text += (text.empty() ? "" : " ") + in_words(action);
  return text;
}

const NamedSchedule* find(const std::string& name) {
  for (const NamedSchedule& schedule : named_schedules())
    if (schedule.name == name) return &schedule;
  return nullptr;
}

// tests/python/torch/pipeline_orders_test.py holds the file against PyTorch's classes.
TEST_CASE("named schedules: every rank's actions are those that PyTorch generates") {
  std::ifstream file(BAECHI_TEST_DATA_DIR "/pipeline_orders.txt");
  std::size_t lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    CAPTURE(line);
    std::istringstream head(line.substr(0, line.find(':')));
    std::string name;
    std::uint32_t ranks = 0, micro_batches = 0, rank = 0;
    head >> name >> ranks >> micro_batches >> rank;
    const NamedSchedule* const schedule = find(name);
    REQUIRE(schedule != nullptr);
    CHECK(listed(*schedule, rank, ranks, micro_batches) == line.substr(line.find(": ") + 2));
  }
  CHECK(lines > 100);
}

TEST_CASE("named schedules: with fewer micro-batches than ranks, every part still runs once") {
  for (const NamedSchedule& schedule : named_schedules())
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      const auto actions = schedule.actions(rank, 4, 2);
      if (!actions.has_value()) continue;
      CAPTURE(schedule.name);
      std::size_t forward = 0, input = 0, weight = 0;
      for (const RankAction& action : *actions) {
        forward += action.step == StageStep::kForward ? 1 : 0;
        input += action.step == StageStep::kInput || action.step == StageStep::kBackward ? 1 : 0;
        weight += action.step == StageStep::kWeight || action.step == StageStep::kBackward ? 1 : 0;
      }
      const std::size_t expected = schedule.loop == Loop::kOnce ? 2 : 4;
      CHECK(forward == expected);
      CHECK(input == expected);
      CHECK(weight == expected);
    }
}

}  // namespace
}  // namespace baechi::pipeline
