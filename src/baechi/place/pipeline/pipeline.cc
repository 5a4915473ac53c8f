// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/pipeline/pipeline.h"

#include <algorithm>
#include <limits>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/place/allowed_devices.h"
#include "baechi/place/pipeline/blocks.h"
#include "baechi/place/pipeline/equal_layers.h"
#include "baechi/place/pipeline/expand.h"
#include "baechi/place/pipeline/expert.h"
#include "baechi/place/pipeline/items.h"
#include "baechi/place/pipeline/search.h"
#include "baechi/place/topological_sequences.h"
#include "baechi/simulate/simulator.h"

namespace baechi {
namespace pipeline {
namespace {

class Planner {
 public:
  Planner(const MicroBatchedStep& step, const PipelineOptions& options)
      : step_(step),
        cluster_(step.step.cluster()),
        options_(options),
        search_(cluster_, step.unrolled.micro_batches,
                {.work = options.work, .cancel = options.cancel, .to_beat = options.to_beat}),
        simulator_(step.step) {}

  void divide() {
    constexpr std::size_t kMostBlocks = 192;
    const CostModel& costs = step_.micro_batch;
    // The order of the file is that of the program which made it, and parts of a model are
    // together there.
    const auto file = costs.graph().topological_order();
    std::vector<TopologicalSequence> sequences{depth_first_sequence(costs.graph())};
    if (TopologicalSequence program(file.begin(), file.end()); program != sequences.front())
      sequences.push_back(std::move(program));
    TopologicalSequence together = variables_together(costs, sequences.front());
    if (together != sequences.front()) sequences.push_back(std::move(together));
    for (const TopologicalSequence& sequence : sequences) {
      throw_if_cancelled(options_.cancel);
      rows_.emplace_back(costs, sequence, kMostBlocks);
      search_.divide(rows_.back());
    }
  }

  void search() {
    divide();
    search_.add_named();
    const auto judge_best = [&] {
      search_.refine();
      for (const Pipeline& found : search_.best()) judge(found);
    };
    judge_best();
    if (!search_.lacked_room()) return;
    search_.start_eagerly();
    judge_best();
  }

  // One's own stages, in the order of a named schedule or, without one, in one's own.
  void placed(const NamedSchedule* schedule) {
    const Division division = as_placed(single_items(), *options_.expert);
    if (schedule != nullptr) {
      if (const auto found = search_.named(*schedule, single_items(), division)) offer(*found);
      return;
    }
    const StageGraph graph(single_items(), division, step_.unrolled.micro_batches);
    Pipeline pipeline{
        .blocks = &single_items(), .division = division, .rule = {}, .actions = {}, .worth = {}};
    pipeline.actions = as_ordered(graph, cluster_, *options_.order);
    if (!Player(cluster_).as_given(graph, pipeline.actions).finished)
      throw InputError("the expert order waits for itself: no device can go on");
    offer(pipeline);
  }

  void named(const NamedSchedule& schedule, NamedStages stages) {
    std::optional<Pipeline> found;
    if (stages == NamedStages::kDivided) {
      found = search_.named(schedule);
    } else {
      std::vector<DeviceId> order(cluster_.devices().begin(), cluster_.devices().end());
      if (schedule.loop == Loop::kAgain)
        order.insert(order.end(), cluster_.devices().begin(), cluster_.devices().end());
      for (std::size_t i = order.size(); schedule.loop == Loop::kBack && i-- > 0;)
        order.push_back(DeviceId(i));
      if (const auto division = equal_layers(single_items(), order))
        found = search_.named(schedule, single_items(), *division);
    }
    if (found.has_value()) offer(*found);
  }

  PlaceResult take() {
    const OpId first = step_.unrolled.graph.topological_order().front();
    if (!best_.has_value()) return DoesNotFit{first, Bytes(0)};
    if (worth_.over > Bytes(0)) return DoesNotFit{first, worth_.over};
    return *std::move(best_);
  }

 private:
  // Every item a block, so that stages may end wherever people would end them.
  const Blocks& single_items() {
    if (!items_.has_value())
      items_.emplace(step_.micro_batch, depth_first_sequence(step_.micro_batch.graph()),
                     std::numeric_limits<std::size_t>::max());
    return *items_;
  }

  // Keeps the fastest plan that fits and, while none does, the one that is over by the least. By
  // how much each device is over its capacity.
  IdVector<DeviceId, Bytes> offer(const Pipeline& pipeline) {
    throw_if_cancelled(options_.cancel);
    PlacedGraph placed =
        expand(*pipeline.blocks, pipeline.division, pipeline.actions, step_.unrolled);
    const StepSummary& summary = simulator_.run(placed);
    Worth worth{Bytes(0), summary.makespan};
    IdVector<DeviceId, Bytes> over;
    for (const DeviceId device : cluster_.devices()) {
      over.push_back(std::max(Bytes(0), summary.peaks[device] - cluster_[device].capacity));
      worth.over += over.back();
    }
    if (!best_.has_value() || worth < worth_) {
      worth_ = worth;
      best_ = std::move(placed);
    }
    return over;
  }

