// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/plan/plan_file.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/base/version.h"
#include "baechi/graph/recosted.h"
#include "baechi/io/cluster/cluster_json.h"
#include "baechi/io/json/json_reader.h"
#include "baechi/io/json/json_values.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/io/plan/plan_document.h"
#include "baechi/io/text/text_file.h"
#include "baechi/schedule/step_order.h"

namespace baechi {
namespace {

using Layout = JsonWriter::Layout;

class PlanWriter {
 public:
  // `step` where it has more than one micro-batch; `graph` is then its graph.
  PlanWriter(const Plan& plan, const OpGraph& graph, const Unrolled* step, std::string& out)
      : plan_(plan), graph_(graph), step_(step), json_(out) {}

  void write() {
    json_.begin_object();
    json_.field("format", "baechi-plan");
    json_.field("version", 1);
    json_.field("baechi", version());
    json_.begin_object("graph", Layout::kInline);
    json_.field("name", plan_.graph_name);
    json_.field("operators",
                plan_.replicas.ops_of_one(
                    step_ != nullptr ? step_->rank.size() : graph_.num_ops() - num_of_residency()) -
                    plan_.recomputed.size());
    json_.end_object();
    if (step_ != nullptr) json_.field("micro_batches", plan_.micro_batches);
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
    write_recomputed();
    write_replicas();
    write_residency();
    if (step_ != nullptr) {
      write_placement();
      write_runs();
    } else {
      write_operators();
      write_transfers();
    }
    json_.end_object();
    json_.finish();
  }

 private:
  void write_texts(const char* field, const std::vector<std::string>& texts) {
    json_.begin_array(field);
    for (const std::string& text : texts) json_.value(text);
    json_.end_array();
  }

  void write_recomputed() {
    if (plan_.recomputed.empty()) return;
    json_.objects("recomputed", plan_.recomputed, [&](const Recomputation& again) {
      json_.field("operator", name_in_one(again.op));
      if (again.after.has_value()) json_.field("after", name_in_one(*again.after));
    });
  }

  void write_replicas() {
    if (!plan_.replicas.any()) return;
    json_.begin_object("replicas");
    json_.field("count", plan_.replicas.count);
    if (plan_.replicas.shared > 0) {
      json_.field("shared", plan_.replicas.shared);
      json_.end_object();
      return;
    }
    json_.begin_array("buckets");
    for (const auto& bucket : plan_.replicas.buckets) {
      json_.begin_array(Layout::kInline);
      for (const ReducedTensor& tensor : bucket)
        write_port(name_in_one(tensor.producer), tensor.port);
      json_.end_array();
    }
    json_.end_array();
    json_.end_object();
  }

  std::size_t num_of_residency() const {
    std::size_t number = 2 * streamed_updates(graph_, plan_.residency).size();
    for (const AwayTensor& away : plan_.residency.away) number += away.fetches.size();
    return number;
  }

  void write_residency() {
    if (plan_.residency.empty()) return;
    json_.begin_object("residency");
    json_.field("store", plan_.residency.store);
    json_.objects("away", plan_.residency.away, [&](const AwayTensor& away) {
      json_.key("tensor");
      write_port(graph_[away.producer].name, away.port);
      json_.begin_array("fetches");
      for (const Fetch& fetch : away.fetches) write_fetch(fetch);
      json_.end_array();
    });
    json_.values("on_store", plan_.residency.on_store,
                 [&](const OpId op) { return graph_[op].name; });
    json_.end_object();
  }

  void write_fetch(const Fetch& fetch) {
    json_.begin_object(Layout::kInline);
    if (fetch.after.has_value()) json_.field("after", graph_[*fetch.after].name);
    json_.values("readers", fetch.readers, [&](const OpId reader) { return graph_[reader].name; });
    json_.end_object();
  }

  void write_bounds() {
    if (plan_.bounds.empty()) return;
    json_.objects("bounds", plan_.bounds, [&](const NamedBound& bound) {
      json_.field("name", bound.name);
      json_.field("value", bound.value.count());
    });
  }

