// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/place/pipeline/named.h"
#include "baechi/place/pipeline/pipeline.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/report/export/exports.h"
#include "baechi/report/export/layer_formats.h"
#include "unit/graphs.h"
#include "unit/place/pipeline_graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

Cluster equal_devices(std::size_t count) {
  return testing::equal_devices(count, Bytes(1'000'000'000), Time(0));
}

Plan planned(const OpGraph& step, const Cluster& cluster, PlacedGraph placed,
             std::uint32_t micro_batches) {
  Plan plan = plan_of(CostModel(step, cluster), std::move(placed), "given", false);
  plan.micro_batches = micro_batches;
  return plan;
}

std::string exported(const OpGraph& graph, const Unrolled& step, const Plan& plan) {
  return write_export(find_export_format("torch-pipelining"), step, graph, plan);
}

// What PyTorch generates, with gradients that follow each other as one action.
std::string rows_of(const pipeline::NamedSchedule& schedule, std::uint32_t ranks,
                    std::uint32_t micro_batches) {
  std::string text;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    auto actions = *schedule.actions(rank, ranks, micro_batches);
    for (std::size_t i = 0; i < actions.size(); ++i) {
      pipeline::RankAction action = actions[i];
      pipeline::RankAction weights = action;
      weights.step = pipeline::StageStep::kWeight;
      if (action.step == pipeline::StageStep::kInput && i + 1 < actions.size() &&
          actions[i + 1] == weights) {
        action.step = pipeline::StageStep::kBackward;
        ++i;
      }
      text += (text.empty() || text.ends_with("\\n") ? "" : ",") + in_words(action);
    }
    text += "\\n";
  }
  return text;
}

TEST_CASE("torch pipelining: plans of named schedules are the actions that PyTorch generates") {
  const OpGraph graph =
      testing::training({.forward = std::vector<std::int64_t>(8, 10), .weights = Bytes(10)});
  std::size_t compared = 0;
  for (const pipeline::NamedSchedule& schedule : pipeline::named_schedules())
    for (const std::uint32_t ranks : {2U, 4U}) {
      if (schedule.loop == pipeline::Loop::kBack) continue;  // its turn is one stage, not two
      CAPTURE(schedule.name);
      const Cluster cluster = equal_devices(ranks);
      const CostModel costs(graph, cluster);
      const Unrolled unrolled = unroll(graph, 8);
      const CostModel step(unrolled.graph, cluster);
      const PlaceResult result =
          place_named({costs, unrolled, step}, schedule, NamedStages::kEqualLayers, {});
      const Plan plan = planned(unrolled.graph, cluster, std::get<PlacedGraph>(result), 8);
      const std::string text = exported(graph, unrolled, plan);
      CHECK(text.find("\"actions_csv\": \"" + rows_of(schedule, ranks, 8) + "\"") !=
            std::string::npos);
      ++compared;
    }
  CHECK(compared == 8);
}

// a -> b -> c, and a -> c where `skips`; each layer holds weights and has a backward operator. `b`'s
// backward pass is there where `trains`.
OpGraph layers_of(bool skips, bool trains, bool shares = false) {
  OpGraphBuilder builder("lm");
  std::vector<OpId> forward;
  std::vector<TensorId> made;
  for (std::size_t i = 0; i < 3; ++i) {
    const OpId op = testing::timed(
        builder, {.name = "layers/" + std::to_string(i) + "/w", .permanent = Bytes(10)}, Time(10),
        kAnyKind);
    if (i > 0) builder.connect(made[i - 1], op);
    made.push_back(builder.add_output(op, Bytes(8)));
    forward.push_back(op);
    if (shares && i != 1) builder.add_to_group(op, "weight:w");
  }
  if (skips) builder.connect(made[0], forward[2]);
  std::optional<TensorId> gradient;
  for (std::size_t i = 3; i-- > 0 && trains;) {
    const OpId op =
        testing::timed(builder, {.name = "layers/" + std::to_string(i) + "/b", .backward = true},
                       Time(20), kAnyKind);
    builder.set_forward(op, forward[i]);
    builder.connect(made[i], op);
    if (gradient.has_value()) builder.connect(*gradient, op);
    gradient = builder.add_output(op, Bytes(8));
  }
  return std::move(builder).build();
}

std::string exported_on(const OpGraph& graph, const std::vector<int>& devices) {
  Placement placement;
  for (const OpId op : graph.ops())
    placement.push_back(DeviceId(devices[graph[op].forward.value_or(op).index()]));
  const Unrolled step = unroll(graph, 1);
  const Cluster cluster = equal_devices(3);
  return exported(graph, step, planned(step.graph, cluster, {placement, std::nullopt}, 1));
}

TEST_CASE("torch pipelining: stages in any order of devices, and each by its modules") {
  CHECK(exported_on(layers_of(false, true), {2, 0, 2}) ==
        "{\n \"micro_batches\": 1,\n \"split_spec\": {\n  \"layers.1\": \"beginning\",\n"
        "  \"layers.2\": \"beginning\"\n },\n \"stages\": [\n"
        "  {\"rank\": 1, \"device\": \"gpu:2\", \"modules\": [\"layers.0\"]},\n"
        "  {\"rank\": 0, \"device\": \"gpu:0\", \"modules\": [\"layers.1\"]},\n"
        "  {\"rank\": 1, \"device\": \"gpu:2\", \"modules\": [\"layers.2\"]}\n ],\n"
        " \"actions_csv\": \"1F0,1B0\\n0F0,2F0,2B0,0B0\\n\"\n}\n");
}

TEST_CASE("torch pipelining: what is no chain of stages is refused with what is in its way") {
  CHECK_THROWS_WITH_AS(
      exported_on(layers_of(true, true), {0, 1, 2}),
      "lm: the plan is no chain of stages: 'layers/0/w' of stage 0 (gpu:0) is read by 'layers/2/w' "
      "of stage 2 (gpu:2), and torch.distributed.pipelining hands tensors to the next stage only: "
      "move a border, or plan by a method for equal layers, such as 1f1b",
      InputError);
  CHECK_NOTHROW(exported_on(layers_of(true, true), {0, 0, 1}));
  CHECK_THROWS_WITH_AS(exported_on(layers_of(false, false), {0, 1, 2}),
                       "lm: stage 0 (gpu:0) has no backward pass, and the schedules of "
                       "torch.distributed.pipelining train: plan a step of training",
                       InputError);
  CHECK_THROWS_WITH_AS(
      exported_on(layers_of(false, true, true), {0, 1, 0}),
      "lm: the plan is no chain of stages: 'layers/0/w' and 'layers/2/w' belong together (they "
      "share weights), and are parts of stage 0 (gpu:0) and stage 2 (gpu:0)",
      InputError);
}

}  // namespace
}  // namespace baechi
