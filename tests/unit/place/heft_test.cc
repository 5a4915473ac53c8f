// SPDX-License-Identifier: Apache-2.0
// HEFT against one of the test's own, as its authors describe it, on graphs of unequal processors.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/place/placer.h"
#include "baechi/plan/planner.h"
#include "baechi/simulate/execution_simulator.h"
#include "property/effort.h"

namespace baechi {
namespace {

constexpr std::size_t kKinds = 6;

std::string kind(std::size_t index) { return "k" + std::to_string(index); }

// Layers of random width, or forks of chains that join again. Every operator has a time of its own
// on every kind of processor; a byte takes a nanosecond between any two.
class Instance {
 public:
  explicit Instance(std::uint64_t seed) : random_(seed), is_layered_(seed % 2 == 0) {
    const std::size_t many = 40 + random_.below(120);
    for (std::size_t k = 0; k < kKinds; ++k) slowness_.push_back(1 + random_.below(8));
    std::vector<std::size_t> before{add({})};
    while (times.size() < many) before = is_layered_ ? layer(before) : forks(before);
  }

  OpGraph graph() const {
    OpGraphBuilder builder;
    std::vector<TensorId> outputs;
    for (std::size_t op = 0; op < times.size(); ++op) {
      const OpId id = builder.add_operator({.name = "op" + std::to_string(op)});
      for (std::size_t k = 0; k < kKinds; ++k) builder.set_time(id, kind(k), Time(times[op][k]));
      outputs.push_back(builder.add_output(id, Bytes(bytes[op])));
      for (const std::size_t parent : parents[op]) builder.connect(outputs[parent], id);
    }
    return std::move(builder).build();
  }

  std::vector<std::vector<std::int64_t>> times;  // by operator and kind
  std::vector<std::int64_t> bytes;
  std::vector<std::vector<std::size_t>> parents;

 private:
  std::size_t add(std::vector<std::size_t> from) {
    const std::uint64_t work = 100 + random_.below(900);
    times.emplace_back();
    for (std::size_t k = 0; k < kKinds; ++k)
      times.back().push_back(std::int64_t(work * slowness_[k] * (50 + random_.below(100)) / 100));
    bytes.push_back(from.empty() ? 1 : std::int64_t(1 + random_.below(3000)));
    parents.push_back(std::move(from));
    return times.size() - 1;
  }
  std::vector<std::size_t> layer(const std::vector<std::size_t>& before) {
    std::vector<std::size_t> added(1 + random_.below(9));
    for (std::size_t& op : added) {
      std::vector<std::size_t> from{before[random_.below(before.size())]};
      for (const std::size_t other : before)
        if (other != from.front() && random_.below(4) == 0) from.push_back(other);
      op = add(std::move(from));
    }
    return added;
  }
  std::vector<std::size_t> forks(const std::vector<std::size_t>& before) {
    std::vector<std::size_t> ends(2 + random_.below(7));
    for (std::size_t& end : ends) {
      end = before.front();
      for (std::size_t length = 1 + random_.below(5); length > 0; --length) end = add({end});
    }
    return {add(ends)};
  }

  Random random_;
  bool is_layered_;
  std::vector<std::uint64_t> slowness_;
};

// The step of HEFT: by upward rank, into the first gap of the processor that is done first.
std::int64_t naive_heft(const Instance& all) {
  const std::size_t count = all.times.size();
  std::vector<double> rank(count);
  for (std::size_t op = count; op-- > 0;) {
    double after = 0;
    for (std::size_t child = op + 1; child < count; ++child)
      if (std::ranges::count(all.parents[child], op) > 0)
        after = std::max(after, rank[child] + double(all.bytes[op]));
    for (const std::int64_t time : all.times[op]) rank[op] += double(time) / kKinds;
    rank[op] += after;
  }
  std::vector<std::size_t> order(count);
  for (std::size_t op = 0; op < count; ++op) order[op] = op;
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return rank[a] > rank[b]; });

  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> busy(kKinds);
  std::vector<std::int64_t> end(count);
  std::vector<std::size_t> where(count);
  for (const std::size_t op : order) {
    std::int64_t best = -1;
    for (std::size_t k = 0; k < kKinds; ++k) {
      std::int64_t start = 0;
      for (const std::size_t parent : all.parents[op])
        start = std::max(start, end[parent] + (where[parent] == k ? 0 : all.bytes[parent]));
      for (const auto& [from, to] : busy[k]) {
        if (to <= start) continue;
        if (start + all.times[op][k] <= from) break;
        start = std::max(start, to);
      }
      if (best >= 0 && start + all.times[op][k] >= best) continue;
      best = start + all.times[op][k];
      where[op] = k;
    }
    end[op] = best;
    busy[where[op]].emplace_back(best - all.times[op][where[op]], best);
    std::ranges::sort(busy[where[op]]);
  }
  return *std::ranges::max_element(end);
}

Cluster cluster_of(std::vector<Device> devices) {
  ClusterSpec spec;
  spec.devices = std::move(devices);
  LinkRule link;
  link.bandwidth = Bandwidth(1'000'000'000);
  spec.links.push_back(link);
  spec.communication = CommunicationMode::kParallel;
  return Cluster(std::move(spec));
}

TEST_CASE(
    "heft: the step of one written as its authors describe it, and auto is at least as fast") {
  std::vector<Device> devices;
  for (std::size_t k = 0; k < kKinds; ++k)
    devices.push_back({kind(k), kind(k), Bytes(1'000'000'000), "", kFullSpeed});
  const Cluster cluster = cluster_of(std::move(devices));
  for (std::uint64_t seed = 0; seed < testing::effort(20, 4); ++seed) {
    CAPTURE(seed);
    const Instance instance(seed);
    const OpGraph graph = instance.graph();
    const CostModel costs(graph, cluster);
    const auto placed = std::get<PlacedGraph>(place_heft(costs, {}));
    const std::int64_t expected = naive_heft(instance);
    CHECK(simulate(costs, placed).schedule.makespan == Time(expected));
    PlanRequest request;
    request.method = "auto";
    request.budget = 0.005;
    CHECK(std::get<Plan>(make_plan(costs, request)).makespan() <= Time(expected));
  }
}

}  // namespace
}  // namespace baechi