  void write_devices() {
    json_.begin_array("devices");
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
      json_.begin_object(field, Layout::kInline);
      json_.field("operators", size.ops);
      json_.field("edges", size.edges);
      json_.field("groups", size.groups);
      json_.end_object();
    };
    json_.objects("passes", plan_.passes, [&](const OptimizerPass& pass) {
      json_.field("pass", pass.pass);
      write_size("before", pass.before);
      write_size("after", pass.after);
      if (!pass.note.empty()) json_.field("note", pass.note);
    });
  }

  void write_methods() {
    if (plan_.methods.empty()) return;
    json_.objects("methods", plan_.methods, [&](const MethodOutcome& outcome) {
      json_.field("method", outcome.method);
      if (outcome.makespan.has_value()) json_.field("makespan", outcome.makespan->count());
      if (!outcome.fallbacks.empty()) write_texts("fallbacks", outcome.fallbacks);
      if (!outcome.reason.empty()) json_.field("reason", outcome.reason);
      if (outcome.devices_used != 0) json_.field("devices_used", outcome.devices_used);
      if (!outcome.peaks.empty()) {
        json_.values("peaks", outcome.peaks, [&](const Bytes peak) { return peak.count(); });
      }
    });
  }

  void write_operators() {
    json_.begin_array("operators");
    for (const OpId op : graph_.ops()) {
      const OpSlot& slot = plan_.schedule.slots[op];
      json_.begin_object(Layout::kInline);
      json_.field("name", graph_[op].name);
      json_.field("device", device_name(slot.device));
      json_.field("start", slot.start.count());
      json_.field("end", slot.end.count());
      if (!plan_.schedule.asked.empty()) json_.field("asked", plan_.schedule.asked[op].count());
      json_.end_object();
    }
    json_.end_array();
  }

  void write_placement() {
    json_.objects("operators", step_->rank.keys(), [&](const OpId op) {
      json_.field("name", step_->name(op));
      json_.field("device", device_name(plan_.schedule.slots[op].device));
    });
  }

  void write_runs() {
    const DeviceOrder order = order_of(plan_.schedule, graph_, plan_.cluster.devices.size());
    json_.begin_array("runs");
    for (const std::vector<OpId>& runs : order) {
      json_.begin_array(Layout::kCompact);
      for (const OpId op : runs) {
        if (step_->is_sum(op)) continue;
        json_.begin_array(Layout::kCompact);
        json_.value(step_->is_of_residency(op)
                        ? step_->rank.size() + op.index() - step_->first_fetch
                        : step_->original[op].index());
        if (step_->micro_batch[op].has_value()) json_.value(*step_->micro_batch[op]);
        json_.end_array();
      }
      json_.end_array();
    }
    json_.end_array();
  }

  void write_transfers() {
    json_.objects("transfers", plan_.schedule.transfers, [&](const Transfer& transfer) {
      json_.key("tensor");
      write_tensor(transfer.tensor);
      json_.field("from", device_name(transfer.from));
      json_.field("to", device_name(transfer.to));
      json_.field("requested", transfer.requested.count());
      json_.field("start", transfer.start.count());
      json_.field("end", transfer.end.count());
    });
  }

  void write_tensor(TensorId tensor) {
    const OpId producer = graph_.producer(tensor);
    write_port(graph_[producer].name, tensor.index() - (*graph_.outputs(producer).begin()).index());
  }

  void write_port(std::string_view producer, std::size_t port) {
    if (port == 0) return json_.value(producer);
    json_.begin_array();
    json_.value(producer);
    json_.value(port);
    json_.end_array();
  }

  // What the graph of one micro-batch calls it.
  std::string_view name_in_one(OpId op) const {
    return step_ != nullptr ? step_->name(op) : std::string_view(graph_[op].name);
  }

  const std::string& device_name(DeviceId device) const {
    return plan_.cluster.devices[device.index()].name;
  }

  const Plan& plan_;
  const OpGraph& graph_;
  const Unrolled* step_;
  JsonWriter json_;
};

// Gives the names of a plan the ids of the graph.
class PlanBinder {
 public:
  PlanBinder(const JsonReader& json, const OpGraph& graph) : json_(json), graph_(graph) {}

