// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/onnx/write_onnx.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>

#include "baechi/io/cluster/read_cluster.h"
#include "baechi/io/graph/write_graph.h"
#include "baechi/plan/planner.h"
#include "unit/io/onnx_text.h"

namespace baechi {
namespace {

using namespace onnx_text;

Plan plan_for(const OpGraph& graph) {
  const Cluster cluster(parse_cluster_line("2xgpu:1GiB+1xcpu:1GiB"));
  const CostModel model(graph, cluster);
  PlanRequest request;
  request.method = "balanced";
  const PlanResult result = make_plan(model, request);
  REQUIRE(std::holds_alternative<Plan>(result));
  return std::get<Plan>(result);
}

std::size_t count(std::string_view text, std::string_view what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++found;
  return found;
}

TEST_CASE("write_onnx: devices are added, and replace those of an earlier plan") {
  const std::string bytes = model(small_graph(), 11);
  const OpGraph graph = read(bytes, costs(2));
  Plan plan = plan_for(graph);
  plan.schedule.slots[find(graph, "mm")].device = DeviceId(1);
  plan.schedule.slots[find(graph, "relu")].device = DeviceId(2);
  const std::string once = placed_onnx(bytes, "m.onnx", graph, plan);
  CHECK(count(once, "layer_ann") == 2);
  CHECK(count(once, field(2, "gpu:1")) == 2);  // as ONNX Runtime names it, and as the cluster
  CHECK(count(once, field(2, "cpu")) == 1);
  CHECK(count(once, field(1, "y") + field(2, std::string(1, '\1'))) == 1);  // y is on device 1
  CHECK(placed_onnx(once, "m.onnx", graph, plan) == once);
  CHECK(graph_to_json(read(once, costs(2))) == graph_to_json(graph));
  CHECK(onnx_runtime_layer_assignment(plan) ==
        (plan.schedule.slots[find(graph, "x")].device == DeviceId(0)
             ? "gpu:0(=gpu:0);gpu:1(=gpu:1);cpu(=cpu)"
             : "gpu:1(=gpu:1);cpu(=cpu)"));
  // Before version 11 of the format there is no such annotation.
  const std::string old = placed_onnx(model(small_graph(), 10), "m.onnx", graph, plan);
  CHECK(count(old, "layer_ann") == 2);
  CHECK(count(old, field(1, "baechi")) == 0);
}

TEST_CASE("write_onnx: another graph's model is refused") {
  const OpGraph graph = read(model(small_graph()), costs(2));
  const Plan plan = plan_for(graph);
  const std::string other = model(node("other", "Relu", {"x"}, {"y"}) + input("x", {4}));
  CHECK_THROWS_WITH_AS(placed_onnx(other, "o.onnx", graph, plan),
                       "o.onnx: node 'other' is not in the planned graph", InputError);
  CHECK_THROWS_WITH_AS(placed_onnx("{}", "o.onnx", graph, plan),
                       "o.onnx: only an ONNX model can be written as one: give the .onnx file",
                       InputError);
}

}  // namespace
}  // namespace baechi
