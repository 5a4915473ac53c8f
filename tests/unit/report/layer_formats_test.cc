// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/report/export/exports.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

struct Weight {
  std::string name;
  int device = 0;
  Bytes held{10};
  bool backward = false;
};

OpGraph chain_of(const std::vector<Weight>& weights) {
  OpGraphBuilder builder("lm");
  std::optional<TensorId> before;
  for (const Weight& weight : weights) {
    const OpId op = testing::timed(
        builder, {.name = weight.name, .permanent = weight.held, .backward = weight.backward},
        Time(10), kAnyKind);
    if (before.has_value()) builder.connect(*before, op);
    before = builder.add_output(op, Bytes(8));
  }
  return std::move(builder).build();
}

// The weights run one after the other; `kinds` are the devices'.
// Of torch.distributed.pipelining by its form.
const ExportFormat& format_or_form(std::string_view name) {
  const bool is_form = name == "split-spec" || name == "module-fqns";
  return is_form ? find_export_format("torch-pipelining", name) : find_export_format(name);
}

std::string exported_of(const OpGraph& graph, std::string_view format,
                        const std::vector<Weight>& weights, const std::vector<std::string>& kinds,
                        const std::vector<std::string>& hosts = {}) {
  ClusterSpec spec = testing::unit_latency_cluster(kinds.size(), Bytes(1'000'000'000'000)).spec();
  for (std::size_t i = 0; i < kinds.size(); ++i) spec.devices[i].kind = kinds[i];
  for (std::size_t i = 0; i < hosts.size(); ++i) spec.devices[i].host = hosts[i];
  const Cluster cluster(spec);
  Placement placement;
  for (const Weight& weight : weights) placement.push_back(DeviceId(weight.device));
  const Plan plan = plan_of(CostModel(graph, cluster), {placement, std::nullopt}, "given", false);
  return format_or_form(format).write(graph, plan);
}

std::string exported(std::string_view format, const std::vector<Weight>& weights,
                     const std::vector<std::string>& kinds = {"gpu", "gpu", "gpu"}) {
  return exported_of(chain_of(weights), format, weights, kinds);
}

// As transformers names them.
std::vector<Weight> llama(const std::vector<int>& layers, int embedding, int head) {
  std::vector<Weight> weights{{"model/embed_tokens", embedding}};
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string layer = "model/layers/" + std::to_string(i);
    for (const char* part : {"/input_layernorm", "/self_attn/q_proj", "/mlp/up_proj"})
      weights.push_back({layer + part, layers[i]});
  }
  weights.push_back({"model/norm", head});
  weights.push_back({"lm_head", head});
  return weights;
}

TEST_CASE("module fqns: a list per stage, of layers and of what is beside them") {
  CHECK(exported("module-fqns", llama({0, 0, 1, 2}, 0, 2)) ==
        "[\n [\"model.embed_tokens\", \"model.layers.0\", \"model.layers.1\"],\n"
        " [\"model.layers.2\"],\n"
        " [\"model.layers.3\", \"model.norm\", \"lm_head\"]\n]\n");
  // Ends may have stages of their own; devices that hold nothing are none.
  CHECK(exported("module-fqns", llama({1, 1}, 0, 2)) ==
        "[\n [\"model.embed_tokens\"],\n [\"model.layers.0\", \"model.layers.1\"],\n"
        " [\"model.norm\", \"lm_head\"]\n]\n");
  CHECK(exported("module-fqns", llama({0, 2}, 0, 2)) ==
        "[\n [\"model.embed_tokens\", \"model.layers.0\"],\n"
        " [\"model.layers.1\", \"model.norm\", \"lm_head\"]\n]\n");
  // Operators of one module are one name.
  CHECK(
      exported("module-fqns", {{"layers.0", 0}, {"head.a.x", 0}, {"head.a.y", 0}, {"head.b", 0}}) ==
      "[\n [\"layers.0\", \"head\"]\n]\n");
}

