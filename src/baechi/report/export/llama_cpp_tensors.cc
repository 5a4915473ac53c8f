// SPDX-License-Identifier: Apache-2.0
// Plans as llama.cpp's --override-tensor: patterns of the names of tensors in a GGUF file, the
// first that is found in a name decides.
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/report/export/layer_formats.h"
#include "baechi/report/export/layers.h"

namespace baechi {
namespace {

struct TensorName {
  std::string_view module;  // of Llama, Mistral, Qwen, Mixtral or GPT-2 in transformers
  std::string_view gguf;
};
constexpr std::array<TensorName, 24> kInLayers{{
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.experts", "ffn_(gate|up|down|gate_up)_exps"},
    {"block_sparse_moe.gate", "ffn_gate_inp"},
    {"block_sparse_moe.experts", "ffn_(gate|up|down|gate_up)_exps"},
    {"moe.gate", "ffn_gate_inp"},  // of `baechi generate moe`
    {"moe.experts", "ffn_(gate|up|down|gate_up)_exps"},
    {"self_attn.rotary_emb", ""},  // computed: in no file
    {"ln_1", "attn_norm"},
    {"attn.c_attn", "attn_qkv"},
    {"attn.c_proj", "attn_output"},
    {"ln_2", "ffn_norm"},
    {"mlp.c_fc", "ffn_up"},
    {"mlp.c_proj", "ffn_down"},
}};
constexpr std::array<TensorName, 7> kElsewhere{{
    {"embed_tokens", "token_embd"},
    {"norm", "output_norm"},
    {"lm_head", "output"},
    {"wte", "token_embd"},
    {"wpe", "position_embd"},
    {"ln_f", "output_norm"},
    {"rotary_emb", ""},
}};

// Absent when it is none of them. By levels: "mlp.gate" is no part of "mlp.gate_proj".
std::optional<std::string_view> gguf_name(std::span<const TensorName> names,
                                          std::string_view module) {
  for (const auto& [known, gguf] : names)
    if (module.starts_with(known) && (module.size() == known.size() || module[known.size()] == '.'))
      return gguf;
  return std::nullopt;
}

// llama.cpp's buffer type of every device.
IdVector<DeviceId, std::string> buffers_of(const OpGraph& graph, const ClusterSpec& cluster) {
  IdVector<DeviceId, std::string> buffers;
  std::size_t gpus = 0;
  for (const Device& device : cluster.devices)
    buffers.push_back(is_llama_cpp_cpu(graph, device) ? "CPU" : "CUDA" + std::to_string(gpus++));
  return buffers;
}

std::string either(const std::vector<std::string>& some) {
  std::string text;
  for (const std::string& each : some) text += (text.empty() ? "" : "|") + each;
  return some.size() == 1 ? text : "(" + text + ")";
}

class TensorPlaces {
 public:
  TensorPlaces(const OpGraph& graph, const Plan& plan)
      : graph_(graph), plan_(plan), family_(largest_family(graph, plan)) {
    for (const OpId op : graph.ops()) {
      if (graph[op].permanent == Bytes(0) || graph[op].backward) continue;
      if (family_.has(graph[op].name))
        layers_[layer_of(graph[op].name)->number].push_back(op);
      else
        see_elsewhere(op);
    }
  }

  // By what they match, in the order of devices.
  std::string patterns() {
    // What is on one device and alike in several layers is one pattern.
    std::map<std::pair<DeviceId, std::string>, std::vector<std::string>> alike;
    for (const auto& [number, ops] : layers_)
      for (const auto& [device, tensors] : tensors_of(ops))
        alike[{device, tensors.empty() ? "" : either(tensors) + "\\."}].push_back(
            std::to_string(number));
    const IdVector<DeviceId, std::string> buffers = buffers_of(graph_, plan_.cluster);
    std::string text;
    const auto add = [&](const std::string& pattern, DeviceId device) {
      text += (text.empty() ? "^" : ",^") + pattern + "=" + buffers[device];
    };
    for (const auto& [tensor, op] : elsewhere_) add(tensor + "\\.", device_of(op));
    for (const auto& [place, layers] : alike)
      add("blk\\." + either(layers) + "\\." + place.second, place.first);
    return text;
  }

 private:
  using Tensors = std::map<std::string, OpId, std::less<>>;

  DeviceId device_of(OpId op) const { return plan_.schedule.slots[op].device; }

  void see(Tensors& tensors, std::span<const TensorName> names, std::string_view module,
           OpId op) const {
    const std::optional<std::string_view> tensor = gguf_name(names, module);
    if (!tensor.has_value())
      throw InputError(graph_.name(),
                       "which tensor of a GGUF file holds the weights of " +
                           in_quotes(graph_[op].name) +
                           " is not known: only the names of Llama, Mistral, Qwen, Mixtral and "
                           "GPT-2 are, and layers that are on one device");
    if (tensor->empty()) return;
    const auto [known, added] = tensors.try_emplace(std::string(*tensor), op);
    if (!added && device_of(known->second) != device_of(op))
      throw InputError(graph_.name(), in_quotes(graph_[known->second].name) + " and " +
                                          in_quotes(graph_[op].name) +
                                          " are one tensor of a GGUF file, on two devices: "
                                          "colocate them, and place again");
  }

  void see_elsewhere(OpId op) {
    const std::string name = module_name(graph_, op);
    const std::string layer = layer_of(graph_[family_.layers.begin()->second.example].name)->module;
    const std::string module = name.substr(0, own_prefix(name, layer));
    see(elsewhere_, kElsewhere, module.substr(module.rfind('.') + 1), op);
  }

  // By device, those of a layer; none where it has all of them.
  std::map<DeviceId, std::vector<std::string>> tensors_of(const std::vector<OpId>& ops) const {
    std::map<DeviceId, std::vector<std::string>> found;
    for (const OpId op : ops) found[device_of(op)];
    if (found.size() == 1) return found;
    Tensors tensors;
    for (const OpId op : ops) {
      const std::string name = module_name(graph_, op);
      const std::size_t begin = layer_of(graph_[op].name)->module.size() + 1;
      see(tensors, kInLayers, name.substr(std::min(name.size(), begin)), op);
    }
    std::map<DeviceId, std::vector<std::string>> parts;  // none of what is in no file
    for (const auto& [tensor, op] : tensors) parts[device_of(op)].push_back(tensor);
    return parts;
  }

  const OpGraph& graph_;
  const Plan& plan_;
  const Family family_;
  std::map<std::size_t, std::vector<OpId>> layers_;
  Tensors elsewhere_;
};

}  // namespace

std::string to_llama_cpp_tensors(const OpGraph& graph, const Plan& plan) {
  check_one_host(graph, plan, "llama.cpp");
  return "--override-tensor \"" + TensorPlaces(graph, plan).patterns() + "\"\n";
}

}  // namespace baechi
