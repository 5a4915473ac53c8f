// SPDX-License-Identifier: Apache-2.0
#include "baechi/dnn_partitioning/dnnp_bound.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/dnn_partitioning/dnnp_assignment.h"
#include "baechi/dnn_partitioning/dnnp_search.h"
#include "baechi/dnn_partitioning/dnnp_set_diagram.h"
#include "baechi/graph/op_graph_builder.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

// Operators with times of their own on a CPU, groups that may wait for each other in a circle, and
// tensors that cost nothing, little or much to move.
OpGraph draw_traffic(std::uint64_t seed, std::size_t num_ops) {
  Random random(seed);
  OpGraphBuilder builder;
  for (std::size_t i = 0; i < num_ops; ++i) {
    const OpId op = builder.add_operator({.name = "op" + std::to_string(i)});
    builder.set_time(op, "accelerator", Time(random.between(0, 20)));
    if (random.chance(0.6)) builder.set_time(op, "cpu", Time(random.between(0, 60)));
    builder.add_output(op, Bytes(random.chance(0.5) ? random.between(0, 4) : 12));
    if (random.chance(0.3)) builder.add_to_group(op, "g" + std::to_string(random.below(2)));
    for (std::size_t parent = i > 3 ? i - 3 : 0; parent < i; ++parent)
      if (random.chance(0.5)) builder.connect(*builder.output(OpId(parent), 0), op);
  }
  return std::move(builder).build();
}

