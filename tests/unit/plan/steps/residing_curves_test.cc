// SPDX-License-Identifier: Apache-2.0
// Steps over budgets beside a host: what auto may never be worse than.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/cluster/cluster.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/graph/recomputation.h"
#include "baechi/graph/recosted.h"
#include "baechi/graph/unroll.h"
#include "baechi/plan/request/planner_options.h"
#include "baechi/plan/residency/residency_choice.h"
#include "baechi/plan/residency/residency_orders.h"
#include "baechi/plan/residency/residency_replay.h"
#include "baechi/plan/residency/residency_search.h"
#include "baechi/plan/steps/residing_pool.h"
#include "baechi/plan/steps/residing_starts.h"
#include "baechi/plan/steps/starts_in_parts.h"
#include "baechi/plan/steps/starts_in_rounds.h"
#include "baechi/plan/steps/step_plan.h"
#include "property/effort.h"
#include "unit/graph_sketch.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

constexpr std::size_t kLayers = 5;

// A chain of layers, their gradients and updates, which a host may run. Activations or weights are
// large, by the seed.
OpGraph layers(std::uint64_t seed, std::size_t count = kLayers) {
  Random random(seed ^ 0x10ca1);
  const auto draw = [&](std::size_t least, std::size_t most) {
    return static_cast<std::int64_t>(least + random.below(most - least + 1));
  };
  OpGraphBuilder builder("layers");
  const std::size_t large = seed % 2 == 0 ? 80 : 20;
  std::vector<OpId> weights, forward, backward;
  std::vector<Bytes> bytes;
  const auto add = [&](const std::string& name, bool back, bool update) {
    return timed(builder, {.name = name, .backward = back, .per_step = update}, Time(draw(20, 80)));
  };
  for (std::size_t i = 0; i < count; ++i) {
    const std::string number = std::to_string(i);
    weights.push_back(
        builder.add_operator({.name = "w" + number, .per_step = true, .variable = true}));
    bytes.emplace_back(draw(10, 120 - large));
    builder.add_output(weights[i], bytes[i]);
    forward.push_back(add("f" + number, false, false));
    builder.add_output(forward[i], Bytes(draw(10, large)));
    builder.connect(*builder.output(weights[i], 0), forward[i]);
    if (i > 0) builder.connect(*builder.output(forward[i - 1], 0), forward[i]);
  }
  std::optional<OpId> behind;
  for (std::size_t i = count; i-- > 0; behind = backward.back()) {
    const std::string number = std::to_string(i);
    backward.push_back(add("b" + number, true, false));
    const OpId back = backward.back();
    builder.set_forward(back, forward[i]);
    builder.add_output(back, bytes[i]);
    builder.add_output(back, Bytes(10));
    builder.connect(*builder.output(weights[i], 0), back);
    builder.connect(*builder.output(i == 0 ? forward[i] : forward[i - 1], 0), back);
    if (behind.has_value()) builder.connect(*builder.output(*behind, 1), back);
    const OpId update = add("u" + number, true, true);
    builder.set_time(update, "host", Time(draw(20, 80)));
    builder.connect(*builder.output(weights[i], 0), update);
    builder.connect(*builder.output(back, 0), update);
  }
  return std::move(builder).build();
}

std::optional<Plan> plan_from(const OpGraph& graph, const Cluster& cluster,
                              std::uint32_t micro_batches, const Plan* known) {
  StepRequest request{.search = {.budget = 0}};  // with more, few plans are longer than known ones
  request.micro_batches = {micro_batches};
  request.residency = AwayChoice::kAuto;
  request.search.bounds = request.search.suggest = false;
  request.known = known;
  std::vector<OpGraph> sizes;
  sizes.push_back(recosted(graph, {}));
  StepPlan made = make_step_plan(std::move(sizes), cluster, request);  // verified there
  Plan* plan = std::get_if<Plan>(&made.result);
  return plan != nullptr ? std::optional(std::move(*plan)) : std::nullopt;
}

std::optional<Time> step_of(const OpGraph& graph, const Cluster& cluster, AwayChoice residency,
                            Recompute recompute = Recompute::kAuto) {
  StepRequest request{.search = {.budget = 0.005}};
  request.residency = residency;
  request.recompute = recompute;
  request.search.bounds = request.search.suggest = false;
  std::vector<OpGraph> sizes;
  sizes.push_back(recosted(graph, {}));
  const StepPlan made = make_step_plan(std::move(sizes), cluster, request);  // verified there
  const Plan* plan = std::get_if<Plan>(&made.result);
  if (plan == nullptr) return std::nullopt;
  return plan->makespan();
}

