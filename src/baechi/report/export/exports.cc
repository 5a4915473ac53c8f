// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/export/exports.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/io/graph_def/write_graph_def.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/io/onnx/write_onnx.h"
#include "baechi/report/export/layer_formats.h"
#include "baechi/report/export/layers.h"
#include "baechi/report/picture/plan_svg.h"
#include "baechi/report/text/csv_field.h"

namespace baechi {
namespace {

DeviceId device_of(const Plan& plan, OpId op) { return plan.schedule.slots[op].device; }

const Device& spec_of(const Plan& plan, DeviceId device) {
  return plan.cluster.devices[device.index()];
}

std::string to_csv(const OpGraph& graph, const Plan& plan) {
  std::string text =
      "operator,kind,device,start_ns,end_ns,permanent_bytes,temporary_bytes,output_bytes\r\n";
  for (const OpId op : graph.ops()) {
    const OpSlot& slot = plan.schedule.slots[op];
    text += csv_field(graph[op].name) + "," + csv_field(graph[op].kind) + "," +
            csv_field(spec_of(plan, slot.device).name);
    for (const std::int64_t number :
         {slot.start.count(), slot.end.count(), graph[op].permanent.count(),
          graph[op].temporary.count(), graph.output_bytes(op).count()})
      text += "," + std::to_string(number);
    text += "\r\n";
  }
  return text;
}

std::string to_tensorflow(const OpGraph& graph, const Plan& plan) {
  const IdVector<DeviceId, std::string> names = tensorflow_devices(plan.cluster);
  return json_document([&](JsonWriter& json) {
    for (const OpId op : graph.ops()) json.field(graph[op].name, names[device_of(plan, op)]);
  });
}

// An operator that holds weights, as the module that a device map knows it by.
struct Module {
  std::string name;  // with "." between the levels
  OpId op{0};
  DeviceId device{0};
};

// By levels: a module comes right before all that it contains.
bool before(const Module& a, const Module& b) {
  const auto rank = [](char c) { return c == '.' ? 0 : 1 + static_cast<unsigned char>(c); };
  return std::ranges::lexicographical_compare(a.name, b.name, std::less<>{}, rank, rank);
}

std::vector<Module> modules_of(const OpGraph& graph, const Plan& plan) {
  std::vector<Module> modules;
  for (const OpId op : graph.ops()) {
    if (graph[op].permanent == Bytes(0)) continue;
    modules.push_back({module_name(graph, op), op, device_of(plan, op)});
  }
  if (modules.empty())
    throw InputError(graph.name(), "no operator holds permanent memory: there is no module to map");
  std::ranges::stable_sort(modules, before);
  for (std::size_t i = 1; i < modules.size(); ++i) {
    const Module &a = modules[i - 1], &b = modules[i];
    if (a.name == b.name && a.device != b.device)
      throw InputError(graph.name(),
                       "operators " + in_quotes(graph[a.op].name) + " and " +
                           in_quotes(graph[b.op].name) + " are one module, on two devices: " +
                           spec_of(plan, a.device).name + " and " + spec_of(plan, b.device).name);
  }
  return modules;
}

// The numbers of devices as Hugging Face counts them: those of one kind together, on all hosts.
IdVector<DeviceId, std::size_t> numbers_in_kind(const ClusterSpec& cluster) {
  std::map<std::string_view, std::size_t> seen;
  IdVector<DeviceId, std::size_t> numbers;
  for (const Device& device : cluster.devices) numbers.push_back(seen[framework_kind(device)]++);
  return numbers;
}

// An entry's name is the shortest prefix that no module on another device shares. Of those, in
// order, the nearest on either side share the most.
std::string to_device_map(const OpGraph& graph, const Plan& plan) {
  const std::vector<Module> modules = modules_of(graph, plan);
  const IdVector<DeviceId, std::size_t> numbers = numbers_in_kind(plan.cluster);
  return json_document([&](JsonWriter& json) {
    std::optional<std::string_view> last;
    for (std::size_t first = 0, end = 0; first < modules.size(); first = end) {
      const DeviceId device = modules[first].device;
      while (end < modules.size() && modules[end].device == device) ++end;
      for (std::size_t i = first; i < end; ++i) {
        const std::string_view name = modules[i].name;
        std::size_t length = 0;
        if (first > 0) length = own_prefix(name, modules[first - 1].name);
        if (end < modules.size()) length = std::max(length, own_prefix(name, modules[end].name));
        const std::string_view entry = name.substr(0, length);
        if (last == entry) continue;
        check_no_call(graph, modules[i].op, entry);
        last = entry;
        if (spec_of(plan, device).kind == "cpu")
          json.field(entry, "cpu");
        else
          json.field(entry, numbers[device]);
      }
    }
  });
}

// What ComfyUI-MultiGPU calls a device.
std::string comfyui_name(const OpGraph& graph, const Device& device, std::size_t number) {
  const std::string_view kind = framework_kind(device);
  if (kind == "TPU")
    throw InputError(graph.name(), "ComfyUI has no TPUs, and " + device.name + " is one");
  return kind == "CPU" ? "cpu" : "cuda:" + std::to_string(number);
}

// In whole MiB, rounded up, so that what a device holds has room in its amount. The last device
// that holds something has what is left. Its amount is there as well: without one its reader takes
// the text for no amounts at all.
std::string to_comfyui(const OpGraph& graph, const Plan& plan) {
  check_one_host(graph, plan, "ComfyUI-MultiGPU");
  const IdVector<DeviceId, std::size_t> numbers = numbers_in_kind(plan.cluster);
  std::map<DeviceId, Bytes> weights;
  for (const OpId op : graph.ops()) {
    if (graph[op].backward)
      throw InputError(graph.name(),
                       "ComfyUI only infers, and this is a step of training, whose permanent "
                       "memory is more than weights: plan the graph of the inference");
    if (graph[op].permanent > Bytes(0)) weights[device_of(plan, op)] += graph[op].permanent;
  }
  if (weights.empty())
    throw InputError(graph.name(), "no operator holds permanent memory: there is nothing to allot");
  std::vector<std::pair<std::string, Bytes>> amounts;  // all devices of kind cpu are one
  for (const auto& [device, held] : weights) {
    const std::string name = comfyui_name(graph, spec_of(plan, device), numbers[device]);
    if (const auto known = std::ranges::find(amounts, name, &std::pair<std::string, Bytes>::first);
        known != amounts.end())
      known->second += held;
    else
      amounts.emplace_back(name, held);
  }
  std::string text;
  for (const auto& [name, held] : amounts) {
    constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;
    const std::int64_t whole = held.count() / kMebibyte + (held.count() % kMebibyte > 0 ? 1 : 0);
    const bool last = name == amounts.back().first;
    text += name + "," + std::to_string(whole) + (last ? "mb*" : "mb;");
  }
  return text + "\n";
}

std::string to_svg(const OpGraph& graph, const Plan& plan) { return plan_svg(graph, plan); }

std::string to_svg_of_step(const Unrolled& step, const Plan& plan) { return plan_svg(step, plan); }

std::string to_onnx_runtime(const OpGraph& graph, const Plan& plan) {
  static_cast<void>(graph);
  return "session.layer_assignment_settings=" + onnx_runtime_layer_assignment(plan) + "\n";
}

constexpr std::array<ExportFormat, 13> kFormats{{
    {"csv", "a row per operator: device, times, memory", to_csv},
    {"svg",
     "a picture: a lane per device, time flowing to the right, passes and what idle devices wait "
     "for",
     to_svg, false, to_svg_of_step},
    {"device-map", "Hugging Face device_map: the device of every module that holds weights",
     to_device_map, true},
    {"tensorflow", "TensorFlow: the device string of each node", to_tensorflow, true},
    {"onnxruntime",
     "ONNX Runtime: the session option that gives each annotation of --to onnx its device",
     to_onnx_runtime, true},
    {"torch-pipelining",
     "torch.distributed.pipelining: the modules of each stage, and the actions of each rank in the "
     "plan's order",
     to_torch_pipelining, false, nullptr, true, "schedule"},
    {"torch-pipelining", "torch.distributed.pipelining: the layers before which to split",
     to_split_spec, true, nullptr, false, "split-spec"},
    {"torch-pipelining",
     "torchtitan and NeMo AutoModel: module_fqns_per_model_part, modules with weights per stage",
     to_module_fqns, true, nullptr, false, "module-fqns"},
    {"megatron", "Megatron: the pipeline's layout", to_megatron, true},
    {"vllm", "vLLM: layers per rank, for plans that cut between layers", to_vllm, true},
    {"llama-cpp", "llama.cpp: layers per device, for plans that cut between layers", to_llama_cpp,
     true},
    {"llama-cpp-tensors", "llama.cpp: which tensors are on which device", to_llama_cpp_tensors,
     true},
    {"comfyui", "ComfyUI-MultiGPU: the bytes of weights on each device", to_comfyui, true},
}};

// Of a program that knows each operator once.
bool once_only(const ExportFormat& format) {
  return format.placement_alone || format.of_micro_batch;
}

constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kGone{{
    {"dot", "'svg' draws a plan"},
    {"split-spec", "'torch-pipelining' has the form split-spec"},
    {"module-fqns", "'torch-pipelining' has the form module-fqns"},
}};

}  // namespace

std::span<const ExportFormat> export_formats() { return kFormats; }
std::span<const std::pair<std::string_view, std::string_view>> gone_export_formats() {
  return kGone;
}

std::string write_export(const ExportFormat& format, const Unrolled& step,
                         const OpGraph& micro_batch, const Plan& plan) {
  if (format.write_step != nullptr) return format.write_step(step, plan);
  return format.write(once_only(format) ? micro_batch : step.graph, plan);
}

void check_can_tell(const ExportFormat& format, const Plan& plan) {
  if (once_only(format) && plan.replicas.any())
    throw InputError("to", in_quotes(format.name) +
                               " cannot tell of replicas: export a plan made with replicas 1");
  if (!once_only(format) || (plan.recomputed.empty() && plan.residency.empty())) return;
  const bool again = !plan.recomputed.empty();
  throw InputError("to", in_quotes(format.name) + " cannot tell " +
                             (again ? "which operators run a second time: export a plan made with "
                                      "recompute none"
                                    : "what a host keeps: export a plan made with residency none"));
}

const ExportFormat& find_export_format(std::string_view name, std::string_view form) {
  const auto add = [](std::string& list, std::string_view word) {
    if (!list.ends_with(word)) list += (list.empty() ? "" : ", ") + std::string(word);
  };
  std::string names, forms;
  bool named = false;
  for (const ExportFormat& format : kFormats) {
    if (format.name == name && (form.empty() || format.form == form)) return format;
    named = named || format.name == name;
    add(format.name == name ? forms : names, format.name == name ? format.form : format.name);
  }
  if (named)
    throw InputError("form", in_quotes(name) + (forms.empty() ? " has no forms"
                                                              : " has no form " + in_quotes(form) +
                                                                    ", only " + forms));
  for (const auto& [gone, instead] : kGone)
    if (name == gone)
      throw InputError("to", in_quotes(gone) + " is no longer there: " + std::string(instead));
  throw InputError("to", "there is no format " + in_quotes(name) + ", only " + names);
}

}  // namespace baechi