// Ways out of a device and into it that cost unlike amounts, and devices of unlike speeds.
Cluster draw_accelerators(std::uint64_t seed) {
  Random random(seed ^ 0x5a);
  ClusterSpec spec = uniform_cluster({.count = 2 + random.below(2),
                                      .capacity = Bytes(1'000),
                                      .latency = Time(random.between(0, 2)),
                                      .bandwidth = Bandwidth(1'000'000'000)});
  for (Device& device : spec.devices) device.kind = "accelerator";
  if (random.chance(0.3)) spec.devices[0].speed = Speed(500'000);
  if (random.chance(0.6)) {
    spec.devices.push_back({"cpu:0", "cpu", Bytes(1'000'000), "localhost", kFullSpeed});
    LinkRule out;
    out.scope = LinkScope::kKinds;
    out.from = "accelerator";
    out.to = "cpu";
    out.both_ways = false;
    out.latency = Time(3);
    if (random.chance(0.5)) spec.links.push_back(out);
  }
  return Cluster(std::move(spec));
}

// Of all placements, by the search's own accounts, which the score is compared with elsewhere.
dnnp::Ns least_of_all(const dnnp::Instance& in) {
  dnnp::Assignment now(in, 0);
  dnnp::Ns best = dnnp::kNever;
  const auto assign = [&](const auto& self, std::size_t group) -> void {
    if (group == in.groups.size()) {
      best = std::min(best, now.max_load());
      return;
    }
    for (std::size_t part = 0; part < in.num_parts(); ++part) {
      if (in.time_on(group, part) >= dnnp::kNever) continue;
      now.move(group, part);
      self(self, group + 1);
    }
  };
  assign(assign, 0);
  return best;
}

TEST_CASE("dnnp bound: never above the best of all placements, and mostly that") {
  std::size_t reached = 0;
  double all = 0.0;
  constexpr std::size_t kSeeds = 300;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = draw_traffic(seed, 8);
    const Cluster cluster = draw_accelerators(seed);
    const CostModel costs(graph, cluster);
    const dnnp::Instance in = dnnp::tabulate(costs);
    const dnnp::Ns best = least_of_all(in);
    // Nothing but the proof keeps it below: the value it is told of is no placement's.
    const dnnp::Ns bound = dnnp::max_load_bound(in, 2 * best + 5, {300'000, [] { return false; }});
    CHECK(bound <= best);
    if (bound == best) ++reached;
    if (best > 0) all += static_cast<double>(bound) / static_cast<double>(best);
  }
  CHECK(reached * 10 > kSeeds * 6);
  CHECK(all > 0.93 * kSeeds);
}

// The dearest set within a limit, by trying all of them; what is not in it is on part 1.
dnnp::Price dearest_of_all(const dnnp::Instance& in, const std::vector<dnnp::Price>& prices,
                           dnnp::Ns limit) {
  dnnp::Price most = 0;
  for (std::size_t set = 0; set < std::size_t{1} << in.groups.size(); ++set) {
    dnnp::Assignment now(in, 1);
    dnnp::Price price = 0;
    bool allowed = true;
    for (std::size_t group = 0; group < in.groups.size(); ++group)
      if ((set >> group & 1U) != 0) {
        allowed = allowed && in.time_on(group, 0) < dnnp::kNever;
        now.move(group, 0);
        price += prices[group];
      }
    if (allowed && now.load(0) <= limit) most = std::max(most, price);
  }
  return most;
}

TEST_CASE("dnnp bound: the dearest set is found, and little effort finds no cheaper one") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = draw_traffic(seed, 9);
    const Cluster cluster = draw_accelerators(seed);
    const CostModel costs(graph, cluster);
    const dnnp::Instance in = dnnp::tabulate(costs);
    Random random(seed);
    std::vector<dnnp::Price> prices;
    for (std::size_t group = 0; group < in.groups.size(); ++group)
      prices.push_back(random.between(0, 1000));
    const dnnp::Ns limit = random.between(0, 80);
    const dnnp::Price best = dearest_of_all(in, prices, limit);
    std::int64_t work = 0;
    dnnp::Sequence backwards(in.groups.size());
    std::iota(backwards.rbegin(), backwards.rend(), 0U);
    for (const dnnp::Sequence& sequence : {dnnp::good_sequences(in).front(), backwards}) {
      const dnnp::SetDiagram diagram(in, sequence, 0, 1'000'000, 0);
      const dnnp::DearestSet exact = diagram.dearest(prices, limit, best / 2, 1'000'000, work);
      CHECK(exact.most == best);
      if (best > 0) CHECK(exact.load <= limit);
      CHECK(diagram.dearest(prices, limit, best, 1'000'000, work).groups.empty());
      CHECK(diagram.dearest(prices, limit, best / 2, 4, work).most >= best);
      for (const dnnp::Ns ignored : {dnnp::Ns{0}, dnnp::Ns{5}})
        CHECK(dnnp::SetDiagram(in, sequence, 0, 3, ignored)
                  .dearest(prices, limit, best / 2, 1'000'000, work)
                  .most >= best);
    }
  }
}

// Forty tensors are under way at once, more than a state has room for.
TEST_CASE("dnnp bound: tensors that a state has no room for are forgotten, the cheapest first") {
  OpGraphBuilder builder;
  for (std::size_t i = 0; i < 80; ++i) {
    const OpId op = builder.add_operator({.name = "op" + std::to_string(i)});
    builder.set_time(op, "gpu", Time(1));
    builder.add_output(op, Bytes(i == 5 ? 100 : 1));
    if (i >= 40) builder.connect(*builder.output(OpId(i - 40), 0), op);
  }
  const OpGraph graph = std::move(builder).build();
  ClusterSpec spec = uniform_cluster({.count = 2, .capacity = Bytes(1'000), .latency = Time(0)});
  for (LinkRule& rule : spec.links) rule.bandwidth = Bandwidth(1'000'000'000);
  const Cluster cluster(std::move(spec));
  const CostModel costs(graph, cluster);
  const dnnp::Instance in = dnnp::tabulate(costs);
  dnnp::Sequence sequence(80);
  std::iota(sequence.begin(), sequence.end(), 0U);
  std::vector<dnnp::Price> prices(80, 0);
  prices[5] = prices[6] = 1;
  std::int64_t work = 0;
  const dnnp::SetDiagram diagram(in, sequence, 0, 100, 0);
  // Operator 5 without its reader costs 50 more than the limit, and with it the reader's time.
  CHECK(diagram.dearest(prices, Time(2).count(), 0, 1'000, work).most == 1);
  CHECK(diagram.dearest(prices, Time(3).count(), 0, 1'000, work).most == 2);
}

// Four operators of 10 ns in a row, 4 ns to the next device or from it: 24, where the work is 20.
TEST_CASE("dnnp bound: a device pays for what it sends and receives") {
  const OpGraph graph = testing::chain(std::vector<Time>(4, Time(10)), Bytes(8));
  const Cluster cluster(uniform_cluster({.count = 2,
                                         .capacity = Bytes(1'000),
                                         .latency = Time(0),
                                         .bandwidth = Bandwidth(1'000'000'000)}));
  const CostModel costs(graph, cluster);
  const auto found = place_for(costs, DnnpObjective::kMaxLoad, {.budget = 0.1});
  CHECK(std::get<DnnpPlacement>(found).value == Time(24));
  CHECK(std::get<DnnpPlacement>(found).bound == Time(24));
  const auto none = place_for(costs, DnnpObjective::kMaxLoad, {.budget = 0.0});
  CHECK(std::get<DnnpPlacement>(none).bound == Time(20));
  const auto latency = place_for(costs, DnnpObjective::kLatency, {.budget = 0.0});
  CHECK_FALSE(std::get<DnnpPlacement>(latency).bound.has_value());
}

}  // namespace
}  // namespace baechi
