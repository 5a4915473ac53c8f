// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/profile/onnx_runtime_profile.h"

#include <doctest/doctest.h>

#include <string>

#include "baechi/io/graph/read_graph.h"
#include "baechi/io/profile/profile_file.h"
#include "baechi/io/text/text_file.h"
#include "unit/test_paths.h"

namespace baechi {
namespace {

std::string node(const std::string& name, int duration,
                 const std::string& provider = "CPUExecutionProvider") {
  return R"({"cat": "Node", "pid": 1, "dur": )" + std::to_string(duration) +
         R"(, "ts": 5, "ph": "X", "name": ")" + name +
         R"(_kernel_time", "args": {"op_name": "Conv", "provider": ")" + provider + R"("}},)";
}
const std::string kRun = R"({"cat": "Session", "dur": 9, "name": "model_run", "args": {}},)";

std::string times(const std::string& events) {
  const std::string text = "[" + events + R"({"cat": "Session", "name": "end", "args": {}}])";
  std::string all;
  for (const OperatorProfile& op : parse_profile(text, "p.json").operators)
    for (const KindTime& time : op.times)
      all += op.name + " " + time.kind + " " + std::to_string(time.time.count()) + "\n";
  return all;
}

TEST_CASE("onnx runtime profile: medians of the runs behind the first one") {
  CHECK(times(node("a", 900) + kRun + node("a", 3) + kRun + node("a", 9) + kRun + node("a", 5) +
              kRun) == "a cpu 5000\n");
  CHECK(times(node("a", 900) + kRun + node("a", 3) + kRun + node("a", 9) + kRun) == "a cpu 3000\n");
  CHECK(times(node("a", 7) + node("b", 2) + kRun) == "a cpu 7000\nb cpu 2000\n");
  // In a loop a node runs several times in a run.
  CHECK(times(kRun + node("a", 2) + node("a", 3) + kRun) == "a cpu 5000\n");
  CHECK(times(node("a", 1, "CUDAExecutionProvider") + node("b", 2, "QNNExecutionProvider")) ==
        "a gpu 1000\nb npu 2000\n");
  CHECK(times(node("a", 1, "XnnpackExecutionProvider")) == "a cpu 1000\n");
  // What only the first run had is better than nothing.
  CHECK(times(node("a", 7) + kRun + node("b", 2) + kRun) == "a cpu 7000\nb cpu 2000\n");
}

TEST_CASE("onnx runtime profile: it measures the model that it is of") {
  const std::string folder = BAECHI_TEST_DATA_DIR "/onnx/";
  ReadOptions options;
  add_model_costs(folder + "cnn_profile.json", options.costs);
  options.costs.batch = 5;
  const OpGraph graph = read_graph(folder + "cnn.onnx", options);
  const std::optional<OpId> convolution = graph.find("/c1/Conv");
  REQUIRE(convolution.has_value());
  CHECK(graph.times(*graph.find_kind("cpu"))[*convolution] == microseconds(16));
  CHECK(graph.output_bytes(*convolution) == Bytes(5 * 8 * 8 * 8 * 4));
}

TEST_CASE("onnx runtime profile: other files are refused by place and reason") {
  CHECK_THROWS_WITH_AS(parse_profile("[]", "p.json"),
                       "p.json: no node was measured: is this a profile of ONNX Runtime, of a "
                       "model whose nodes have names?",
                       InputError);
  CHECK_THROWS_WITH_AS(parse_profile("[{\"cat\": 3}]", "p.json"),
                       "p.json:1:10: $[0].cat: expected a string, found a number", InputError);
  CHECK_THROWS_WITH_AS(parse_profile("[{\"dur\": -3}]", "p.json"),
                       "p.json:1:10: $[0].dur: expected microseconds from 0 to 10^12", InputError);
  CHECK_THROWS_AS(parse_profile("[{\"cat\": \"Node\"}", "p.json"), InputError);
}

}  // namespace
}  // namespace baechi