TEST_CASE("module fqns: what is no chain of stages is refused with what is in its way") {
  CHECK_THROWS_WITH_AS(exported("module-fqns", llama({0, 1}, 1, 1)),
                       "lm: the plan is not a chain in the order of devices: 'model/embed_tokens', "
                       "which runs before the layers, is on gpu:1, the first layer on gpu:0",
                       InputError);
  CHECK_THROWS_WITH_AS(exported("module-fqns", llama({0, 1}, 0, 0)),
                       "lm: the plan is not a chain in the order of devices: 'model/norm', which "
                       "runs after the layers, is on gpu:0, the last layer on gpu:1",
                       InputError);
  CHECK_THROWS_WITH_AS(
      exported("module-fqns", {{"layers.0", 0}, {"head.a", 0}, {"head.b", 1}}),
      "lm: operators 'head.a' and 'head.b' are parts of one module, head, on two devices: gpu:0 "
      "and gpu:1",
      InputError);
  CHECK_THROWS_WITH_AS(exported("module-fqns", {{"model", 0}, {"model/layers/0", 0}}),
                       "lm: operator 'model' holds permanent memory beside the layers that are "
                       "part of it: it is no module that a stage could have",
                       InputError);
  CHECK_THROWS_AS(exported("module-fqns", llama({1, 0}, 1, 0)), InputError);
}

TEST_CASE("exports: a call that reads weights of the model itself is no module") {
  const char* words =
      "lm: operator 'add@0' is a call that reads weights of the module around it, and no module "
      "that could be named: give these weights a module of their own, and plan again";
  const std::vector<Weight> weights{
      {"embed", 0}, {"add@0", 0}, {"layers.0", 0}, {"layers.1.a", 1}, {"layers.1/mul@0", 1}};
  CHECK_THROWS_WITH_AS(exported("module-fqns", weights), words, InputError);
  CHECK_THROWS_WITH_AS(exported("device-map", weights), words, InputError);
  // Where all around it is on its device, no entry has its name.
  CHECK(exported("device-map", {{"layers.0", 0}, {"layers.1.a", 1}, {"layers.1/mul@0", 1}}) ==
        "{\n \"layers.0\": 0,\n \"layers.1\": 1\n}\n");
  CHECK(exported("module-fqns", {{"layers.0", 0}, {"layers.1.a", 1}, {"layers.1/mul@0", 1}}) ==
        "[\n [\"layers.0\"],\n [\"layers.1\"]\n]\n");
}

TEST_CASE("megatron: embedding, layers and loss by stage") {
  const auto layout = [](const std::vector<Weight>& weights) {
    return exported("megatron", weights);
  };
  CHECK(layout(llama({0, 0, 0, 1, 2, 2}, 0, 2)) ==
        "--pipeline-model-parallel-size 3 --pipeline-model-parallel-layout \"Et*3|t|t*2L\"\n");
  CHECK(layout(llama({1, 1}, 0, 2)) ==
        "--pipeline-model-parallel-size 3 --pipeline-model-parallel-layout \"E|t*2|L\"\n");
  CHECK(layout(llama({1}, 1, 1)) ==
        "--pipeline-model-parallel-size 1 --pipeline-model-parallel-layout \"EtL\"\n");
  CHECK_THROWS_WITH_AS(
      layout({{"wte", 0}, {"wpe", 1}, {"h/0/mlp", 1}, {"head", 1}}),
      "lm: Megatron has what runs before the layers in one stage, and the plan has 'wte' on gpu:0 "
      "and 'wpe' on gpu:1: pin them to one device, and place again",
      InputError);
  CHECK_THROWS_AS(layout({{"wte", 0}, {"h/0/mlp", 0}, {"norm", 0}, {"head", 1}}), InputError);
}

TEST_CASE("megatron: layers of two kinds are no embedding and no loss") {
  CHECK_THROWS_WITH_AS(
      exported("megatron",
               {{"encoder/layers/0", 0}, {"decoder/layers/0", 0, Bytes(20)}, {"head", 0}}),
      "lm: this layout of Megatron has one kind of numbered layers, 'decoder/layers/0' is in one, "
      "and 'encoder/layers/0' in another: write the layout by hand",
      InputError);
  std::vector<Weight> mtp = llama({0, 1}, 0, 1);
  mtp.insert(mtp.end() - 2, {"model/mtp/0/norm", 1});
  CHECK_THROWS_AS(exported("megatron", mtp), InputError);
}

