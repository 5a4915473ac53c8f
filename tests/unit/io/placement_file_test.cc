// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/plan/placement_file.h"

#include <doctest/doctest.h>

#include <string>

#include "baechi/base/error.h"
#include "baechi/cost/cost_model.h"
#include "baechi/io/plan/plan_file.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

std::string with(const std::string& device_of) {
  return R"({"format": "baechi-placement", "version": 1, "device_of": {)" + device_of + "}}";
}

TEST_CASE("placement file: devices by operator name, or a plan") {
  const OpGraph graph = testing::chain({Time(1), Time(2)}, Bytes(3));
  const Cluster cluster = testing::unit_latency_cluster(2, Bytes(100));
  const Placement placement =
      parse_placement(with(R"("b": "gpu:1", "a": "gpu:0")"), "expert.json", graph, cluster);
  CHECK(placement == Placement{DeviceId(0), DeviceId(1)});

  const CostModel costs(graph, cluster);
  const Plan plan = plan_of(costs, {placement, std::nullopt}, "expert", false);
  CHECK(parse_placement(plan_to_json(plan, graph), "plan.json", graph, cluster) == placement);
}

TEST_CASE("placement file: what is missing, unknown or twice is named") {
  const OpGraph graph = testing::chain({Time(1), Time(2)}, Bytes(3));
  const Cluster cluster = testing::unit_latency_cluster(2, Bytes(100));
  const auto error = [&](const std::string& text) -> std::string {
    try {
      parse_placement(text, "expert.json", graph, cluster);
    } catch (const InputError& caught) {
      return caught.what();
    }
    return "no error";
  };
  CHECK(error(with(R"("a": "gpu:0")")) == "expert.json: operator 'b' is not placed");
  CHECK(error(with(R"("a": "gpu:0", "b": "tpu")")).find("the cluster has no device 'tpu'") !=
        std::string::npos);
  CHECK(error(with(R"("a": "gpu:0", "c": "gpu:0")")).find("the graph has no operator 'c'") !=
        std::string::npos);
  CHECK(error(with(R"("a": "gpu:0", "a": "gpu:1")")).find("twice") != std::string::npos);
  CHECK(error(R"({"format": "baechi-placement", "version": 2, "device_of": {}})").find("version") !=
        std::string::npos);
  CHECK(error(R"({"format": "baechi-placement", "version": 1})").find("device_of") !=
        std::string::npos);
  CHECK(error("[]") != "no error");
}

}  // namespace
}  // namespace baechi