Cluster four_unequal(const Cluster& one) {
  ClusterSpec spec = one.spec();
  for (const std::size_t i : {1U, 2U, 3U}) {
    spec.devices.push_back(spec.devices.front());
    spec.devices.back().name = "gpu:" + std::to_string(i);
    if (i == 1) continue;
    spec.devices.back().capacity = Bytes(spec.devices.front().capacity.count() * 3 / 4);
    spec.devices.back().speed = Speed(kFullSpeed.count() / 2);
  }
  return Cluster(std::move(spec));
}

double ratio(Time a, Time b) {
  return static_cast<double>(a.count()) / static_cast<double>(b.count());
}

// The fastest devices first, the layers in turn, or the slower ones first with what they have room
// for; gradients, weights and updates are where their layer is.
TEST_CASE("residency: starts cut a graph into one part for each device, for all or the fastest") {
  const OpGraph graph = layers(1);
  const Cluster cluster = four_unequal(gpu_and_host(Bytes(200), Bytes(10'000)));
  const std::vector<SequenceOfOne> starts = starts_in_parts(CostModel(graph, cluster));
  REQUIRE(starts.size() == 4);
  const std::array<std::size_t, 4> used{4, 2, 1, 4};
  for (std::size_t i = 0; i < starts.size(); ++i) {
    CAPTURE(i);
    std::vector<std::string> of_layers;
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      std::vector<std::string> names;
      for (const char* part : {"f", "b", "w", "u"}) {
        const OpId op = op_named(graph, (part + std::to_string(layer)).c_str());
        names.push_back(cluster[starts[i].device[op]].name);
      }
      CHECK(std::ranges::count(names, names.front()) == 4);
      of_layers.push_back(names.front());
    }
    const auto middle = std::ranges::find(of_layers, "gpu:0");
    const bool slow_first = i == 3;
    CHECK(std::is_sorted(of_layers.begin(), middle));
    CHECK(std::is_sorted(middle, of_layers.end()));
    CHECK(of_layers.front() == (slow_first ? "gpu:2" : "gpu:0"));
    const auto slower =
        std::ranges::count_if(of_layers, [](const auto& name) { return name > "gpu:1"; });
    CHECK(slower == (i == 0 ? 2 : slow_first ? 2 : 0));
    of_layers.erase(std::unique(of_layers.begin(), of_layers.end()), of_layers.end());
    CHECK(of_layers.size() == used[i]);
  }
}

// Of each layer 10 ns forward and 20 backward, in a group if they are tied.
OpGraph light_layers(std::size_t count, Bytes made, bool tied) {
  OpGraphBuilder builder("light layers");
  std::vector<OpId> forward;
  for (std::size_t i = 0; i < count; ++i) {
    forward.push_back(builder.add_operator({.name = "f" + std::to_string(i)}));
    builder.set_time(forward[i], "gpu", Time(10));
    builder.add_output(forward[i], made);
    if (i > 0) builder.connect(*builder.output(forward[i - 1], 0), forward[i]);
  }
  OpId behind = forward.back();
  for (std::size_t i = count; i-- > 0;) {
    const OpId back = timed(builder, {.name = "b" + std::to_string(i), .backward = true}, Time(20));
    builder.set_forward(back, forward[i]);
    builder.add_output(back, Bytes(1));
    builder.connect(*builder.output(behind, 0), back);
    if (i > 0) builder.connect(*builder.output(forward[i - 1], 0), back);
    if (tied)
      for (const OpId op : {forward[i], back})
        builder.add_to_group(op, "layer" + std::to_string(i));
    behind = back;
  }
  return std::move(builder).build();
}

Cluster two_and_host(Bytes capacity) {
  ClusterSpec spec = gpu_and_host(capacity, Bytes(100'000)).spec();
  spec.devices.insert(spec.devices.begin(), spec.devices.front());
  spec.devices[1].name = "gpu:1";
  return Cluster(spec);
}

// One of two devices has two of three layers at least, 60 ns of a micro-batch, if they stay whole.
TEST_CASE("residency: in rounds, a backward operator is elsewhere unless its group says no") {
  const Cluster cluster = two_and_host(Bytes(100'000));
  for (const bool tied : {false, true}) {
    const OpGraph graph = light_layers(3, Bytes(1), tied);
    const CostModel costs(graph, cluster);
    CHECK(!in_rounds(costs, 8, 0).has_value());
    const std::optional<SequenceOfOne> one = in_rounds(costs, 8, 100'000);
    REQUIRE(one.has_value());
    int apart = 0;
    for (const OpId op : graph.ops())
      if (graph[op].backward) apart += one->device[op] == one->device[*graph[op].forward] ? 0 : 1;
    CHECK((apart > 0) != tied);
    const Unrolled step = unroll(graph, 8);
    const CostModel whole(step.graph, cluster);
    const Time end = end_of(start_in_groups({step, whole}, *one, {8, {}}));
    CHECK((end < Time(8 * 60)) != tied);
  }
}

// What all micro-batches make is read again at the end, much of it on the other device: copies wait
// on the host where they have no room, and what is sent directly leaves the sender.
TEST_CASE(
    "residency: what another device reads late goes there over the host where memory is short") {
  const OpGraph graph = light_layers(4, Bytes(10), false);
  const Cluster cluster = two_and_host(Bytes(100'000));
  const std::optional<SequenceOfOne> one = in_rounds(CostModel(graph, cluster), 8, 100'000);
  REQUIRE(one.has_value());
  const Unrolled step = unroll(graph, 8);
  const CostModel costs(step.graph, cluster);
  const ResidencyProblem problem{step, costs};
  ResidencyStart start = start_in_groups(problem, *one, {8, {}});
  std::vector<Bytes> peaks;
  for (const std::int64_t memory : {100'000, 70}) {
    ResidencyPrefer prefer;
    prefer.memory = IdVector<DeviceId, Bytes>(3, Bytes(memory));
    const ReplayedResidency found =
        replay(problem, start, choose_residency(problem, start, {}, prefer), {});
    int over_host = 0;
    for (const AwayTensor& away : found.residency.away)
      for (const Fetch& fetch : away.fetches)
        over_host += start.device[fetch.readers.front()] != start.device[away.producer] ? 1 : 0;
    CHECK((over_host > 0) == (memory < 100'000));
    peaks.push_back(std::max(found.peaks[DeviceId(0)], found.peaks[DeviceId(1)]));
  }
  MESSAGE("peaks " << peaks.front().count() << " and " << peaks.back().count());
  CHECK(peaks.back() < peaks.front());
}

// 90 ns on one device, and 10 more for each that runs again.
TEST_CASE("residency: second runs that keep devices busy for longer than a step are left out") {
  const OpGraph graph = light_layers(3, Bytes(10), false);
  const Cluster cluster = two_and_host(Bytes(100'000));
  ResidingPool pool;
  for (const std::size_t runs : {0U, 2U, 1U}) {
    SearchedVariant& variant = *pool.variants.emplace_back(std::make_unique<SearchedVariant>());
    for (std::size_t i = 0; i < runs; ++i) variant.again.push_back({OpId(i + 1)});
    variant.step = std::make_unique<Unrolled>(unroll(recomputing(graph, variant.again), 1));
    variant.costs = std::make_unique<CostModel>(variant.step->graph, cluster);
  }
  pool.leave_out_longer_than(Time(50));  // of two devices
  REQUIRE(pool.variants.size() == 2);
  CHECK(pool.variants[0]->again.empty());
  CHECK(pool.variants[1]->again.size() == 1);
}

// One device takes 10 ns for each operator that the other takes 90 for: 30 ns in all, 40 with one again.
TEST_CASE("residency: no step is left out that devices which differ by operator may run in time") {
  OpGraphBuilder builder("unlike");
  std::vector<OpId> ops;
  for (std::size_t i = 0; i < 6; ++i) {
    ops.push_back(builder.add_operator({.name = "f" + std::to_string(i), .backward = i > 2}));
    builder.set_time(ops[i], "gpu", Time(i % 2 == 0 ? 10 : 90));
    builder.set_time(ops[i], "npu", Time(i % 2 == 0 ? 90 : 10));
    builder.add_output(ops[i], Bytes(1));
    if (i > 0) builder.connect(*builder.output(ops[i - 1], 0), ops[i]);
  }
  const OpGraph graph = std::move(builder).build();
  ClusterSpec spec = two_and_host(Bytes(100)).spec();
  spec.devices[1].kind = "npu";
  const Cluster cluster(spec);
  ResidingPool pool;
  SearchedVariant& variant = *pool.variants.emplace_back(std::make_unique<SearchedVariant>());
  variant.step = std::make_unique<Unrolled>(unroll(recomputing(graph, {}), 1));
  variant.costs = std::make_unique<CostModel>(variant.step->graph, cluster);
  pool.leave_out_longer_than(Time(30));
  CHECK(pool.variants.size() == 1);
  pool.leave_out_longer_than(Time(29));
  CHECK(pool.variants.empty());
}

TEST_CASE("residency: a host beside devices makes no pipeline longer") {
  const OpGraph graph = light_layers(6, Bytes(1), true);
  const auto step = [&](const Cluster& cluster) {
    StepRequest request;
    request.search.method = "pipeline";
    request.micro_batches = {4};
    std::vector<OpGraph> sizes;
    sizes.push_back(recosted(graph, {}));
    const StepPlan made = make_step_plan(std::move(sizes), cluster, request);
    REQUIRE(std::holds_alternative<Plan>(made.result));
    return std::get<Plan>(made.result).makespan();
  };
  ClusterSpec alone = two_and_host(Bytes(100'000)).spec();
  alone.devices.pop_back();
  CHECK(step(two_and_host(Bytes(100'000))) <= step(Cluster(alone)));
}

// Where not everything fits, slower devices that come first hold what they have room for.
TEST_CASE("residency: the slower devices that come first hold less where memory is short") {
  const OpGraph graph = layers(1);
  const Cluster cluster = four_unequal(gpu_and_host(Bytes(60), Bytes(10'000)));
  const std::vector<SequenceOfOne> starts = starts_in_parts(CostModel(graph, cluster));
  REQUIRE(starts.size() == 4);
  const auto on_slower = [&](const SequenceOfOne& start) {
    return std::ranges::count_if(start.device,
                                 [&](DeviceId device) { return cluster[device].name > "gpu:1"; });
  };
  CHECK(on_slower(starts.front()) == 8);  // two layers
  CHECK(on_slower(starts.back()) == 4);
}

// The best are 0.55 of the second device, which comes first, and 0.45 of the first.
TEST_CASE("residency: shares of devices are sought from the best of those given, each rated once") {
  const Cluster cluster = four_unequal(gpu_and_host(Bytes(60), Bytes(10'000)));
  const DeviceId fast(0), slow = *cluster.find("gpu:2");
  std::vector<DeviceShares> rated;
  const auto rate = [&](const DeviceShares& shares) -> std::optional<double> {
    rated.push_back(shares);
    if (shares.size() == 1) return std::nullopt;  // none of these
    return std::abs(shares.front().second - 0.55) + (shares.front().first == slow ? 0 : 1);
  };
  const std::vector<DeviceShares> from{
      {{fast, 1.0}}, {{fast, 0.5}, {slow, 0.5}}, {{fast, 0.7}, {slow, 0.3}}};
  const DeviceShares best = least_shares(cluster, from, rate);
  REQUIRE(best.size() == 2);
  CHECK(best.front().first == slow);
  CHECK(best.front().second == doctest::Approx(0.55));
  CHECK(best.back().second == doctest::Approx(0.45));
  std::ranges::sort(rated);
  CHECK(std::ranges::adjacent_find(rated) == rated.end());
  CHECK(rated.size() < 40);
}

// Beside a device that holds nearly all memory, all plans are on that one.
TEST_CASE("residency: no two starts are equal, and planning for them is counted") {
  const OpGraph graph = layers(1);
  const Cluster one = gpu_and_host(Bytes(100'000), Bytes(10'000));
  const PlanRequest request{.budget = 0.005};
  CHECK(!sequences_of_one(CostModel(graph, one), 1, request).is_planned);
  for (const std::int64_t capacity : {100'000, 300, 1}) {
    CAPTURE(capacity);
    ClusterSpec spec = four_unequal(one).spec();
    for (std::size_t i = 2; i < spec.devices.size(); ++i)
      spec.devices[i].capacity = Bytes(capacity);
    const Cluster cluster(spec);
    const PlannedStarts starts = sequences_of_one(CostModel(graph, cluster), 1, request);
    CHECK(starts.is_planned);
    CHECK(starts.sequences.size() <= (capacity > 1 ? 5 : 4));
    REQUIRE(starts.sequences.size() >= 2);
    for (std::size_t i = 0; i < starts.sequences.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) CHECK(!(starts.sequences[i] == starts.sequences[j]));
  }
}

TEST_CASE("residency: a search spends what it may and no replay more, and more finds no less") {
  const OpGraph graph = layers(3);
  const Cluster cluster = gpu_and_host(Bytes(260), Bytes(10'000));
  const Unrolled step = unroll(graph, 1);
  const CostModel costs(step.graph, cluster);
  const ResidencyProblem problem{step, costs};
  const std::vector<ResidencyStart> starts{
      start_in_groups(problem, starts_in_parts(costs).front(), {})};
  const auto most = static_cast<std::int64_t>(step.graph.num_ops() + step.graph.num_edges());
  std::optional<ResidencySearch::Rating> less;
  std::int64_t last = 0;
  for (const std::int64_t limit : {1, 100, 1'000, 10'000, 1'000'000}) {
    CAPTURE(limit);
    ReplayWork work{.limit = limit, .limit_to_fit = limit};
    ResidencySearch search(problem, starts, work);
    search.improve({});
    REQUIRE(search.best() != nullptr);
    CHECK(work.spent < limit + most);
    CHECK(work.spent >= last);
    last = work.spent;
    if (less.has_value()) CHECK(search.best()->rating() <= *less);
    less = search.best()->rating();
  }
  CHECK(last > 1'000);
}

TEST_CASE("residency: with all away, the store's order is the best of both estimates") {
  int shorter = 0;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = layers(seed, 8);
    const Cluster cluster = gpu_and_host(Bytes(1'000), Bytes(10'000));
    const Unrolled step = unroll(graph, 1);
    const CostModel costs(step.graph, cluster);
    const ResidencyProblem problem{step, costs};
    const std::vector<ResidencyStart> starts{
        start_in_groups(problem, starts_in_parts(costs).front(), {})};
    std::vector<Time> found;
    for (const bool queues : {true, false}) {
      ReplayWork work{.limit = 100'000, .limit_to_fit = 100'000};
      ResidencySearch search(problem, starts, work);
      for (const bool first_come : {false, true})
        search.try_as({.lead = 0, .rule = {first_come, queues}});
      REQUIRE(search.best()->fits);
      found.push_back(search.best()->makespan);
    }
    CHECK(step_of(graph, cluster, AwayChoice::kAll, Recompute::kNone) <=
          std::min(found[0], found[1]));
    shorter += found[1] < found[0] ? 1 : 0;
  }
  CHECK(shorter > 0);  // where the estimate knows no queues
}

TEST_CASE("residency: auto is never longer than what keeps all or repeats, nor than on less") {
  std::uint64_t fits = 0, alone = 0;
  double longest = 0, four = 0;
  for (const std::uint64_t seed : {2U, 4U, 7U, 11U}) {
    if (fits == effort(12, 4)) break;
    std::optional<Time> less;
    for (const std::int64_t capacity : {220, 260, 300}) {
      CAPTURE(seed);
      CAPTURE(capacity);
      const OpGraph graph = layers(seed, 3);
      const Cluster cluster = gpu_and_host(Bytes(capacity), Bytes(10'000));
      const std::optional<Time> step = step_of(graph, cluster, AwayChoice::kAuto);
      const std::array less_is_free{std::pair(AwayChoice::kAuto, Recompute::kNone),
                                    std::pair(AwayChoice::kAll, Recompute::kAuto),
                                    std::pair(AwayChoice::kNone, Recompute::kNone),
                                    std::pair(AwayChoice::kNone, Recompute::kAuto)};
      for (const auto& [residency, recompute] : less_is_free) {
        const std::optional<Time> other = step_of(graph, cluster, residency, recompute);
        if (!other.has_value()) continue;
        REQUIRE(step.has_value());
        CHECK(*step <= *other);
      }
      if (!step.has_value()) continue;
      ++fits;
      const std::optional<Time> of_four = step_of(graph, four_unequal(cluster), AwayChoice::kAuto);
      REQUIRE(of_four.has_value());
      const std::optional<Time> away = step_of(graph, four_unequal(cluster), AwayChoice::kAll);
      CHECK((!away.has_value() || *of_four <= *away));
      four = std::max(four, ratio(*of_four, *step));
      alone += *of_four == *step ? 1U : 0U;
      if (less.has_value()) longest = std::max(longest, ratio(*step, *less));
      less = step;
    }
  }
  MESSAGE(fits << " fit; on more memory at most " << longest << " times as long; on four devices "
               << four << ", as long in " << alone);
  REQUIRE(fits == effort(12, 4));
  CHECK(longest <= 1.0);
  CHECK(four <= 1.0);
}

TEST_CASE(
    "residency: the host's thread asks for fetches and puts, too, and auto knows what that takes") {
  std::uint64_t waited = 0;
  for (std::uint64_t seed = 1; seed <= effort(3, 3); ++seed)
    for (const HostTime asking : {HostTime{Time(3), Time(1)}, HostTime{Time(1), Time(30)}}) {
      CAPTURE(seed);
      const OpGraph graph = layers(seed, 3);
      ClusterSpec spec = gpu_and_host(Bytes(600), Bytes(10'000)).spec();
      const Time free = *step_of(graph, Cluster(spec), AwayChoice::kAll, Recompute::kNone);
      spec.host_time = asking;
      const Time all = *step_of(graph, Cluster(spec), AwayChoice::kAll, Recompute::kNone);
      const Time none = *step_of(graph, Cluster(spec), AwayChoice::kNone, Recompute::kNone);
      CHECK(*step_of(graph, Cluster(spec), AwayChoice::kAuto, Recompute::kNone) <=
            std::min(all, none));
      waited += all > free ? 1U : 0U;
      spec.devices.front().capacity = Bytes(240);
      CHECK(step_of(graph, Cluster(spec), AwayChoice::kAuto).has_value());
      CHECK(step_of(graph, four_unequal(Cluster(spec)), AwayChoice::kAuto).has_value());
    }
  CHECK(waited >= effort(5, 5));
}

TEST_CASE("residency: a step is never longer than the plan of less memory that it begins with") {
  std::uint64_t pairs = 0, longer = 0, kept = 0;
  for (std::uint64_t seed = 0; seed < effort(2, 2); ++seed)
    for (const std::uint32_t micro_batches : {1U, 2U})
      for (const bool several : {false, true}) {
        std::optional<Plan> less;
        for (const std::int64_t capacity : {280, 320, 380, 480}) {
          CAPTURE(seed);
          CAPTURE(micro_batches);
          CAPTURE(several);
          CAPTURE(capacity);
          const OpGraph graph = layers(seed, 3);
          const Cluster one = gpu_and_host(Bytes(capacity), Bytes(10'000));
          const Cluster cluster = several ? four_unequal(one) : one;
          const std::optional<Plan> alone = plan_from(graph, cluster, micro_batches, nullptr);
          if (less.has_value()) {
            const std::optional<Plan> plan = plan_from(graph, cluster, micro_batches, &*less);
            REQUIRE(plan.has_value());
            CHECK(plan->makespan() <= less->makespan());
            ++pairs;
            longer += !alone.has_value() || alone->makespan() > less->makespan() ? 1U : 0U;
            kept += plan->method == "expert" ? 1U : 0U;
            less = plan;
          } else {
            less = alone;
          }
        }
      }
  MESSAGE(pairs << " pairs; alone " << longer << " would be longer; " << kept << " keep the plan");
  CHECK(pairs > effort(20, 2));
  CHECK(longer > effort(5, 6));
  CHECK(kept > effort(10, 4));
}

TEST_CASE("residency: no search begins with a plan of other micro-batches") {
  const OpGraph graph = layers(2, 3);
  const Cluster cluster = gpu_and_host(Bytes(1'000), Bytes(10'000));
  const std::optional<Plan> known = plan_from(graph, cluster, 2, nullptr);
  REQUIRE(known.has_value());
  CHECK(plan_from(graph, cluster, 2, &*known).has_value());
  CHECK_THROWS_WITH_AS(plan_from(graph, cluster, 3, &*known),
                       doctest::Contains("2 micro-batches, for which no plan is asked"),
                       OptionError);
}

}  // namespace
}  // namespace baechi::testing
