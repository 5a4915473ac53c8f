// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/plan/plan_file.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/base/version.h"
#include "baechi/io/cluster/cluster_json.h"
#include "baechi/io/json/json_reader.h"
#include "baechi/io/json/json_values.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/io/plan/plan_document.h"
#include "baechi/io/text/text_file.h"

namespace baechi {
namespace {

using Layout = JsonWriter::Layout;

class PlanWriter {
 public:
  PlanWriter(const Plan& plan, const OpGraph& graph, std::string& out)
      : plan_(plan), graph_(graph), json_(out) {}

  void write() {
    json_.begin_object();
    json_.field("format", "baechi-plan");
    json_.field("version", 1);
    json_.field("baechi", version());
    json_.key("graph");
    json_.begin_object(Layout::kInline);
    json_.field("name", plan_.graph_name);
    json_.field("operators", graph_.num_ops());
    json_.end_object();
    json_.key("cluster");
    write_cluster_object(json_, plan_.cluster, false);
    json_.field("memory_mode", memory_mode_name(plan_.memory_mode));
    if (plan_.order != ExecutionOrder::kPlanned)
      json_.field("order", execution_order_name(plan_.order));
    json_.field("method", plan_.method);
    if (!plan_.fallbacks.empty()) write_texts("fallbacks", plan_.fallbacks);
    json_.field("makespan", plan_.makespan().count());
    if (plan_.gap().has_value()) json_.field("gap", *plan_.gap());
    write_bounds();
    write_devices();
    write_passes();
    write_methods();
    if (!plan_.notes.empty()) write_texts("notes", plan_.notes);
    write_operators();
    write_transfers();
    json_.end_object();
    json_.finish();
  }

 private:
  void write_texts(const char* field, const std::vector<std::string>& texts) {
    json_.key(field);
    json_.begin_array();
    for (const std::string& text : texts) json_.value(text);
    json_.end_array();
  }

  void write_bounds() {
    if (plan_.bounds.empty()) return;
    json_.key("bounds");
    json_.begin_array();
    for (const NamedBound& bound : plan_.bounds) {
      json_.begin_object(Layout::kInline);
      json_.field("name", bound.name);
      json_.field("value", bound.value.count());
      json_.end_object();
    }
    json_.end_array();
  }

  void write_devices() {
    json_.key("devices");
    json_.begin_array();
    for (const DeviceId id : plan_.devices.keys()) {
      const PlanDevice& device = plan_.devices[id];
      json_.begin_object(Layout::kInline);
      json_.field("name", device_name(id));
      json_.field("peak", device.peak.count());
      if (device.run_peak.has_value()) json_.field("run_peak", device.run_peak->count());
      json_.field("peak_at", device.peak_at.count());
      if (device.peak_op.has_value()) json_.field("peak_operator", graph_[*device.peak_op].name);
      json_.field("busy", device.busy.count());
      json_.field("sent", device.sent.count());
      json_.field("received", device.received.count());
      json_.end_object();
    }
    json_.end_array();
  }

  void write_passes() {
    if (plan_.passes.empty()) return;
    const auto write_size = [&](const char* field, const OptimizerPass::Size& size) {
      json_.key(field);
      json_.begin_object(Layout::kInline);
      json_.field("operators", size.ops);
      json_.field("edges", size.edges);
      json_.field("groups", size.groups);
      json_.end_object();
    };
    json_.key("passes");
    json_.begin_array();
    for (const OptimizerPass& pass : plan_.passes) {
      json_.begin_object(Layout::kInline);
      json_.field("pass", pass.pass);
      write_size("before", pass.before);
      write_size("after", pass.after);
      if (!pass.note.empty()) json_.field("note", pass.note);
      json_.end_object();
    }
    json_.end_array();
  }

  void write_methods() {
    if (plan_.methods.empty()) return;
    json_.key("methods");
    json_.begin_array();
    for (const MethodOutcome& outcome : plan_.methods) {
      json_.begin_object(Layout::kInline);
      json_.field("method", outcome.method);
      if (outcome.makespan.has_value()) json_.field("makespan", outcome.makespan->count());
      if (!outcome.fallbacks.empty()) write_texts("fallbacks", outcome.fallbacks);
      if (!outcome.reason.empty()) json_.field("reason", outcome.reason);
      if (outcome.devices_used != 0) json_.field("devices_used", outcome.devices_used);
      if (!outcome.peaks.empty()) {
        json_.key("peaks");
        json_.begin_array();
        for (const Bytes peak : outcome.peaks) json_.value(peak.count());
        json_.end_array();
      }
      json_.end_object();
    }
    json_.end_array();
  }

  void write_operators() {
    json_.key("operators");
    json_.begin_array();
    for (const OpId op : graph_.ops()) {
      const OpSlot& slot = plan_.schedule.slots[op];
      json_.begin_object(Layout::kInline);
      json_.field("name", graph_[op].name);
      json_.field("device", device_name(slot.device));
      json_.field("start", slot.start.count());
      json_.field("end", slot.end.count());
      json_.end_object();
    }
    json_.end_array();
  }

