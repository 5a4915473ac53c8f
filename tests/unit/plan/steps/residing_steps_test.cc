// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/residing_steps.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/graph/op_graph_builder.h"
#include "baechi/graph/recosted.h"
#include "baechi/graph/residency.h"
#include "baechi/graph/unroll.h"
#include "baechi/plan/residency/residency_bounds.h"
#include "baechi/plan/steps/step_plan.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

std::vector<std::pair<std::string, std::int64_t>> traffic_bounds(const Cluster& cluster,
                                                                 const Unrolled& step) {
  std::vector<std::pair<std::string, std::int64_t>> found;
  for (const NamedBound& bound : residency_bounds({step, CostModel(step.graph, cluster)}))
    if (bound.name.find("host") != std::string::npos)
      found.emplace_back(bound.name, bound.value.count());
  std::ranges::sort(found);
  return found;
}

// A weight of 1,000 bytes and its update, in 10 ns on the device (5 forward, 5 backward) and 100 on the host.
// Beside its gradient (500 bytes, and 1 that its operator reads) it is away where 1,500 bytes are
// there. On two devices with less than it takes together all of it is, too: no unit is cut.
TEST_CASE("residency: traffic and updates at the least, by hand") {
  OpGraphBuilder builder("one weight");
  const OpId w = builder.add_operator({.name = "w", .per_step = true, .variable = true});
  builder.add_output(w, Bytes(1000));
  const auto add = [&](const char* name, std::int64_t time, bool update) {
    const OpId op =
        builder.add_operator({.name = name, .backward = name[0] != 'f', .per_step = update});
    builder.set_time(op, "gpu", Time(time));
    builder.connect(*builder.output(w, 0), op);
    return op;
  };
  const OpId f = add("f", 5, false), b = add("b", 5, false), u = add("u", 3, true);
  builder.set_time(u, "host", Time(100));
  builder.set_forward(b, f);
  builder.add_output(f, Bytes(1));
  builder.add_output(b, Bytes(500));
  builder.connect(*builder.output(f, 0), b);
  builder.connect(*builder.output(b, 0), u);
  const OpGraph graph = std::move(builder).build();
  using Found = std::vector<std::pair<std::string, std::int64_t>>;
  const Unrolled one = unroll(graph, 1), three = unroll(graph, 3);
  const auto away = [](std::int64_t updates) {
    return Found{{"traffic from the host", 999},
                 {"traffic to the host", 499},
                 {"updates on the host", updates}};
  };
  CHECK(traffic_bounds(gpu_and_host(Bytes(1500), Bytes(10'000)), one) == away(109));
  CHECK(traffic_bounds(gpu_and_host(Bytes(1500), Bytes(10'000)), three) ==
        away(129));  // 30 ns before the update; one fetch
  CHECK(traffic_bounds(gpu_and_host(Bytes(1501), Bytes(10'000)), one).empty());
  ClusterSpec two = gpu_and_host(Bytes(750), Bytes(10'000)).spec();
  two.devices.push_back(two.devices.front());
  two.devices.back().name = "gpu:1";
  CHECK(traffic_bounds(Cluster(two), one) == away(109));
  // One run of b goes before the others, which may go side by side.
  CHECK(traffic_bounds(Cluster(two), three) == away(114));
}

Plan with_all_away(OpGraph graph, Bytes capacity) {
  std::vector<OpGraph> sizes;
  sizes.push_back(std::move(graph));
  StepRequest request{.search = {.budget = 0.01}};
  request.residency = AwayChoice::kAll;
  StepPlan made = make_step_plan(std::move(sizes), gpu_and_host(capacity, Bytes(10'000)), request);
  REQUIRE(std::holds_alternative<Plan>(made.result));
  return std::get<Plan>(std::move(made.result));
}

// Updates in PyTorch hold optimizer state as an output that nobody reads.
TEST_CASE("residency: nothing fetches what an update makes and nobody reads") {
  OpGraphBuilder builder("an update's output");
  const OpId w = builder.add_operator({.name = "w", .per_step = true, .variable = true});
  builder.add_output(w, Bytes(1'000));
  const OpId f = builder.add_operator({.name = "f"});
  const OpId u = builder.add_operator({.name = "u", .backward = true, .per_step = true});
  for (const OpId op : {f, u}) builder.set_time(op, "gpu", Time(5));
  for (const OpId op : {f, u}) builder.connect(*builder.output(w, 0), op);
  builder.set_time(u, "host", Time(5));
  builder.connect(builder.add_output(f, Bytes(500)), u);
  builder.add_output(u, Bytes(1'000));
  const Plan plan = with_all_away(std::move(builder).build(), Bytes(2'600));
  for (const AwayTensor& away : plan.residency.away) CHECK(away.producer != u);
}

TEST_CASE("residency: a variable that the host may not hold stays") {
  OpGraphBuilder builder("a variable with times");
  const OpId f = builder.add_operator({.name = "f"});
  builder.set_time(f, "gpu", Time(5));
  for (const char* name : {"free", "timed"}) {
    const OpId w = builder.add_operator({.name = name, .variable = true});
    builder.add_output(w, Bytes(1'000));
    if (std::string_view(name) == "timed") builder.set_time(w, "gpu", Time(0));
    builder.connect(*builder.output(w, 0), f);
  }
  const Plan plan = with_all_away(std::move(builder).build(), Bytes(2'500));
  const Placement placement = placement_of(plan.schedule);
  CHECK(placement[OpId(1)] == DeviceId(1));
  CHECK(placement[OpId(2)] == DeviceId(0));
}

}  // namespace
}  // namespace baechi::testing