  // Parts know less of memory than operators do: what is over is taken from the room that the order
  // may use, and the order made again.
  void judge(const Pipeline& found) {
    constexpr int kMostTries = 5;
    IdVector<DeviceId, Bytes> room;
    for (const DeviceId device : cluster_.devices()) room.push_back(cluster_[device].capacity);
    Pipeline pipeline = found;
    for (int i = 0; i < kMostTries; ++i) {
      const IdVector<DeviceId, Bytes> over = offer(pipeline);
      if (std::all_of(over.begin(), over.end(), [](Bytes bytes) { return bytes == Bytes(0); }))
        return;
      for (const DeviceId device : room.keys()) room[device] -= over[device];
      std::optional<Pipeline> again = search_.play(*found.blocks, found.division, room);
      if (!again.has_value() || again->actions == pipeline.actions) return;
      pipeline = *std::move(again);
    }
  }

  const MicroBatchedStep& step_;
  const Cluster& cluster_;
  const PipelineOptions& options_;
  StageSearch search_;
  Simulator simulator_;
  std::list<Blocks> rows_;  // pipelines refer to them
  std::optional<Blocks> items_;
  std::optional<PlacedGraph> best_;
  Worth worth_;
};

std::optional<DoesNotFit> impossible(const MicroBatchedStep& step) {
  if (const auto op = AllowedDevices(step.micro_batch).first_impossible())
    return DoesNotFit{*op, Bytes(0)};
  return std::nullopt;
}

}  // namespace
}  // namespace pipeline

PlaceResult place_pipeline(const MicroBatchedStep& step, const PipelineOptions& options) {
  if (const auto misfit = pipeline::impossible(step)) return *misfit;
  pipeline::Planner planner(step, options);
  planner.search();
  for (const pipeline::NamedSchedule& schedule : pipeline::named_schedules())
    for (const NamedStages stages : {NamedStages::kEqualLayers, NamedStages::kDivided})
      planner.named(schedule, stages);
  return planner.take();
}

PlaceResult place_named(const MicroBatchedStep& step, const pipeline::NamedSchedule& schedule,
                        NamedStages stages, const PipelineOptions& options) {
  if (const auto misfit = pipeline::impossible(step)) return *misfit;
  pipeline::Planner planner(step, options);
  if (options.expert != nullptr && takes_stages(schedule.name) &&
      stages == NamedStages::kEqualLayers) {
    planner.placed(&schedule);
    return planner.take();
  }
  if (stages == NamedStages::kDivided) planner.divide();
  planner.named(schedule, stages);
  return planner.take();
}

PlaceResult place_as_ordered(const MicroBatchedStep& step, const PipelineOptions& options) {
  if (const auto misfit = pipeline::impossible(step)) return *misfit;
  pipeline::Planner planner(step, options);
  planner.placed(nullptr);
  return planner.take();
}

std::span<const StepPlacer> step_placers() {
  static const std::vector<StepPlacer> kPlacers = [] {
    std::vector<StepPlacer> placers{
        {.name = "pipeline", .summary = "stages by dynamic programming, orders by a greedy rule"}};
    for (const pipeline::NamedSchedule& schedule : pipeline::named_schedules()) {
      placers.push_back(
          {schedule.name, schedule.summary, true, &schedule, NamedStages::kEqualLayers});
      placers.push_back({schedule.name_divided, schedule.summary_divided, true, &schedule,
                         NamedStages::kDivided});
    }
    return placers;
  }();
  return kPlacers;
}

std::string for_several_only(std::string_view method) {
  return in_quotes(method) + " places steps of several micro-batches: say how many there are";
}

bool places_in_stages(std::string_view method) {
  return std::ranges::find(step_placers(), method, &StepPlacer::name) != step_placers().end();
}

bool takes_stages(std::string_view method) {
  const auto placer = std::ranges::find(step_placers(), method, &StepPlacer::name);
  return placer != step_placers().end() && placer->schedule != nullptr &&
         placer->schedule->loop == pipeline::Loop::kOnce &&
         placer->stages == NamedStages::kEqualLayers;
}

PlaceResult place_step(const StepPlacer& placer, const MicroBatchedStep& step,
                       const PipelineOptions& options) {
  if (placer.schedule == nullptr) return place_pipeline(step, options);
  return place_named(step, *placer.schedule, placer.stages, options);
}

}  // namespace baechi