TEST_CASE("exports: the placement of a step of micro-batches is that of one") {
  const std::vector<Weight> weights = llama({0, 1}, 0, 1);
  const OpGraph graph = chain_of(weights);
  const Unrolled step = unroll(graph, 3);
  const Cluster cluster = testing::unit_latency_cluster(2, Bytes(1'000'000));
  Placement placement(step.graph.num_ops(), DeviceId(0));
  for (const OpId op : graph.ops())
    for (std::uint32_t m = 0; m < 3; ++m)
      placement[step.copy(op, m)] = DeviceId(weights[op.index()].device);
  const Plan plan =
      plan_of(CostModel(step.graph, cluster), {placement, std::nullopt}, "given", false);
  const auto written = [&](std::string_view format) {
    return write_export(format_or_form(format), step, graph, plan);
  };
  for (const char* format : {"device-map", "tensorflow", "split-spec", "module-fqns", "megatron",
                             "vllm", "llama-cpp", "llama-cpp-tensors", "comfyui"}) {
    CAPTURE(format);
    CHECK(written(format) == exported(format, weights, {"gpu", "gpu"}));
  }
  CHECK(written("csv").find("lm_head@2") != std::string::npos);
}

TEST_CASE("ends: what a layer depends on is before the layers, everything else behind them") {
  // The head's weights wait for nothing, and the planner may run them first.
  const std::vector<Weight> weights{
      {"head/weight", 1}, {"embed", 0}, {"layers/0", 0}, {"layers/1", 1}, {"head", 1}};
  OpGraphBuilder builder("lm");
  std::vector<TensorId> made;
  for (const Weight& weight : weights) {
    const OpId op = testing::timed(builder, {.name = weight.name, .permanent = weight.held},
                                   Time(10), kAnyKind);
    if (made.size() > 1) builder.connect(made.back(), op);
    if (weight.name == "head") builder.connect(made.front(), op);
    made.push_back(builder.add_output(op, Bytes(8)));
  }
  const OpGraph graph = std::move(builder).build();
  CHECK(exported_of(graph, "module-fqns", weights, {"gpu", "gpu"}) ==
        "[\n [\"embed\", \"layers.0\"],\n [\"layers.1\", \"head\"]\n]\n");
  CHECK(exported_of(graph, "split-spec", weights, {"gpu", "gpu"}) ==
        "{\n \"layers.1\": \"beginning\"\n}\n");
}

struct LlamaCpp {
  std::size_t gpu_layers = 0;
  std::vector<std::size_t> split;
};

LlamaCpp llama_cpp(const std::string& text) {
  LlamaCpp read;
  const std::string counts = "--gpu-layers ", split = "--tensor-split ";
  read.gpu_layers = std::stoul(text.substr(text.find(counts) + counts.size()));
  if (text.find(split) == text.npos) return read;
  std::istringstream numbers(text.substr(text.find(split) + split.size()));
  for (std::string number; std::getline(numbers, number, ',');)
    read.split.push_back(std::stoul(number));
  return read;
}

// The device of every layer and, last, of the output, as llama.cpp counts: -1 is the CPU.
std::vector<int> llama_cpp_places(const LlamaCpp& options, std::size_t layers) {
  std::vector<float> ends;
  float sum = 0;
  for (const std::size_t part : options.split) ends.push_back(sum += static_cast<float>(part));
  for (float& end : ends) end /= sum;
  const std::size_t first = layers + 1 - std::min(options.gpu_layers, layers + 1);
  const auto offloaded = static_cast<float>(std::min(options.gpu_layers, layers + 1));
  std::vector<int> places;
  for (std::size_t layer = 0; layer <= layers; ++layer) {
    if (layer < first) {
      places.push_back(-1);
      continue;
    }
    const float at = static_cast<float>(layer - first) / offloaded;
    places.push_back(static_cast<int>(std::ranges::upper_bound(ends, at) - ends.begin()));
  }
  return places;
}

TEST_CASE("llama.cpp: every layer and the output are where the plan has them") {
  Random random(1);
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    std::vector<std::string> kinds{"cpu"};
    std::vector<int> places, expected;
    for (std::size_t device = 0; device <= 4; ++device) {
      if (device > 0) kinds.emplace_back("gpu");
      const std::size_t some = random.below(7);
      places.insert(places.end(), some, static_cast<int>(device));
      expected.insert(expected.end(), some, static_cast<int>(device) - 1);
    }
    if (places.empty()) continue;
    expected.push_back(expected.back());
    const std::string text = exported("llama-cpp", llama(places, 0, places.back()), kinds);
    CHECK(llama_cpp_places(llama_cpp(text), places.size()) == expected);
  }
}

