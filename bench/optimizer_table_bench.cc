// SPDX-License-Identifier: Apache-2.0
// What the Graph Optimizer is worth, as Markdown: a table like the paper's Table 6, its ablations,
// and tight memory (Paper 5). "optimizer_table"; docs/lab/optimizer_results.md is its output.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/cost/device_presets.h"
#include "baechi/generate/gnmt.h"
#include "baechi/generate/inception_v3.h"
#include "baechi/generate/transformer.h"
#include "baechi/optimize/list_schedule.h"
#include "baechi/plan/attempt/attempt.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/plan/steps/step_plan.h"
#include "bench.h"

namespace baechi::bench {
namespace {

struct Model {
  std::string name;
  OpGraph graph;
};

std::vector<Model> models() {
  std::vector<Model> models;
  models.push_back({"Inception-V3", generate_inception_v3({})});
  models.push_back({"GNMT, length 40", generate_gnmt({.length = 40})});
  models.push_back({"GNMT, length 50", generate_gnmt({.length = 50})});
  models.push_back({"Transformer", generate_transformer({})});
  return models;
}

std::string fixed(double value, int digits = 1) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}
std::string milliseconds_text(Time time) { return fixed(static_cast<double>(time.count()) / 1e6); }

void row(const std::vector<std::string>& cells) {
  for (const std::string& cell : cells) std::printf("| %s ", cell.c_str());
  std::printf("|\n");
}
void header(const std::vector<std::string>& cells) {
  row(cells);
  row(std::vector<std::string>(cells.size(), "---"));
}

// The median CPU time of three runs, in milliseconds.
double median_time(const std::function<void()>& body) {
  std::vector<double> times;
  for (int i = 0; i < 3; ++i) {
    const double before = cpu_seconds();
    body();
    times.push_back((cpu_seconds() - before) * 1e3);
  }
  std::sort(times.begin(), times.end());
  return times[1];
}

std::string outcome(const Attempt& attempt) {
  if (!attempt.placed.has_value()) return "does not fit";
  std::string text = milliseconds_text(attempt.makespan);
  for (const std::string& fallback : attempt.fallbacks)
    text += (fallback == attempt.fallbacks.front() ? " (" : ", ") + fallback;
  return attempt.fallbacks.empty() ? text : text + ")";
}

Placement all_on_one(const OpGraph& graph) { return {graph.num_ops(), DeviceId(0)}; }

void speed_and_steps(const std::vector<Model>& models, const Cluster& cluster) {
  std::printf(
      "\n## Placement and step time\n\nFrom the graph and its costs to a plan that fits, by "
      "simulation of the original graph: optimise, place, expand, order, simulate.\n\n");
  header({"graph", "method", "operators", "placed in", "step", "operators, optimised", "placed in",
          "step", "placement", "step"});
  for (const Model& model : models) {
    const CostModel costs(model.graph, cluster);
    const Units units(costs);
    const Trace single = simulate(costs, {all_on_one(model.graph), std::nullopt});
    row({model.name, "one device", std::to_string(model.graph.num_ops()), "",
         milliseconds_text(single.schedule.makespan), "", "", "", "", ""});
    for (const char* method : {"m-topo", "m-etf", "m-sct"}) {
      const PlacerEntry& placer = find_placer(method);
      Attempt plain, optimized;
      std::size_t small_ops = 0;
      const double slow = median_time([&] { plain = attempt({costs, units}, placer, {}); });
      const double fast = median_time([&] {
        const Shrunk shrunk(costs, {});
        small_ops = shrunk.optimized.graph.num_ops();
        optimized = attempt({costs, units, &shrunk}, placer, {});
      });
      const double steps = static_cast<double>(plain.makespan.count()) /
                           static_cast<double>(optimized.makespan.count());
      row({"", method, "", fixed(slow), outcome(plain), std::to_string(small_ops), fixed(fast),
           outcome(optimized), fixed(slow / fast, 2) + "x", fixed(steps, 2) + "x"});
    }
  }
}

// The best of the orders that the planner tries, or that it does not fit.
std::string best_step(const CostModel& costs, const std::vector<PlacedGraph>& candidates) {
  std::optional<Time> best;
  for (const PlacedGraph& candidate : candidates) {
    const Trace trace = simulate(costs, candidate);
    if (find_overflow(trace, costs.cluster()).has_value()) continue;
    if (!best.has_value() || trace.schedule.makespan < *best) best = trace.schedule.makespan;
  }
  return best.has_value() ? milliseconds_text(*best) : "does not fit";
}

std::string step_of(const CostModel& costs, const Optimized& optimized, const char* method) {
  const PlaceResult result =
      find_placer(method).place(CostModel(optimized.graph, costs.cluster()), {});
  const auto* plan = std::get_if<PlacedGraph>(&result);
  if (plan == nullptr) return "does not fit";
  PlacedGraph expanded = expand(optimized.expansion, *plan);
  PlacedGraph listed = list_schedule(costs, expanded.device).placed;
  return best_step(costs, {std::move(expanded), std::move(listed)});
}

struct Variant {
  std::string name;
  std::function<Optimized(const CostModel&)> run;
};

Optimized without_coplacement(const CostModel& costs) {
  Optimized fused = fuse(costs);
  Optimized forward = forward_only(CostModel(fused.graph, costs.cluster()));
  Expansion expansion = forward.expansion.after(fused.expansion);
  return {std::move(forward.graph), std::move(expansion), {}};
}

std::vector<Variant> variants() {
  CoplacementOptions paper;
  paper.rule = CoplacementRule::kNeighbours;
  const auto level = [](OptimizeLevel at) {
    return [at](const CostModel& costs) { return optimize(costs, {.level = at}); };
  };
  return {
      {"nothing", level(OptimizeLevel::kNone)},
      {"colocate alone", [](const CostModel& costs) { return colocate(costs); }},
      {"coplace alone", [](const CostModel& costs) { return coplace(costs); }},
      {"coplace alone, by the paper's rule",
       [paper](const CostModel& costs) { return coplace(costs, paper); }},
      {"fuse alone", [](const CostModel& costs) { return fuse(costs); }},
      {"fuse alone, by degree", [](const CostModel& c) { return fuse(c, {.by_reachability = 0}); }},
      {"forward alone", [](const CostModel& costs) { return forward_only(costs); }},
      {"all but coplace", without_coplacement},
      {"all but fuse", level(OptimizeLevel::kForward)},
      {"all but forward", level(OptimizeLevel::kFuse)},
      {"all, coplace by the paper's rule",
       [paper](const CostModel& costs) { return optimize(costs, {.coplacement = paper}); }},
      {"all", level(OptimizeLevel::kAll)},
  };
}

void ablations(const std::vector<Model>& models, const Cluster& cluster) {
  std::printf(
      "\n## Each pass\n\nOperators left, time to optimise, and the steps of m-ETF and of m-SCT "
      "(the "
      "better of the expanded order and the list schedule; no fall-backs).\n\n");
  std::vector<std::string> titles{"passes"};
  for (const Model& model : models) titles.push_back(model.name);
  header(titles);
  for (const Variant& variant : variants()) {
    std::vector<std::string> cells{variant.name};
    for (const Model& model : models) {
      const CostModel costs(model.graph, cluster);
      std::optional<Optimized> optimized;
      const double time = median_time([&] { optimized.emplace(variant.run(costs)); });
      cells.push_back(std::to_string(optimized->graph.num_ops()) + ", " + fixed(time) +
                      " ms: " + step_of(costs, *optimized, "m-etf") + ", " +
                      step_of(costs, *optimized, "m-sct"));
    }
    row(cells);
  }
}

void colocation(const std::vector<Model>& models, const Cluster& cluster) {
  std::printf(
      "\n## Colocation while placing, or afterwards\n\nSteps with the framework's colocation "
      "groups "
      "alone. Co-adjusting placers keep groups together as they go; otherwise they ignore the "
      "groups, and one device is chosen for each group of the finished placement.\n\n");
  header({"graph", "method", "co-adjust", "compute-dominant", "memory-dominant", "majority"});
  for (const Model& model : models) {
    const CostModel costs(model.graph, cluster);
    for (const char* method : {"m-etf", "m-sct"}) {
      std::vector<std::string> cells{model.name, method, step_of(costs, colocate(costs), method)};
      const Optimized free = colocate(costs, {ColocationMode::kIgnore});
      const PlaceResult result =
          find_placer(method).place(CostModel(free.graph, costs.cluster()), {});
      const auto* plan = std::get_if<PlacedGraph>(&result);
      for (const PostAdjustName& entry : post_adjust_names()) {
        if (plan == nullptr) {
          cells.emplace_back("does not fit");
          continue;
        }
        PlacedGraph mended = post_adjust(costs, expand(free.expansion, *plan), entry.strategy);
        PlacedGraph listed = list_schedule(costs, mended.device).placed;
        cells.push_back(best_step(costs, {std::move(mended), std::move(listed)}));
      }
      row(cells);
    }
  }
}

void tight_rows(const Model& model, const Cluster& cluster, const std::string& memory) {
  const CostModel costs(model.graph, cluster);
  const Units units(costs);
  const std::string capacity =
      fixed(static_cast<double>(cluster.largest_capacity().count()) / (1 << 30), 2) + " GiB";
  if (const std::optional<CannotFit> proof = prove_cannot_fit(costs, units)) {
    row({model.name, memory, capacity, "any", "cannot fit: " + proof->reason, "cannot fit"});
    return;
  }
  const Shrunk shrunk(costs, {});
  for (const char* method : {"m-topo", "m-etf", "m-sct"}) {
    const PlacerEntry& placer = find_placer(method);
    row({model.name, memory, capacity, method, outcome(attempt({costs, units}, placer, {})),
         outcome(attempt({costs, units, &shrunk}, placer, {}))});
  }
}

void tight_memory(const std::vector<Model>& models, const Cluster& cluster) {
  std::printf(
      "\n## Tight memory\n\nSteps when each of the four devices has only so much of its memory, as "
      "in the paper, or of what one device alone would need. In brackets the fall-backs that it "
      "took.\n\n");
  header({"graph", "memory", "each device", "method", "unoptimised", "optimised"});
  for (const Model& model : models) {
    const CostModel ample(model.graph, cluster);
    const Trace single = simulate(ample, {all_on_one(model.graph), std::nullopt});
    const Bytes need = single.devices[DeviceId(0)].peak;
    for (const auto& [whole, name] :
         {std::pair{cluster.largest_capacity(), "of its memory"}, {need, "of the need"}})
      for (const int percent : {40, 30}) {
        ClusterSpec spec = cluster.spec();
        for (Device& device : spec.devices) device.capacity = Bytes(whole.count() * percent / 100);
        tight_rows(model, Cluster(std::move(spec)), std::to_string(percent) + "% " + name);
      }
  }
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown processor";
}

}  // namespace

void bench_optimizer_table() {
  const std::vector<Model> graphs = models();
  const Cluster cluster(*preset_cluster("paper"));
  char date[16];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  std::printf(
      "# The Graph Optimizer, measured\n\nWritten by `baechi_bench optimizer_table` on %s: %s, %u "
      "cores, one of them used; median CPU times of three runs, in milliseconds. Four devices of "
      "the `paper` preset (8 GB each, one transfer at a time per device, 134 us + 0.1754 ns per "
      "byte), graphs of `baechi generate`. Steps are simulated ones of the original graph, in "
      "milliseconds.\n",
      date, processor().c_str(), std::thread::hardware_concurrency());
  speed_and_steps(graphs, cluster);
  ablations(graphs, cluster);
  colocation(graphs, cluster);
  tight_memory(graphs, cluster);
}

}  // namespace baechi::bench
