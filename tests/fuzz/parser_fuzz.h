// SPDX-License-Identifier: Apache-2.0
// What every parser promises, as fuzz bodies: any bytes give a value or an InputError of one short
// line, and a value survives being written and read again. libFuzzer runs them (NAME_main.cc), the
// unit tests replay tests/fuzz/corpus/NAME through them.
#pragma once

#include <array>
#include <stdexcept>
#include <string>
#include <string_view>

#include "baechi/base/error.h"
#include "baechi/base/short_text.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/io/cluster/read_cluster.h"
#include "baechi/io/cluster/write_cluster.h"
#include "baechi/io/graph/dnn_partitioning.h"
#include "baechi/io/graph/read_graph.h"
#include "baechi/io/graph/write_graph.h"
#include "baechi/io/onnx/onnx.h"
#include "baechi/io/onnx/write_onnx.h"
#include "baechi/io/plan/placement_file.h"
#include "baechi/io/plan/plan_file.h"
#include "baechi/io/profile/onnx_runtime_profile.h"
#include "baechi/io/profile/profile_file.h"
#include "baechi/io/text/quantity_text.h"

namespace baechi::fuzz {

inline void require(bool condition, const char* promise) {
  if (!condition) throw std::logic_error(promise);
}

template <class Parse>
void refuse_in_one_line(const Parse& parse) {
  try {
    parse();
  } catch (const InputError& error) {
    const std::string_view words = error.what();
    require(!words.empty() && words.size() < 2000, "an error is short");
    for (const char c : words)
      require(static_cast<unsigned char>(c) >= 0x20 && c != 0x7F, "an error is one line of text");
  }
}

inline void graph_round_trip(const OpGraph& graph) {
  const std::string text = graph_to_json(graph);
  require(graph_to_json(parse_graph(text, "again")) == text, "a graph survives its file");
}

// graph.json, or whatever the bytes look like.
inline void graph_json(std::string_view input) {
  refuse_in_one_line([&] { graph_round_trip(parse_graph(input, "input")); });
}

inline void dnn_partitioning(std::string_view input) {
  refuse_in_one_line([&] {
    const DnnPartitioning instance = parse_dnn_partitioning(input, "input");
    cluster_of(instance, "input");
    graph_round_trip(graph_of(instance, "input"));
  });
}

inline void cluster_round_trip(const ClusterSpec& spec) {
  const std::string text = cluster_to_json(spec);
  require(parse_cluster(text, "again") == spec, "a cluster survives its file");
}

inline void cluster_json(std::string_view input) {
  refuse_in_one_line([&] { cluster_round_trip(parse_cluster(input, "input")); });
}

inline void cluster_line(std::string_view input) {
  refuse_in_one_line([&] { cluster_round_trip(parse_cluster_line(input)); });
  refuse_in_one_line([&] { parse_link(input); });
  refuse_in_one_line([&] { parse_communication(input); });
}

inline void plan_json(std::string_view input) {
  static const OpGraph graph = [] {  // "a" feeds "b", from its second output too
    OpGraphBuilder builder("g");
    for (const char* name : {"a", "b"})
      builder.set_time(builder.add_operator({.name = name}), kAnyKind, Time(1));
    builder.connect(builder.add_output(OpId(0), Bytes(4)), OpId(1));
    builder.connect(builder.add_output(OpId(0), Bytes(8)), OpId(1));
    return std::move(builder).build();
  }();
  refuse_in_one_line([&] { check_plan_text(input, "input"); });
  refuse_in_one_line([&] {
    const Plan plan = parse_plan(input, "input", graph);
    const std::string text = plan_to_json(plan, graph);
    require(parse_plan(text, "again", graph) == plan, "a plan survives its file");
  });
  // x -> f -> b, b of the backward pass: f may run a second time.
  const auto training = [] {
    OpGraphBuilder builder("t");
    for (const char* name : {"x", "f", "b"})
      builder.set_time(builder.add_operator({.name = name}), kAnyKind, Time(1));
    builder.set_backward(OpId(2));
    builder.connect(builder.add_output(OpId(0), Bytes(4)), OpId(1));
    builder.connect(builder.add_output(OpId(1), Bytes(8)), OpId(2));
    return std::move(builder).build();
  };
  refuse_in_one_line([&] {
    const StepFile file = parse_step_plan(input, "input", training());
    const std::string text = plan_to_json(file.plan, file.step);
    require(parse_step_plan(text, "again", training()).plan == file.plan || file.placed.has_value(),
            "a plan with second runs survives its file");
  });
}

inline void placement_json(std::string_view input) {
  static const OpGraph graph = [] {
    OpGraphBuilder builder("g");
    for (const char* name : {"a", "b"})
      builder.set_time(builder.add_operator({.name = name}), kAnyKind, Time(1));
    return std::move(builder).build();
  }();
  static const Cluster cluster(parse_cluster_line("2x1GiB"));
  refuse_in_one_line([&] { check_placement_text(input, "input"); });
  refuse_in_one_line([&] { parse_placement(input, "input", graph, cluster); });
}

inline void quantity(std::string_view input) {
  refuse_in_one_line([&] {
    const Time time = parse_time(input);
    require(parse_time(exact_text(time)) == time, "a time survives its text");
    require(!short_text(time).empty(), "a time has a short text");
  });
  refuse_in_one_line([&] {
    const Bytes bytes = parse_bytes(input);
    require(parse_bytes(exact_text(bytes)) == bytes, "an amount of memory survives its text");
    require(!short_text(bytes).empty(), "an amount of memory has a short text");
  });
  refuse_in_one_line([&] {
    const Bandwidth bandwidth = parse_bandwidth(input);
    require(parse_bandwidth(exact_text(bandwidth)) == bandwidth, "a bandwidth survives its text");
  });
  refuse_in_one_line([&] {
    const Speed speed = parse_speed(input);
    require(parse_speed(exact_text(speed)) == speed, "a speed survives its text");
  });
}

inline void graph_def(std::string_view input) {
  const ReadOptions options{.costs = {.kinds = parse_costed_kinds("gpu=rtx2080"), .batch = 2},
                            .cancel = nullptr};
  refuse_in_one_line([&] { graph_round_trip(parse_graph(input, "input", options)); });
}

inline void profile_json(std::string_view input) {
  static const OpGraph graph = [] {  // "a" has two outputs, "b" one
    OpGraphBuilder builder("g");
    for (const char* name : {"a", "b"})
      builder.set_time(builder.add_operator({.name = name}), "gpu", Time(1));
    builder.connect(builder.add_output(OpId(0), Bytes(4)), OpId(1));
    builder.add_output(OpId(0), Bytes(8));
    builder.add_output(OpId(1), Bytes(8));
    return std::move(builder).build();
  }();
  refuse_in_one_line([&] {
    const Profile profile = parse_profile(input, "input");
    require(parse_profile(profile_to_json(profile), "again") == profile,
            "a profile survives its file");
    const ModelCosts costs{.profiles = {{"input", profile}}};
    const OpGraph measured = parse_graph(graph_to_json(graph), "graph", {.costs = costs});
    graph_round_trip(measured);
    for (const std::string& note : profile_notes(measured, costs))
      refuse_in_one_line([&] { throw InputError(note); });
  });
}

inline void onnx(std::string_view input) {
  ReadOptions options{
      .costs = {.kinds = parse_costed_kinds("gpu=rtx2080"), .batch = 2, .dimensions = {}},
      .cancel = nullptr};
  // A name that the model does not have is refused.
  if (input.find("\x12\x01s") != input.npos) options.costs.dimensions.emplace("s", 3);
  refuse_in_one_line([&] {
    const OpGraph graph = parse_onnx(input, "input", {}, options.costs);
    graph_round_trip(graph);
    Plan plan;  // all on one device
    plan.cluster = parse_cluster_line("1x1GiB");
    plan.schedule.slots.assign(graph.num_ops(), {});
    const std::string placed = placed_onnx(input, "input", graph, plan);
    require(graph_to_json(parse_onnx(placed, "again", {}, options.costs)) == graph_to_json(graph),
            "devices change nothing else");
  });
}

inline void onnx_runtime_profile(std::string_view input) {
  refuse_in_one_line([&] {
    const Profile profile = parse_onnx_runtime_profile(input, "input");
    require(parse_profile(profile_to_json(profile), "again") == profile,
            "a profile survives its file");
  });
}

struct Body {
  std::string_view name;  // of the libFuzzer target and of the corpus folder
  void (*run)(std::string_view input);
};
inline constexpr std::array<Body, 11> kParserBodies{{{"graph_json", graph_json},
                                                     {"dnn_partitioning", dnn_partitioning},
                                                     {"cluster_json", cluster_json},
                                                     {"cluster_line", cluster_line},
                                                     {"plan_json", plan_json},
                                                     {"placement_json", placement_json},
                                                     {"profile_json", profile_json},
                                                     {"graph_def", graph_def},
                                                     {"onnx", onnx},
                                                     {"onnx_runtime_profile", onnx_runtime_profile},
                                                     {"quantity", quantity}}};

}  // namespace baechi::fuzz
