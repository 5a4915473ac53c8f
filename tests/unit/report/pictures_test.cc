// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/io/graph_def/write_graph_def.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/report/export/exports.h"
#include "baechi/report/export/trace_events.h"
#include "baechi/report/facts/time_columns.h"
#include "baechi/report/text/terminal_view.h"
#include "unit/graphs.h"
#include "unit/simulate/random_placement.h"

namespace baechi {
namespace {

Plan placed(const OpGraph& graph, const Cluster& cluster, const Placement& placement) {
  return plan_of(CostModel(graph, cluster), {placement, std::nullopt}, "given", false);
}

TEST_CASE("time columns: every nanosecond of work is in one column, and no peak is lost") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const OpGraph graph = testing::random_dag(seed);
    const Cluster cluster = testing::random_cluster(seed);
    const CostModel costs(graph, cluster);
    const std::optional<Placement> placement = testing::random_placement(costs, random);
    if (!placement.has_value()) continue;
    const Plan plan = placed(graph, cluster, *placement);
    for (const std::size_t count : {1U, 7U, 1000U}) {
      const TimeColumns columns = time_columns(graph, plan, count);
      for (const DeviceId device : columns.devices.keys()) {
        Time busy;
        Bytes peak;
        for (std::size_t c = 0; c < count; ++c) {
          CHECK(columns.devices[device].computing[c] <= columns.width);
          busy += columns.devices[device].computing[c];
          peak = std::max(peak, columns.devices[device].memory[c]);
        }
        CHECK(busy == plan.devices[device].busy);
        CHECK(peak == plan.devices[device].peak);
      }
    }
  }
}

