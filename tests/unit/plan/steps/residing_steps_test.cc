// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/residing_steps.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/graph/recosted.h"
#include "baechi/graph/residency.h"
#include "baechi/graph/unroll.h"
#include "baechi/io/plan/plan_file.h"
#include "baechi/io/step/open_plan.h"
#include "baechi/plan/residency/residency_bounds.h"
#include "baechi/plan/steps/step_plan.h"
#include "baechi/verify/check_plan.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

using Found = std::vector<std::pair<std::string, std::int64_t>>;

Found traffic_bounds(const Cluster& cluster, const Unrolled& step, bool apart = false) {
  Found found;
  for (const NamedBound& bound : residency_bounds({step, CostModel(step.graph, cluster)}, apart))
    if (bound.name.find("host") != std::string::npos)
      found.emplace_back(bound.name, bound.value.count());
  std::ranges::sort(found);
  return found;
}

// Weights of 1,000 bytes with so much state, in 10 ns on the device (5 forward, 5 backward), and updates that
// take so long on the host. A gradient has 500 bytes.
OpGraph weights(std::size_t count, std::int64_t state, std::int64_t on_host, std::int64_t run = 5) {
  OpGraphBuilder builder("weights");
  std::optional<OpId> last;
  for (std::size_t i = 0; i < count; ++i) {
    const auto name = [&](const char* what) { return what + std::to_string(i); };
    const OpId w = builder.add_operator({.name = name("w"), .per_step = true, .variable = true});
    builder.add_output(w, Bytes(1000));
    const auto add = [&](const char* what, std::int64_t time, bool update) {
      const OpId op =
          timed(builder, {.name = name(what), .backward = what[0] != 'f', .per_step = update},
                Time(time));
      builder.connect(*builder.output(w, 0), op);
      return op;
    };
    const OpId f = add("f", run, false), b = add("b", run, false), u = add("u", 3, true);
    builder.set_time(u, "host", Time(on_host));
    if (state > 0) {
      const OpId more =
          builder.add_operator({.name = name("s"), .per_step = true, .variable = true});
      builder.connect(builder.add_output(more, Bytes(state)), u);
    }
    builder.set_forward(b, f);
    builder.add_output(f, Bytes(1));
    builder.add_output(b, Bytes(500));
    builder.connect(*builder.output(f, 0), b);
    builder.connect(*builder.output(b, 0), u);
    if (last.has_value()) builder.add_control_edge(*last, f);
    last = b;
  }
  return std::move(builder).build();
}