  Plan bind(PlanDocument document) {
    check_same_graph(document);
    if (!document.recomputed.empty() && document.plan.recomputed.empty())
      json_.fail_at(document.recomputed.front().offset, "$.recomputed",
                    "the plan runs operators a second time, which cannot be used here");
    if (document.plan.micro_batches > 1)
      json_.fail_at(document.runs_offset, "$.micro_batches",
                    "the plan is for a step of " + std::to_string(document.plan.micro_batches) +
                        " micro-batches, which cannot be used here");
    if (document.replicas_offset > 0 && !document.replicas_bound)
      json_.fail_at(document.replicas_offset, "$.replicas",
                    "the plan has replicas, which cannot be used here");
    if (document.has_residency() && document.plan.residency.empty())
      json_.fail_at(document.residency_offset, "$.residency",
                    "the plan keeps tensors in a host's memory, which cannot be used here");
    Plan plan = std::move(document.plan);
    if (document.operators.size() != graph_.num_ops()) fail_missing(document);
    plan.schedule.slots.resize(graph_.num_ops());
    const bool asks = plan.cluster.host_time.has_value();
    if (asks) plan.schedule.asked.resize(graph_.num_ops());
    for (const PlanDocument::Operator& entry : document.operators) {
      const OpId op = find(entry.name, entry.offset, "$.operators");
      plan.schedule.slots[op] = entry.slot;
      if (entry.asked.has_value() != asks)
        json_.fail_at(entry.offset, "$.operators",
                      asks ? "the cluster has a host time: say when the operator is \"asked\" for"
                           : "\"asked\" needs a cluster with a host time");
      if (asks) plan.schedule.asked[op] = *entry.asked;
    }
    check_makespan(document, plan);
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

  // The graph with the second runs of the plan, if it has any, and these by id in the plan.
  std::optional<OpGraph> recomputing_graph(PlanDocument& document) const {
    if (document.recomputed.empty()) return std::nullopt;
    check_same_graph(document);
    if (document.plan.order == ExecutionOrder::kNone)
      json_.fail_at(document.recomputed.front().offset, "$.recomputed",
                    "operators run a second time in the planned order or that of the program");
    if (document.num_operators != graph_.num_ops())
      json_.fail_at(document.num_operators_offset, "$.graph.operators",
                    "the graph has " + std::to_string(graph_.num_ops()) + " operators");
    std::vector<Recomputation>& list = document.plan.recomputed;
    for (const PlanDocument::Again& again : document.recomputed) {
      list.push_back({find(again.name, again.offset, "$.recomputed"), std::nullopt});
      if (again.after.has_value())
        list.back().after = find(*again.after, again.offset, "$.recomputed");
    }
    try {
      return recomputing(graph_, list);
    } catch (const InputError& error) {
      json_.fail_at(document.recomputed.front().offset, "$.recomputed", error.what());
    }
  }

  // The graph with all replicas of the plan, if it has several, and buckets by id in the plan.
  std::optional<OpGraph> replicated_graph(PlanDocument& document) const {
    if (!document.plan.replicas.any()) return std::nullopt;
    const auto fail = [&](const std::string& reason) {
      json_.fail_at(document.replicas_offset, "$.replicas", reason);
    };
    check_same_graph(document);
    if (document.plan.order != ExecutionOrder::kPlanned) fail("they run in the planned order only");
    if (document.has_residency() && document.plan.replicas.apart())
      fail("they keep nothing in a host's memory");
    if (document.num_operators + document.recomputed.size() != graph_.num_ops())
      json_.fail_at(document.num_operators_offset, "$.graph.operators",
                    "the graph has " + std::to_string(graph_.num_ops()) + " operators");
    for (std::size_t i = 0; i < document.buckets.size(); ++i)
      for (const PlanDocument::Reduced& tensor : document.buckets[i])
        document.plan.replicas.buckets[i].push_back(
            {find(tensor.producer, tensor.offset, "$.replicas"), tensor.port});
    document.replicas_bound = true;
    try {
      return replicated(graph_, document.plan.replicas);
    } catch (const InputError& error) {
      fail(error.what());
      throw;
    }
  }

  // The graph with the fetches of the plan, if it has any, and these by id in the plan.
  std::optional<OpGraph> residing_graph(PlanDocument& document) const {
    if (!document.has_residency()) return std::nullopt;
    const auto fail = [&](const std::string& reason) {
      json_.fail_at(document.residency_offset, "$.residency", reason);
    };
    check_same_graph(document);
    if (document.plan.order != ExecutionOrder::kPlanned)
      fail("fetches run in the planned order only");
    if (!document.replicas_bound &&
        document.num_operators + document.recomputed.size() != graph_.num_ops())
      json_.fail_at(document.num_operators_offset, "$.graph.operators",
                    "the graph has " + std::to_string(graph_.num_ops()) + " operators");
    return with_residency(document, as_step(recosted(graph_, {}))).graph;
  }

  // The step with the fetches that the plan has.
  Unrolled with_residency(PlanDocument& document, Unrolled step) const {
    const PlanBinder of_step(json_, step.graph);
    of_step.bind_residency(document);
    try {
      return with_fetches(step, document.plan.residency);
    } catch (const InputError& error) {
      json_.fail_at(document.residency_offset, "$.residency", error.what());
    }
  }

  void bind_residency(PlanDocument& document) const {
    Residency& residency = document.plan.residency;
    for (const PlanDocument::Away& entry : document.away) {
      AwayTensor away{find(entry.producer, entry.offset, "$.residency"), entry.port, {}};
      for (const PlanDocument::Fetch& given : entry.fetches) {
        Fetch& fetch = away.fetches.emplace_back();
        if (given.after.has_value()) fetch.after = find(*given.after, entry.offset, "$.residency");
        for (const std::string_view reader : given.readers)
          fetch.readers.push_back(find(reader, entry.offset, "$.residency"));
        std::sort(fetch.readers.begin(), fetch.readers.end());
      }
      residency.away.push_back(std::move(away));
    }
    for (const std::string_view name : document.on_store)
      residency.on_store.push_back(find(name, document.residency_offset, "$.residency"));
  }

  // Of more than one micro-batch. The graph is that of one.
  StepFile bind_step(PlanDocument document) {
    check_same_graph(document);
    if (document.operators.size() != graph_.num_ops()) fail_missing(document);
    std::vector<OpId> ops;
    for (const PlanDocument::Operator& op : document.operators)
      ops.push_back(find(op.name, op.offset, "$.operators"));
    StepFile file{unroll(graph_, document.plan.micro_batches), {}, {}};
    if (document.has_residency()) file.step = with_residency(document, std::move(file.step));
    file.placed.emplace();
    file.placed->device.assign(file.step.graph.num_ops(), DeviceId(0));
    IdVector<OpId, DeviceId> device(graph_.num_ops(), DeviceId(0));
    for (std::size_t i = 0; i < ops.size(); ++i) device[ops[i]] = document.operators[i].slot.device;
    for (const OpId op : file.step.graph.ops()) {
      const OpId original = file.step.original[op];
      file.placed->device[op] =
          original.index() < device.size() ? device[original] : store_of(document);
    }
    file.placed->order = read_order(document, ops, file.step, file.placed->device);
    file.plan = std::move(document.plan);
    for (const PlanDocument::PeakOperator& peak : document.peak_operators) {
      const std::optional<OpId> op = file.step.graph.find(peak.name);
      if (!op.has_value())
        json_.fail_at(peak.offset, "$.devices", "the step has no operator " + in_quotes(peak.name));
      file.plan.devices[peak.device].peak_op = op;
    }
    return file;
  }

 private:
  DeviceOrder read_order(const PlanDocument& document, const std::vector<OpId>& ops,
                         const Unrolled& step, const Placement& placement) const {
    IdVector<OpId, bool> runs(step.graph.num_ops());
    DeviceOrder order(document.runs.size());
    std::size_t count = 0;
    const std::size_t fetches =
        step.graph.num_ops() - std::min(step.first_fetch, step.graph.num_ops());
    for (const DeviceId device : order.keys())
      for (const PlanDocument::Run& run : document.runs[device.index()]) {
        const auto fail = [&](const std::string& reason) {
          json_.fail_at(run.offset, "$.runs[" + std::to_string(device.value()) + "]", reason);
        };
        if (run.op >= ops.size() + fetches)
          fail("there is no operator number " + std::to_string(run.op));
        if (run.op >= ops.size()) {
          const OpId op(step.first_fetch + run.op - ops.size());
          const std::string name = in_quotes(step.graph[op].name);
          if (runs[op]) fail(name + " runs twice");
          if (run.micro_batch.has_value()) fail(name + " runs once per step");
          if (placement[op] != device) fail(name + " is on another device");
          runs[op] = true;
          order[device].push_back(op);
          ++count;
          continue;
        }
        const OpId op = ops[run.op];
        const std::string name = in_quotes(graph_[op].name);
        if (run.micro_batch.has_value() != step.rank[op].has_value())
          fail("operator " + name +
               (step.rank[op].has_value() ? " runs once per micro-batch: say of which"
                                          : " runs once per step, not once per micro-batch"));
        if (run.micro_batch.value_or(0) >= step.micro_batches)
          fail("there is no micro-batch " + std::to_string(*run.micro_batch));
        const OpId copy = step.copy(op, run.micro_batch.value_or(0));
        if (runs[copy]) fail("operator " + name + " runs twice for one micro-batch");
        if (placement[copy] != device) fail("operator " + name + " is on another device");
        runs[copy] = true;
        ++count;
        order[device].push_back(copy);
      }
    if (count != step.first_sum + fetches)
      json_.fail_at(document.runs_offset, "$.runs",
                    "expected " + std::to_string(step.first_sum + fetches) +
                        " runs, one of every operator and micro-batch, found " +
                        std::to_string(count));
    return with_sums_behind(step, order);
  }

  DeviceId store_of(const PlanDocument& document) const {
    const auto& devices = document.plan.cluster.devices;
    for (std::size_t i = 0; i < devices.size(); ++i)
      if (devices[i].name == document.plan.residency.store) return DeviceId(i);
    json_.fail_at(document.residency_offset, "$.residency.store", "there is no such device");
  }

  // A plan of several micro-batches is replayed for that, when it is opened.
  void check_makespan(const PlanDocument& document, const Plan& plan) const {
    Time end;
    for (const OpSlot& slot : plan.schedule.slots) end = std::max(end, slot.end);
    if (end != plan.makespan())
      json_.fail_at(document.makespan_offset, "$.makespan",
                    "the plan claims a step of " + std::to_string(plan.makespan().count()) +
                        " ns, its last operator ends at " + std::to_string(end.count()) + " ns");
  }

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
  PlanWriter(plan, graph, nullptr, text).write();
  return text;
}

std::string plan_to_json(const Plan& plan, const Unrolled& step) {
  std::string text;
  PlanWriter(plan, step.graph, step.micro_batches > 1 ? &step : nullptr, text).write();
  return text;
}

StepFile parse_step_plan(std::string_view text, const std::string& place, OpGraph graph) {
  JsonReader json(text, place);
  PlanDocument document = read_plan_document(json);
  std::optional<OpGraph> original;
  if (auto rewritten = PlanBinder(json, graph).recomputing_graph(document)) {
    original = std::move(graph);
    graph = *std::move(rewritten);
  }
  if (auto all = PlanBinder(json, graph).replicated_graph(document)) {
    if (!original.has_value()) original = std::move(graph);
    graph = *std::move(all);
  }
  if (document.plan.micro_batches == 1)
    if (auto residing = PlanBinder(json, graph).residing_graph(document)) {
      if (!original.has_value()) original = std::move(graph);
      graph = *std::move(residing);
    }
  PlanBinder binder(json, graph);
  if (document.plan.micro_batches > 1) {
    StepFile file = binder.bind_step(std::move(document));
    file.original = original.has_value() ? std::move(original) : std::move(graph);
    return file;
  }
  Plan plan = binder.bind(std::move(document));
  return {as_step(std::move(graph)), std::move(plan), std::nullopt, std::move(original)};
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