std::size_t columns_of(std::string_view line) {
  std::size_t count = 0;
  for (const char c : line) count += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
  return count;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

TEST_CASE("terminal view: it keeps to its width, and colours and Unicode are as asked") {
  const OpGraph graph = testing::fork_join(5, Time(1000), Bytes(100));
  const Cluster cluster = testing::unit_latency_cluster(3, Bytes(10'000));
  Placement placement(graph.num_ops(), DeviceId(0));
  placement[OpId(1)] = DeviceId(1);
  placement[OpId(2)] = DeviceId(2);
  const Plan plan = placed(graph, cluster, placement);
  for (const std::size_t width : {40U, 63U, 64U, 100U, 250U}) {
    CAPTURE(width);
    const std::vector<std::string> lines =
        lines_of(terminal_view(graph, plan, {.width = width, .color = false, .ascii = true}));
    for (std::size_t i = 2; i < lines.size(); ++i)  // behind headline and axis
      CHECK_MESSAGE(columns_of(lines[i]) <= width, lines[i]);
  }
  const std::string plain = terminal_view(graph, plan, {.width = 80});
  CHECK(plain.find('\033') == std::string::npos);
  CHECK(plain.find("█") != std::string::npos);
  CHECK(terminal_view(graph, plan, {.width = 80, .color = true}).find("\033[34m") !=
        std::string::npos);
  const std::string ascii = terminal_view(graph, plan, {.width = 80, .ascii = true});
  CHECK(columns_of(ascii) == ascii.size());
}

// Layer i holds weights in two operators, layers/i/a and layers/i/b.
OpGraph layered_model(std::size_t layers) {
  OpGraphBuilder builder("model");
  std::optional<OpId> before;
  for (std::size_t i = 0; i < 2 * layers; ++i) {
    const std::string name = "layers/" + std::to_string(i / 2) + (i % 2 == 0 ? "/a" : "/b");
    const OpId op =
        testing::timed(builder, {.name = name, .permanent = Bytes(10)}, Time(10), kAnyKind);
    if (before.has_value()) builder.add_control_edge(*before, op);
    before = op;
  }
  return std::move(builder).build();
}

std::string exported(std::string_view format, const OpGraph& graph,
                     const std::vector<int>& devices) {
  const Cluster cluster = testing::unit_latency_cluster(3, Bytes(10'000));
  Placement placement;
  for (const int device : devices) placement.push_back(DeviceId(device));
  const bool is_form = format == "split-spec";
  return find_export_format(is_form ? "torch-pipelining" : format, is_form ? format : "")
      .write(graph, placed(graph, cluster, placement));
}

TEST_CASE("exports: layers per device, for plans that cut between layers and for no others") {
  const OpGraph graph = layered_model(3);
  CHECK(exported("vllm", graph, {0, 0, 0, 0, 2, 2}) == "VLLM_PP_LAYER_PARTITION=2,1\n");
  CHECK(exported("llama-cpp", graph, {0, 0, 0, 0, 2, 2}) ==
        "--gpu-layers 4 --split-mode layer --tensor-split 2,0,2\n");
  CHECK_THROWS_WITH_AS(exported("vllm", graph, {0, 0, 0, 1, 2, 2}),
                       "model: the plan is not layer-wise: 'layers/1/a' is on gpu:0, 'layers/1/b' "
                       "of the same layer on gpu:1",
                       InputError);
  CHECK_THROWS_WITH_AS(exported("llama-cpp", graph, {0, 0, 2, 2, 1, 1}),
                       "model: the plan is not layer-wise in the order of devices: layer 2 is on "
                       "gpu:1, the one before it on gpu:2",
                       InputError);
  CHECK_THROWS_AS(exported("vllm", testing::figure_1(), {0, 0, 0, 0, 0, 0}), InputError);
}

TEST_CASE("exports: a device map is as short as the plan allows") {
  const OpGraph graph = layered_model(2);
  CHECK(exported("device-map", graph, {1, 1, 1, 1}) == "{\n \"\": 1\n}\n");
  CHECK(exported("device-map", graph, {0, 0, 1, 2}) ==
        "{\n \"layers.0\": 0,\n \"layers.1.a\": 1,\n \"layers.1.b\": 2\n}\n");
}

TEST_CASE("exports: devices of different kinds are numbered apart") {
  const OpGraph graph = layered_model(1);
  ClusterSpec spec = testing::unit_latency_cluster(3, Bytes(10'000)).spec();
  for (std::size_t i = 0; i < 3; ++i)
    spec.devices[i].kind = i == 0 ? "cpu" : i == 1 ? "a100" : "t4";
  Placement placement;
  placement.push_back(DeviceId(1));
  placement.push_back(DeviceId(2));
  const Plan plan = placed(graph, Cluster(spec), placement);
  CHECK(find_export_format("device-map").write(graph, plan) ==
        "{\n \"layers.0.a\": 0,\n \"layers.0.b\": 1\n}\n");
  const std::string devices = find_export_format("tensorflow").write(graph, plan);
  CHECK(devices.find("device:GPU:0") != std::string::npos);
  CHECK(devices.find("device:GPU:1") != std::string::npos);
}

TEST_CASE("exports: TensorFlow counts hosts as tasks, and devices by kind on each host") {
  const OpGraph graph = layered_model(3);
  ClusterSpec spec = testing::unit_latency_cluster(6, Bytes(10'000)).spec();
  const std::vector<const char*> kinds{"cpu", "a100", "t4", "tpu", "tpu", "t4"};
  for (std::size_t i = 0; i < 6; ++i) {
    spec.devices[i].kind = kinds[i];
    spec.devices[i].host = i == 2 || i == 4 ? "second" : "first";
  }
  Placement placement;
  for (const int device : {0, 1, 2, 3, 4, 5}) placement.push_back(DeviceId(device));
  const Plan plan = placed(graph, Cluster(spec), placement);
  const std::string devices = find_export_format("tensorflow").write(graph, plan);
  const std::vector<std::string> expected{
      "/job:worker/replica:0/task:0/device:CPU:0", "/job:worker/replica:0/task:0/device:GPU:0",
      "/job:worker/replica:0/task:1/device:GPU:0", "/job:worker/replica:0/task:0/device:TPU:0",
      "/job:worker/replica:0/task:1/device:TPU:0", "/job:worker/replica:0/task:0/device:GPU:1"};
  std::size_t i = 0;
  for (const std::string& device : tensorflow_devices(spec)) {
    CHECK(device == expected[i]);
    CHECK(devices.find("\"" + std::string(graph[OpId(i)].name) + "\": \"" + device + "\"") !=
          std::string::npos);
    ++i;
  }
  CHECK(i == 6);
}

// Operators of the given names, which hold weights.
OpGraph modules(const std::vector<std::string>& names) {
  OpGraphBuilder builder("model");
  for (const std::string& name : names)
    builder.set_time(builder.add_operator({.name = name, .permanent = Bytes(1)}), kAnyKind,
                     Time(4));
  return std::move(builder).build();
}

TEST_CASE("exports: names that a device map cannot tell apart are refused by name") {
  CHECK_THROWS_WITH_AS(
      exported("device-map", modules({"a.b", "c", "a/b"}), {0, 0, 1}),
      "model: operators 'a.b' and 'a/b' are one module, on two devices: gpu:0 and gpu:1",
      InputError);
  CHECK_THROWS_AS(exported("device-map", modules({"/a", "a"}), {0, 1}), InputError);
  CHECK(exported("device-map", modules({"a.b", "c", "a/b"}), {0, 1, 0}) ==
        "{\n \"a\": 0,\n \"c\": 1\n}\n");
}

TEST_CASE("exports: entries of a device map end where levels do") {
  CHECK(exported("device-map", modules({"a", "a/b", "a-x", "ab/c", "ab/d", "/e/f"}),
                 {0, 1, 2, 0, 0, 1}) ==
        "{\n \"a\": 0,\n \"a.b\": 1,\n \"a-x\": 2,\n \"ab\": 0,\n \"e\": 1\n}\n");
}

TEST_CASE("exports: a device map of very deep names takes no more than their length") {
  std::string deep = "m";
  for (int level = 0; level < 200'000; ++level) deep += "/m";
  std::string dotted = deep;
  std::ranges::replace(dotted, '/', '.');
  CHECK(exported("device-map", modules({deep, deep + "/a/b", deep + "/c"}), {0, 1, 2}) ==
        "{\n \"" + dotted + "\": 0,\n \"" + dotted + ".a\": 1,\n \"" + dotted + ".c\": 2\n}\n");
}

// An embedding, layers of two operators, a head; the head runs last.
OpGraph language_model(std::size_t layers) {
  OpGraphBuilder builder("lm");
  std::optional<TensorId> before;
  const auto add = [&](const std::string& name) {
    const OpId op =
        testing::timed(builder, {.name = name, .permanent = Bytes(10)}, Time(10), kAnyKind);
    if (before.has_value()) builder.connect(*before, op);
    before = builder.add_output(op, Bytes(2048));
  };
  add("embed");
  for (std::size_t i = 0; i < 2 * layers; ++i)
    add("model.layers." + std::to_string(i / 2) + (i % 2 == 0 ? ".a" : ".b"));
  add("head");
  return std::move(builder).build();
}

TEST_CASE("split spec: a pipeline is split before the first layer of each further stage") {
  const OpGraph graph = language_model(4);
  CHECK(exported("split-spec", graph, {0, 0, 0, 0, 0, 1, 1, 2, 2, 2}) ==
        "{\n \"model.layers.2\": \"beginning\",\n \"model.layers.3\": \"beginning\"\n}\n");
  // Devices without a layer are no stages.
  CHECK(exported("split-spec", graph, {0, 0, 0, 2, 2, 2, 2, 2, 2, 2}) ==
        "{\n \"model.layers.1\": \"beginning\"\n}\n");
  CHECK(exported("split-spec", graph, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}) == "{}\n");
  CHECK_THROWS_WITH_AS(exported("split-spec", graph, {0, 0, 0, 0, 0, 1, 1, 1, 1, 0}),
                       "lm: the plan is not a pipeline: 'head', which runs after the layers, is on "
                       "gpu:0, the last layer on gpu:1",
                       InputError);
  CHECK_THROWS_WITH_AS(exported("split-spec", graph, {1, 0, 0, 0, 0, 1, 1, 1, 1, 1}),
                       "lm: the plan is not a pipeline: 'embed', which runs before the layers, is "
                       "on gpu:1, the first layer on gpu:0",
                       InputError);
  CHECK_THROWS_AS(exported("split-spec", graph, {0, 0, 1, 0, 0, 1, 1, 1, 1, 1}), InputError);
}

TEST_CASE("plan svg: passes of every device, idle times with causes, text escaped") {
  const std::string whole = exported("svg", language_model(3), {0, 0, 0, 0, 0, 1, 1, 1});
  const auto count = [&](std::string_view what) {
    std::size_t found = 0;
    for (std::size_t at = whole.find(what); at != whole.npos; at = whole.find(what, at + 1))
      ++found;
    return found;
  };
  CHECK(count("<title>forward: ") == 2);
  CHECK(count("class=\"d\"") == 3);  // lanes
  CHECK(count("<title>idle, ") == 3);
  CHECK(count(" micro-batch") == 0);

  OpGraphBuilder builder("a<b>&\"c\"");
  builder.set_time(builder.add_operator({.name = "x"}), kAnyKind, Time(1));
  const std::string escaped = exported("svg", std::move(builder).build(), {0});
  CHECK(escaped.find("a&lt;b&gt;&amp;") != std::string::npos);
  CHECK(escaped.find("a<b") == std::string::npos);
}

TEST_CASE("exports: names with commas, quotes and line ends keep their cell") {
  OpGraphBuilder builder("g");
  builder.set_time(builder.add_operator({.name = "a,\"b\"\nc"}), kAnyKind, Time(4));
  const OpGraph graph = std::move(builder).build();
  CHECK(exported("csv", graph, {2}).ends_with("\r\n\"a,\"\"b\"\"\nc\",,gpu:2,0,4,0,0,0\r\n"));
  CHECK(
      exported("tensorflow", graph, {2}).find("\"/job:localhost/replica:0/task:0/device:GPU:2\"") !=
      std::string::npos);
}

}  // namespace
}  // namespace baechi
