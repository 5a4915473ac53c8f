// SPDX-License-Identifier: Apache-2.0
// Steps of several micro-batches: `pipeline` beside the schedules that have names.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <string>
#include <variant>

#include "baechi/bounds/lower_bounds.h"
#include "baechi/generate/inception_v3.h"
#include "baechi/generate/llama.h"
#include "baechi/generate/two_tower.h"
#include "baechi/generate/unet.h"
#include "baechi/place/pipeline/pipeline.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_schedule.h"
#include "bench.h"

namespace baechi::bench {
namespace {

struct PipelineModel {
  const char* name;
  OpGraph (*graph)();
};

constexpr PipelineModel kPipelineModels[] = {
    {"Llama 3 8B, 16 layers", [] { return generate_llama({.layers = 16, .training = true}); }},
    {"U-Net", [] { return generate_unet({}); }},
    {"two-tower", [] { return generate_two_tower({.batch = 1024}); }},
    {"Inception-V3", [] { return generate_inception_v3({.batch = 8}); }},
};

// Four devices with memory for everything, one transfer in and one out at a time.
Cluster pipeline_devices(bool unequal) {
  ClusterSpec spec = uniform_cluster({.count = 4,
                                      .capacity = gibibytes(1024),
                                      .latency = microseconds(5),
                                      .bandwidth = Bandwidth(200'000'000'000),
                                      .communication = CommunicationMode::kDuplex});
  if (unequal) spec.devices[2].speed = spec.devices[3].speed = Speed(500'000);
  return Cluster(std::move(spec));
}

struct BestNamed {
  std::optional<Time> step;
  std::string_view name;

  void take(Time other, std::string_view of) {
    if (step.has_value() && *step <= other) return;
    step = other;
    name = of;
  }
  std::string over(Time own) const {
    if (!step.has_value()) return "-";
    char text[64];
    std::snprintf(text, sizeof text, "%.2fx %s",
                  static_cast<double>(step->count()) / static_cast<double>(own.count()),
                  std::string(name).c_str());
    return text;
  }
};

// What a placement takes; it has to keep every rule.
std::optional<Time> pipeline_step(const StepPlacer& placer, const MicroBatchedStep& step) {
  const PlaceResult result = place_step(placer, step, {});
  if (!std::holds_alternative<PlacedGraph>(result)) return std::nullopt;
  const Trace trace = simulate(step.step, std::get<PlacedGraph>(result));
  if (!check_schedule(step.step.graph(), step.step.cluster(), trace.schedule).empty())
    throw std::runtime_error("a pipeline broke a rule");
  return trace.schedule.makespan;
}

void compare_pipelines(const PipelineModel& model, bool unequal, std::uint32_t micro_batches) {
  const OpGraph graph = model.graph();
  const Cluster cluster = pipeline_devices(unequal);
  const CostModel costs(graph, cluster);
  const Unrolled unrolled = unroll(graph, micro_batches);
  const CostModel unrolled_costs(unrolled.graph, cluster);
  const MicroBatchedStep step{costs, unrolled, unrolled_costs};

  Time one, bound;
  for (const OpId op : unrolled.graph.ops()) one += *unrolled_costs.compute_time(op, DeviceId(0));
  for (const NamedBound& lower : lower_bounds(unrolled_costs)) bound = std::max(bound, lower.value);
  const double before = cpu_seconds();
  const Time own = pipeline_step(step_placers().front(), step).value();
  const double seconds = cpu_seconds() - before;
  BestNamed equal, divided, one_f_one_b;
  for (const StepPlacer& placer : step_placers().subspan(1)) {
    const std::optional<Time> other = pipeline_step(placer, step);
    if (!other.has_value()) continue;
    if (*other < own) throw std::runtime_error("a named schedule is shorter than pipeline");
    (placer.stages == NamedStages::kEqualLayers ? equal : divided).take(*other, placer.name);
    if (placer.name == "1f1b") one_f_one_b.take(*other, "");
  }
  const auto over = [](Time a, Time b) {
    return static_cast<double>(a.count()) / static_cast<double>(b.count());
  };
  std::printf("| %s | %s | %u | %zu | %.1f | %.2fx | %s| %s | %s | %.1f%% | %.2f |\n", model.name,
              unequal ? "2 + 2 at half speed" : "4 equal", micro_batches, unrolled.graph.num_ops(),
              static_cast<double>(own.count()) / 1e6, over(one, own), one_f_one_b.over(own).c_str(),
              equal.over(own).c_str(), divided.over(own).c_str(), 100 * (over(own, bound) - 1),
              seconds);
  std::fflush(stdout);
}

}  // namespace

void bench_pipelines() {
  std::printf(
      "| model | devices | M | operators | pipeline, ms | one device | 1F1B, equal layers | best "
      "named, equal layers | best named, our stages | gap to the bound | CPU s |\n"
      "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- | --- | ---: | ---: |\n");
  for (const PipelineModel& model : kPipelineModels)
    for (const bool unequal : {false, true})
      for (const std::uint32_t micro_batches : {4U, 8U, 16U})
        compare_pipelines(model, unequal, micro_batches);
}

}  // namespace baechi::bench