  void write_transfers() {
    json_.key("transfers");
    json_.begin_array();
    for (const Transfer& transfer : plan_.schedule.transfers) {
      json_.begin_object(Layout::kInline);
      json_.key("tensor");
      write_tensor(transfer.tensor);
      json_.field("from", device_name(transfer.from));
      json_.field("to", device_name(transfer.to));
      json_.field("requested", transfer.requested.count());
      json_.field("start", transfer.start.count());
      json_.field("end", transfer.end.count());
      json_.end_object();
    }
    json_.end_array();
  }

  void write_tensor(TensorId tensor) {
    const OpId producer = graph_.producer(tensor);
    const std::size_t port = tensor.index() - (*graph_.outputs(producer).begin()).index();
    if (port == 0) return json_.value(graph_[producer].name);
    json_.begin_array();
    json_.value(graph_[producer].name);
    json_.value(port);
    json_.end_array();
  }

  const std::string& device_name(DeviceId device) const {
    return plan_.cluster.devices[device.index()].name;
  }

  const Plan& plan_;
  const OpGraph& graph_;
  JsonWriter json_;
};

// Gives the names of a plan the ids of the graph.
class PlanBinder {
 public:
  PlanBinder(const JsonReader& json, const OpGraph& graph) : json_(json), graph_(graph) {}

  Plan bind(PlanDocument document) {
    check_same_graph(document);
    Plan plan = std::move(document.plan);
    if (document.operators.size() != graph_.num_ops()) fail_missing(document);
    plan.schedule.slots.resize(graph_.num_ops());
    for (const PlanDocument::Operator& op : document.operators)
      plan.schedule.slots[find(op.name, op.offset, "$.operators")] = op.slot;
    for (const PlanDocument::Transfer& entry : document.transfers) {
      Transfer transfer = entry.transfer;
      transfer.tensor = find_tensor(entry);
      plan.schedule.transfers.push_back(transfer);
    }
    std::sort(plan.schedule.transfers.begin(), plan.schedule.transfers.end(),
              [](const Transfer& a, const Transfer& b) {
                return std::tie(a.tensor, a.to, a.start) < std::tie(b.tensor, b.to, b.start);
              });
    for (const PlanDocument::PeakOperator& peak : document.peak_operators)
      plan.devices[peak.device].peak_op = find(peak.name, peak.offset, "$.devices");
    return plan;
  }

 private:
  void check_same_graph(const PlanDocument& document) const {
    const Plan& plan = document.plan;
    const bool named = !plan.graph_name.empty() && !graph_.name().empty();
    if (named && plan.graph_name != graph_.name())
      json_.fail_at(
          document.graph_name_offset, "$.graph.name",
          "the plan is for the graph '" + plan.graph_name + "', not for '" + graph_.name() + "'");
    if (plan.memory_mode != graph_.memory_mode())
      json_.fail_at(document.memory_mode_offset, "$.memory_mode",
                    "the plan is for a graph with memory mode " +
                        std::string(memory_mode_name(plan.memory_mode)) + ", this one has " +
                        std::string(memory_mode_name(graph_.memory_mode())));
  }

  OpId find(std::string_view name, std::size_t offset, const char* path) const {
    const std::optional<OpId> op = graph_.find(name);
    if (!op.has_value())
      json_.fail_at(offset, path, "the graph has no operator " + in_quotes(name));
    return *op;
  }

  TensorId find_tensor(const PlanDocument::Transfer& entry) const {
    const OpId producer = find(entry.producer, entry.offset, "$.transfers");
    const IdRange<TensorId> outputs = graph_.outputs(producer);
    if (entry.port >= outputs.size())
      json_.fail_at(entry.offset, "$.transfers",
                    "operator '" + std::string(entry.producer) + "' has no output " +
                        std::to_string(entry.port));
    return outputs.begin()[static_cast<std::ptrdiff_t>(entry.port)];
  }

  // The numbers differ, so some operator is only here or only there.
  [[noreturn]] void fail_missing(const PlanDocument& document) const {
    IdVector<OpId, bool> placed(graph_.num_ops(), false);
    for (const PlanDocument::Operator& op : document.operators)
      placed[find(op.name, op.offset, "$.operators")] = true;
    const auto missing = std::find_if(graph_.ops().begin(), graph_.ops().end(),
                                      [&](OpId op) { return !placed[op]; });
    json_.fail_at(document.num_operators_offset, "$.operators",
                  "the plan does not place operator '" + std::string(graph_[*missing].name) +
                      "' of the graph");
  }

  const JsonReader& json_;
  const OpGraph& graph_;
};

}  // namespace

std::string plan_to_json(const Plan& plan, const OpGraph& graph) {
  std::string text;
  PlanWriter(plan, graph, text).write();
  return text;
}

Plan parse_plan(std::string_view text, const std::string& place, const OpGraph& graph) {
  JsonReader json(text, place);
  return PlanBinder(json, graph).bind(read_plan_document(json));
}

Plan read_plan(const std::filesystem::path& path, const OpGraph& graph) {
  const SourceText source = read_text_file(path);
  return reading(source.name, [&] { return parse_plan(source.text, source.name, graph); });
}

void check_plan_text(std::string_view text, const std::string& place) {
  JsonReader json(text, place);
  read_plan_document(json);
}

}  // namespace baechi