TEST_CASE("llama.cpp: what its options do not say is refused") {
  CHECK(exported("llama-cpp", llama({0, 0, 1, 1}, 0, 1)) ==
        "--gpu-layers 5 --split-mode layer --tensor-split 2,3,0\n");
  CHECK(exported("llama-cpp", llama({0, 0, 2, 2}, 0, 2), {"cpu", "gpu", "gpu"}) ==
        "--gpu-layers 3 --split-mode layer --tensor-split 0,3\n");
  CHECK(exported("llama-cpp", llama({0}, 0, 0), {"cpu", "gpu"}) == "--gpu-layers 0\n");
  CHECK_THROWS_WITH_AS(exported("llama-cpp", llama({0, 1}, 0, 1), {"gpu", "cpu"}),
                       "lm: llama.cpp keeps the first layers on the CPU, and the plan has layers "
                       "on gpu:1 behind those on gpu:0: name the CPU first in the cluster, and "
                       "place again",
                       InputError);
  CHECK_THROWS_WITH_AS(exported("llama-cpp", llama({0, 1}, 0, 0)),
                       "lm: llama.cpp has the output with the last layer: 'model/norm', which runs "
                       "after the layers, is on gpu:0, the last layer on gpu:1",
                       InputError);
  CHECK_THROWS_WITH_AS(exported("llama-cpp", llama({0}, 0, 0), {"tpu"}),
                       "lm: llama.cpp has no TPUs, and gpu:0 is one", InputError);
}

TEST_CASE("programs of one host number no devices of two") {
  const std::vector<Weight> weights = llama({0, 0, 1}, 0, 1);
  for (const char* format : {"llama-cpp", "llama-cpp-tensors", "comfyui"}) {
    CAPTURE(format);
    const OpGraph graph = chain_of(weights);
    CHECK_NOTHROW(exported_of(graph, format, weights, {"gpu", "gpu"}, {"a", "a"}));
    const std::string program =
        std::string_view(format) == "comfyui" ? "ComfyUI-MultiGPU" : "llama.cpp";
    const std::string words = "lm: " + program +
                              " numbers the devices of one host, and gpu:0 and gpu:1 are on two: "
                              "plan for a cluster of one host";
    CHECK_THROWS_WITH_AS(exported_of(graph, format, weights, {"gpu", "gpu"}, {"a", "b"}),
                         words.c_str(), InputError);
  }
}

TEST_CASE("vllm: ends are with the outermost layers, and no rank is a CPU") {
  CHECK(exported("vllm", llama({0, 0, 1}, 0, 1)) == "VLLM_PP_LAYER_PARTITION=2,1\n");
  CHECK_THROWS_WITH_AS(exported("vllm", llama({1, 1, 2}, 0, 2)),
                       "lm: the plan is not a pipeline: 'model/embed_tokens', which runs before "
                       "the layers, is on gpu:0, the first layer on gpu:1",
                       InputError);
  CHECK_THROWS_AS(exported("vllm", llama({0, 1, 2}, 0, 0)), InputError);
  CHECK_THROWS_WITH_AS(exported("vllm", llama({0, 1}, 0, 1), {"cpu", "gpu"}),
                       "lm: a rank of vLLM's pipeline is an accelerator, and the plan has layers "
                       "on gpu:0: plan for a cluster without CPUs",
                       InputError);
}