// Beside the gradient, and 1 that its operator reads, a weight is away where 1,500 bytes are
// there, and where less are it cannot be streamed. On two devices with less than it takes together all of it is
// away, too: no unit is cut.
TEST_CASE("residency: traffic and updates at the least, by hand") {
  const OpGraph graph = weights(1, 0, 100);
  const Unrolled one = unroll(graph, 1), three = unroll(graph, 3);
  const auto away = [](std::int64_t work) {  // before the gradient, which goes to the host
    return Found{{"traffic from the host", 999},
                 {"traffic to the host", 499 + work},
                 {"updates on the host", 99 + work}};
  };
  const auto gpu = [](std::int64_t capacity) {
    return gpu_and_host(Bytes(capacity), Bytes(10'000));
  };
  CHECK(traffic_bounds(gpu(1499), one) == away(10));
  CHECK(traffic_bounds(gpu(1499), three) == away(30));  // 30 ns before the update; one fetch
  CHECK(traffic_bounds(gpu(1500), one) ==
        Found{{"traffic from the host", 999}, {"traffic to the host", 509}});
  CHECK(traffic_bounds(gpu(1501), one).empty());
  // The gradient goes back when the weight has come.
  const Cluster small = gpu(501);
  const auto all = residency_bounds({one, CostModel(one.graph, small)}, false);
  CHECK(all.front().name == "updates and traffic");
  CHECK(all.front().value == Time(1499));
  ClusterSpec two = gpu(750).spec();
  two.devices.push_back(two.devices.front());
  two.devices.back().name = "gpu:1";
  CHECK(traffic_bounds(Cluster(two), one) == away(10));
  // One run of b goes before the others, which may go side by side.
  CHECK(traffic_bounds(Cluster(two), three) == away(15));
  // Copies apart have no order, and one may send its part of the gradient before the others have begun.
  CHECK(traffic_bounds(Cluster(two), three, true) == away(10));
  CHECK(traffic_bounds(gpu(1499), three, true) == Found{{"traffic from the host", 999},
                                                        {"traffic to the host", 509},
                                                        {"updates on the host", 129}});
}

// Two micro-batches of 20 us: as stages they take 25 us on two devices, side by side 20 and what is sent.
TEST_CASE("residency: micro-batches apart go side by side, and no bound is above that") {
  ClusterSpec two = gpu_and_host(Bytes(4000), Bytes(10'000)).spec();
  two.devices.push_back(two.devices.front());
  two.devices.back().name = "gpu:1";
  const OpGraph graph = weights(2, 500, 1, 5000);
  const auto made = [&](bool apart, bool keeps = false) {
    std::vector<OpGraph> sizes;
    sizes.push_back(recosted(graph, {}));
    StepRequest request{.search = {.budget = 0.05}};
    request.micro_batches = {2};
    request.residency = keeps ? AwayChoice::kNone : AwayChoice::kAuto;
    request.copies_apart = apart;
    return make_step_plan(std::move(sizes), Cluster(two), request);
  };
  const StepPlan together = made(false), apart = made(true);
  REQUIRE(std::holds_alternative<Plan>(apart.result));
  const Plan& plan = std::get<Plan>(apart.result);
  CHECK(std::get<Plan>(together.result).makespan() >= Time(25'000));
  CHECK(plan.makespan() < Time(23'000));
  CHECK(plan.replicas.count == 2);
  CHECK(plan.replicas.shared == 6);
  CHECK(check_plan(graph, apart.step, plan).empty());
  const OpenedPlan back =
      open_plan_text(plan_to_json(plan, apart.step), "plan.json", recosted(graph, {}));
  CHECK(back.plan == plan);
  CHECK_THROWS_WITH_AS(made(true, true),
                       doctest::Contains("copies are free where weights may be on a host"),
                       InputError);
}

// In nanoseconds, of two weights of 3,000 bytes beside so much memory, and of updates that take 4,000.
Time updates_and_traffic(Bytes capacity) {
  const Unrolled step = unroll(weights(2, 3000, 4000), 1);
  const Cluster cluster = gpu_and_host(capacity, Bytes(20'000));
  const std::vector<NamedBound> bounds = residency_bounds({step, CostModel(step.graph, cluster)});
  CHECK(bounds.front().name == "updates and traffic");
  return bounds.front().value;
}

// No weight stays. Host and link to it begin when the first weight has come, after 1,000 ns. If the
// host updates y of the two, it then takes 4,000 y ns, and that link 500 y + 4,000 (2 - y): 5,267 at
// the least, with y = 1.07.
TEST_CASE("residency: host and link share the updates at the least, by hand") {
  const Time bound = updates_and_traffic(Bytes(4500));
  CHECK(bound > Time(5250));
  CHECK(bound <= Time(5267));
}

// One of two weights stays beside what other operators need, and then the other has no room to be
// streamed: the host updates it, in 10 + 4,000 ns. If none stays, both take longer, as above.
TEST_CASE("residency: what is streamed has room beside what stays, by hand") {
  const Time bound = updates_and_traffic(Bytes(8400));
  CHECK(bound > Time(4000));
  CHECK(bound <= Time(4010));
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
  const OpId f = timed(builder, {.name = "f"}, Time(5));
  const OpId u = timed(builder, {.name = "u", .backward = true, .per_step = true}, Time(5));
  for (const OpId op : {f, u}) builder.connect(*builder.output(w, 0), op);
  builder.set_time(u, "host", Time(5));
  builder.connect(builder.add_output(f, Bytes(500)), u);
  builder.add_output(u, Bytes(1'000));
  const Plan plan = with_all_away(std::move(builder).build(), Bytes(2'600));
  for (const AwayTensor& away : plan.residency.away) CHECK(away.producer != u);
}

TEST_CASE("residency: a variable that the host may not hold stays") {
  OpGraphBuilder builder("a variable with times");
  const OpId f = timed(builder, {.name = "f"}, Time(5));
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
