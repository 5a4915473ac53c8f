// SPDX-License-Identifier: Apache-2.0
// The settings of programs that give whole layers, or their tensors, to devices
// (docs/how_to/exports.md). Each throws InputError when it cannot say what the plan says.
#pragma once

#include <string>
#include <string_view>

#include "baechi/graph/op_graph.h"
#include "baechi/schedule/plan.h"

namespace baechi {

std::string to_vllm(const OpGraph& graph, const Plan& plan);
std::string to_llama_cpp(const OpGraph& graph, const Plan& plan);
// torch.distributed.pipelining: where to split, in front of layers.
std::string to_split_spec(const OpGraph& graph, const Plan& plan);
// Stages, and what each rank does in which order, where each stage is a run of whole modules on one
// device and hands what it makes to the next alone. `graph` is that of one micro-batch.
std::string to_torch_pipelining(const OpGraph& graph, const Plan& plan);
// torchtitan's and NeMo AutoModel's module_fqns_per_model_part.
std::string to_module_fqns(const OpGraph& graph, const Plan& plan);
// Megatron's layout of a pipeline: "Et*3|t*4L".
std::string to_megatron(const OpGraph& graph, const Plan& plan);
// llama.cpp's --override-tensor: which of a GGUF file's tensors are where. Layers may be anywhere,
// and their tensors apart.
std::string to_llama_cpp_tensors(const OpGraph& graph, const Plan& plan);

// Throws InputError when the cluster has several hosts, whose devices the program does not number.
void check_one_host(const OpGraph& graph, const Plan& plan, std::string_view program);
// Otherwise llama.cpp has it among the GPUs. Throws InputError when it is neither.
bool is_llama_cpp_cpu(const OpGraph& graph, const Device& device);

}  // namespace baechi