TEST_CASE("llama.cpp tensors: layers anywhere, and their tensors apart where they are named") {
  const std::vector<std::string> kinds{"gpu", "gpu", "cpu"};
  const auto overrides = [&](const std::vector<Weight>& weights) {
    return exported("llama-cpp-tensors", weights, kinds);
  };
  CHECK(overrides(llama({0, 1, 0, 2}, 2, 1)) ==
        "--override-tensor \"^output\\.=CUDA1,^output_norm\\.=CUDA1,^token_embd\\.=CPU,"
        "^blk\\.(0|2)\\.=CUDA0,^blk\\.1\\.=CUDA1,^blk\\.3\\.=CPU\"\n");
  std::vector<Weight> split = llama({0, 0, 1}, 0, 1);
  for (Weight& weight : split)
    if (weight.name.ends_with("up_proj")) weight.device = 2;
  CHECK(overrides(split) ==
        "--override-tensor \"^output\\.=CUDA1,^output_norm\\.=CUDA1,^token_embd\\.=CUDA0,"
        "^blk\\.(0|1)\\.(attn_norm|attn_q)\\.=CUDA0,^blk\\.2\\.(attn_norm|attn_q)\\.=CUDA1,"
        "^blk\\.(0|1|2)\\.ffn_up\\.=CPU\"\n");
  // Rotary embeddings are computed: no file has them.
  CHECK(overrides({{"rotary_emb", 0}, {"layers.0", 1}}) ==
        "--override-tensor \"^blk\\.0\\.=CUDA1\"\n");
  CHECK(overrides({{"layers.0.self_attn.rotary_emb", 0},
                   {"layers.0.self_attn.q_proj", 1},
                   {"layers.0.moe.gate", 1},
                   {"layers.0.moe.experts.0", 2}}) ==
        "--override-tensor \"^blk\\.0\\.(attn_q|ffn_gate_inp)\\.=CUDA1,"
        "^blk\\.0\\.ffn_(gate|up|down|gate_up)_exps\\.=CPU\"\n");
  // Experts are one tensor per projection, the router is none of them.
  CHECK(overrides({{"layers.0.mlp.experts.0.up_proj", 2},
                   {"layers.0.mlp.experts.1.up_proj", 2},
                   {"layers.0.mlp.gate", 0},
                   {"layers.0.mlp.gate_proj", 1}}) ==
        "--override-tensor \"^blk\\.0\\.ffn_gate_inp\\.=CUDA0,^blk\\.0\\.ffn_gate\\.=CUDA1,"
        "^blk\\.0\\.ffn_(gate|up|down|gate_up)_exps\\.=CPU\"\n");
}

TEST_CASE("llama.cpp tensors: what no pattern says is refused") {
  CHECK_THROWS_WITH_AS(
      exported("llama-cpp-tensors",
               {{"layers.0.mlp.experts.0.up_proj", 0}, {"layers.0.mlp.experts.1.up_proj", 1}}),
      "lm: 'layers.0.mlp.experts.0.up_proj' and 'layers.0.mlp.experts.1.up_proj' are one tensor of "
      "a GGUF file, on two devices: colocate them, and place again",
      InputError);
  CHECK_THROWS_WITH_AS(
      exported("llama-cpp-tensors", {{"layers.0.mixer.in", 0}, {"layers.0.mixer.out", 1}}),
      "lm: which tensor of a GGUF file holds the weights of 'layers.0.mixer.in' is not known: only "
      "the names of Llama, Mistral, Qwen, Mixtral and GPT-2 are, and layers that are on one device",
      InputError);
  CHECK_THROWS_AS(exported("llama-cpp-tensors", {{"layers.0.mixer", 0}, {"vision.conv", 0}}),
                  InputError);
  CHECK_THROWS_WITH_AS(exported("llama-cpp-tensors", llama({0}, 0, 0), {"gpu", "tpu"}),
                       "lm: llama.cpp has no TPUs, and gpu:1 is one", InputError);
}

TEST_CASE("comfyui: amounts by device, rounded up, and the last one has what is left") {
  const Bytes gib(std::int64_t{1} << 30), odd((std::int64_t{3} << 20) + 1);
  const std::vector<std::string> kinds{"gpu", "cpu", "gpu", "cpu"};
  CHECK(exported("comfyui", {{"a", 0, gib}, {"b", 2, odd}, {"c", 1, gib}, {"d", 0, Bytes(0)}},
                 kinds) == "cuda:0,1024mb;cpu,1024mb;cuda:1,4mb*\n");
  CHECK(exported("comfyui", {{"a", 2, odd}, {"b", 3, gib}, {"c", 1, gib}}, kinds) ==
        "cpu,2048mb;cuda:1,4mb*\n");
  CHECK(exported("comfyui", {{"a", 0, odd}, {"b", 2, gib}}, kinds) ==
        "cuda:0,4mb;cuda:1,1024mb*\n");
  CHECK(exported("comfyui", {{"a", 2, odd}}, kinds) == "cuda:1,4mb*\n");
  CHECK_THROWS_AS(exported("comfyui", {{"a", 0, Bytes(0)}}, kinds), InputError);
  CHECK_THROWS_WITH_AS(exported("comfyui", {{"a", 0, gib}, {"b", 0, gib, true}}, kinds),
                       "lm: ComfyUI only infers, and this is a step of training, whose permanent "
                       "memory is more than "
                       "weights: plan the graph of the inference",
                       InputError);
  CHECK_THROWS_WITH_AS(exported("comfyui", {{"a", 1, gib}}, {"gpu", "tpu"}),
                       "lm: ComfyUI has no TPUs, and gpu:1 is one", InputError);
}

}  // namespace
}  // namespace baechi
