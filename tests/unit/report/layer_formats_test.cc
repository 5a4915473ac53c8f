// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/plan/planner.h"
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
    const OpId op = builder.add_operator(
        {.name = weight.name, .permanent = weight.held, .backward = weight.backward});
    builder.set_time(op, kAnyKind, Time(10));
    if (before.has_value()) builder.connect(*before, op);
    before = builder.add_output(op, Bytes(8));
  }
  return std::move(builder).build();
}

// The weights run one after the other; `kinds` are the devices'.
std::string exported(std::string_view format, const std::vector<Weight>& weights,
                     const std::vector<std::string>& kinds = {"gpu", "gpu", "gpu"}) {
  const OpGraph graph = chain_of(weights);
  ClusterSpec spec = testing::unit_latency_cluster(kinds.size(), Bytes(1'000'000'000'000)).spec();
  for (std::size_t i = 0; i < kinds.size(); ++i) spec.devices[i].kind = kinds[i];
  const Cluster cluster(spec);
  Placement placement;
  for (const Weight& weight : weights) placement.push_back(DeviceId(weight.device));
  const Plan plan = plan_of(CostModel(graph, cluster), {placement, std::nullopt}, "given", false);
  return find_export_format(format).write(graph, plan);
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
                 kinds) == "cuda:0,1024mb;cpu,1024mb;cuda:1,*\n");
  CHECK(exported("comfyui", {{"a", 2, odd}, {"b", 3, gib}, {"c", 1, gib}}, kinds) ==
        "cpu,2048mb;cuda:1,*\n");
  CHECK(exported("comfyui", {{"a", 0, odd}, {"b", 2, gib}}, kinds) == "cuda:0,4mb;cuda:1,*\n");
  CHECK(exported("comfyui", {{"a", 2, odd}}, kinds) == "cuda:1,*\n");
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
