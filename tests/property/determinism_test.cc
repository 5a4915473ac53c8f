// SPDX-License-Identifier: Apache-2.0
// The same plan every time, and from every build. Each case prints a digest of its plans; the stage
// `determinism` of tools/run_checks.py compares the digests of builds by different compilers.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/cost/cost_model.h"
#include "baechi/generate/generate.h"
#include "baechi/place/placer.h"
#include "baechi/plan/planner.h"
#include "property/effort.h"
#include "unit/graphs.h"
#include "unit/place/random_instances.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

class Digest {  // FNV-1a over 64-bit words
 public:
  void add(std::uint64_t word) { value_ = (value_ ^ word) * 0x100000001b3ULL; }
  void add(const PlaceResult& result) {
    if (const auto* misfit = std::get_if<DoesNotFit>(&result)) {
      add(misfit->op.value());
      add(static_cast<std::uint64_t>(misfit->short_by.count()));
      return;
    }
    const PlacedGraph& placed = std::get<PlacedGraph>(result);
    for (const DeviceId device : placed.device) add(device.value());
    if (!placed.order.has_value()) return;
    for (const std::vector<OpId>& ops : *placed.order)
      for (const OpId op : ops) add(op.value());
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325ULL;
};

// Runs of each: with assertions or sanitizers three, of which a search has a thread more each time.
constexpr std::uint64_t kRuns = std::max<std::uint64_t>(testing::effort(20), 3);

struct Case {
  std::string name;
  OpGraph graph;
  Cluster cluster;
};

std::vector<Case> cases() {
  std::vector<Case> result;
  const auto add = [&](const char* name, OpGraph graph, Cluster cluster) {
    result.push_back({name, std::move(graph), std::move(cluster)});
  };
  const auto uniform = [](CommunicationMode mode) {
    return testing::equal_devices(4, gibibytes(2), microseconds(134), Bandwidth(5'700'000'000),
                                  mode);
  };
  add("gnmt", generate_graph("gnmt", {.batch = 16, .length = 2, .layers = 2}),
      uniform(CommunicationMode::kSequential));
  add("transformer", generate_graph("transformer", {.batch = 8, .length = 10, .layers = 1}),
      uniform(CommunicationMode::kDuplex));
  add("layered", generate_graph("layered", {.operators = 400, .seed = 3}),
      uniform(CommunicationMode::kParallel));
  for (std::uint64_t seed = 0; seed < 6; ++seed)
    add("random", testing::random_dag(seed, testing::kRandomInstances[4].limits),
        testing::random_cluster(seed, Bytes(seed % 2 == 0 ? 120 : 10'000)));
  return result;
}

// Blocks of different sizes, held on to, so that no two runs see the same addresses.
using Clutter = std::vector<std::unique_ptr<char[]>>;

TEST_CASE("determinism: every run of a placer gives one plan" * doctest::skip()) {
  const std::vector<Case> all = cases();
  for (const PlacerEntry& placer : all_placers()) {
    if (placer.name == "expert") continue;
    Digest digest;
    for (const Case& instance : all) {
      CAPTURE(instance.name);
      const CostModel costs(instance.graph, instance.cluster);
      for (const auto favorites : {FavoriteMethod::kMatching, FavoriteMethod::kLpApprox}) {
        if (favorites != FavoriteMethod::kMatching && placer.name != "m-sct") continue;
        const PlaceOptions options{.favorites = favorites, .exact_work = 20'000};
        Digest first;
        first.add(placer.place(costs, options));
        Clutter clutter;
        for (std::uint64_t run = 1; run < kRuns; ++run) {
          clutter.push_back(std::make_unique<char[]>(1 + run * 4099 % 70'001));
          Digest again;
          again.add(placer.place(costs, options));
          REQUIRE(again.value() == first.value());
        }
        digest.add(first.value());
      }
    }
    MESSAGE("digest ", placer.name, " ", digest.value());
  }
}

TEST_CASE("determinism: every search of the planner gives one plan" * doctest::skip()) {
  Digest digest;
  for (const Case& instance : cases()) {
    CAPTURE(instance.name);
    if (instance.graph.num_ops() > 100) continue;  // under sanitizers, too
    const CostModel costs(instance.graph, instance.cluster);
    PlanRequest request;
    request.budget = 0.002;
    request.suggest = request.bounds = false;
    std::uint64_t first = 0;
    for (std::uint64_t run = 0; run < kRuns; ++run) {
      request.threads = static_cast<unsigned>(1 + run % 3);
      const PlanResult result = make_plan(costs, request);
      Digest now;
      if (const auto* plan = std::get_if<Plan>(&result)) {
        for (const OpSlot& slot : plan->schedule.slots) {
          now.add(slot.device.value());
          now.add(static_cast<std::uint64_t>(slot.start.count()));
        }
      } else {
        now.add(std::get<Unplaceable>(result).short_by.count() > 0 ? 1 : 0);
      }
      if (run == 0) first = now.value();
      REQUIRE(now.value() == first);
    }
    digest.add(first);
  }
  MESSAGE("digest planner ", digest.value());
}

}  // namespace
}  // namespace baechi
