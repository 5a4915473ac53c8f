// SPDX-License-Identifier: Apache-2.0
// Explanations as JSON documents (docs/how_to/explain.md).
#include <cstddef>
#include <cstdint>
#include <string>

#include "baechi/io/json/json_writer.h"
#include "baechi/report/text/explanation_text.h"

namespace baechi {
namespace {

using Layout = JsonWriter::Layout;

const char* reason_name(CriticalReason reason) {
  switch (reason) {
    case CriticalReason::kStepStart:
      return "start";
    case CriticalReason::kInput:
      return "input";
    case CriticalReason::kControl:
      return "control";
    case CriticalReason::kArrival:
      return "arrival";
    case CriticalReason::kProduced:
      return "produced";
    case CriticalReason::kBusyDevice:
      return "busy device";
    case CriticalReason::kBusyQueue:
      return "busy queue";
    case CriticalReason::kBusyChannel:
      break;
  }
  return "busy channel";
}

const char* use_name(CriticalUse use) {
  switch (use) {
    case CriticalUse::kCompute:
      return "compute";
    case CriticalUse::kTransfer:
      return "transfer";
    case CriticalUse::kDeviceWait:
      return "device wait";
    case CriticalUse::kQueueWait:
      break;
  }
  return "queue wait";
}

class PlanJson {
 public:
  PlanJson(const Explained& of, const PlanExplanation& told, std::string& out)
      : graph_(of.graph),
        cluster_(of.cluster),
        plan_(of.plan),
        pipeline_(of.pipeline),
        told_(told),
        json_(out) {}

  void write() {
    json_.begin_object();
    json_.field("makespan", plan_.makespan().count());
    json_.field("order", execution_order_name(plan_.order));
    json_.field("bottleneck", bottleneck_name(told_.bottleneck));
    if (told_.busiest.has_value()) json_.field("busiest", cluster_[*told_.busiest].name);
    write_times();
    json_.begin_object("bounds", Layout::kInline);
    for (const NamedBound& bound : plan_.bounds) json_.field(bound.name, bound.value.count());
    json_.end_object();
    json_.begin_array("critical_path");
    for (std::size_t i = 0; i < told_.path.links.size(); ++i) write_link(i);
    json_.end_array();
    if (pipeline_ != nullptr) write_pipeline(json_, plan_, *pipeline_);
    json_.begin_array("devices");
    for (const DeviceId device : told_.peaks.keys()) write_device(device);
    json_.end_array();
    write_second_runs();
    write_host();
    json_.end_object();
    json_.finish();
  }

 private:
  void write_second_runs() {
    if (told_.second_runs.empty()) return;
    json_.objects("second_runs", told_.second_runs, [&](const SecondRunFacts& run) {
      json_.field("operator", run.name);
      json_.field("device", cluster_[run.device].name);
      json_.field("time", run.time.count());
      json_.field("bytes", run.bytes.count());
      if (plan_.micro_batches == 1) {
        json_.field("from", run.gaps.front().from.count());
        json_.field("until", run.gaps.front().until.count());
      } else {
        json_.field("dropped", run.dropped().count());
        json_.field("at_once", static_cast<std::int64_t>(run.at_once));
      }
    });
  }

  void write_host() {
    if (told_.host.links.empty()) return;
    json_.objects("host_links", told_.host.links, [&](const LinkFacts& link) {
      json_.field("device", cluster_[link.device].name);
      json_.field("fetches", static_cast<std::int64_t>(link.fetches));
      json_.field("fetched", link.fetched.count());
      json_.field("fetching", link.fetching.count());
      json_.field("puts", static_cast<std::int64_t>(link.puts));
      json_.field("put", link.put.count());
      json_.field("putting", link.putting.count());
    });
    json_.begin_array("fetches");
    for (const FetchFacts& fetch : told_.host.fetches) write_fetch(fetch);
    json_.end_array();
  }

  void write_fetch(const FetchFacts& fetch) {
    json_.begin_object(Layout::kInline);
    json_.field("operator", graph_[fetch.of].name);
    json_.field("device", cluster_[fetch.device].name);
    json_.field("bytes", fetch.bytes.count());
    json_.field("start", fetch.start.count());
    json_.field("end", fetch.end.count());
    if (fetch.during.has_value()) json_.field("during", graph_[*fetch.during].name);
    json_.field("reader", graph_[fetch.reader].name);
    json_.field("early", fetch.early.count());
    json_.end_object();
  }

  void write_times() {
    json_.begin_object("critical_times", Layout::kInline);
    for (const CriticalUse use : {CriticalUse::kCompute, CriticalUse::kTransfer,
                                  CriticalUse::kQueueWait, CriticalUse::kDeviceWait})
      json_.field(use_name(use), told_.path.total(use).count());
    json_.end_object();
  }

  void write_link(std::size_t i) {
    const CriticalLink& link = told_.path.links[i];
    json_.begin_object(Layout::kInline);
    json_.field("operator", graph_[link.op].name);
    if (link.transfer.has_value()) {
      const Transfer& transfer = plan_.schedule.transfers[*link.transfer];
      json_.field("from", cluster_[transfer.from].name);
      json_.field("to", cluster_[transfer.to].name);
      json_.field("bytes", graph_.size(transfer.tensor).count());
    } else {
      json_.field("device", cluster_[plan_.schedule.slots[link.op].device].name);
    }
    json_.field("ready", link.ready.count());
    json_.field("start", link.start.count());
    json_.field("end", link.end.count());
    json_.field("use", use_name(told_.path.use(i)));
    json_.field("reason", reason_name(link.reason));
    if (link.queue.has_value()) json_.field("queue", cluster_[*link.queue].name);
    if (link.channel.has_value()) json_.field("channel", cluster_.channel_name(*link.channel));
    json_.end_object();
  }

  template <class Parts>
  void write_parts(const Parts& parts) {
    json_.field("permanent", parts.permanent.count());
    json_.field("temporary", parts.temporary.count());
    json_.field("outputs", parts.outputs.count());
    json_.field("received", parts.copies.count());
  }

  void write_device(DeviceId device) {
    const PlanDevice& seen = plan_.devices[device];
    json_.begin_object();
    json_.field("name", cluster_[device].name);
    json_.field("busy", seen.busy.count());
    if (pipeline_ != nullptr) write_bubbles(json_, pipeline_->bubbles[device]);
    json_.field("capacity", cluster_[device].capacity.count());
    json_.field("peak", seen.peak.count());
    if (seen.run_peak.has_value()) json_.field("run_peak", seen.run_peak->count());
    json_.field("peak_at", seen.peak_at.count());
    if (seen.peak_op.has_value()) json_.field("peak_operator", graph_[*seen.peak_op].name);
    write_parts(told_.peaks[device]);
    json_.objects("holders", told_.peaks[device].holders, [&](const MemoryHolder& holder) {
      json_.field("operator", graph_[holder.op].name);
      json_.field("operators", holder.num_ops);
      json_.field("bytes", holder.total().count());
      write_parts(holder);
    });
    json_.end_object();
  }

  const OpGraph& graph_;
  const Cluster& cluster_;
  const Plan& plan_;
  const PipelineExplanation* pipeline_;
  const PlanExplanation& told_;
  JsonWriter json_;
};

void write_alternative(JsonWriter& json, const Cluster& cluster, const Alternative& there) {
  json.begin_object(Layout::kInline);
  json.field("device", cluster[there.device].name);
  json.field("runs", there.obstacle.empty());
  if (there.obstacle.empty()) {
    json.field("inputs", there.inputs.count());
    json.field("start", there.start.count());
    json.field("finish", there.finish.count());
    json.field("makespan", there.makespan.count());
    json.field("peak", there.peak.count());
    json.field("capacity", cluster[there.device].capacity.count());
    json.field("fits", !there.runs_over.has_value());
    if (there.runs_over.has_value()) {
      json.field("runs_over", cluster[*there.runs_over].name);
      json.field("over", there.over.count());
    }
  } else {
    json.field("reason", there.obstacle);
  }
  json.end_object();
}

}  // namespace

std::string explanation_json(const Explained& of, const PlanExplanation& told) {
  std::string text;
  PlanJson(of, told, text).write();
  return text;
}

std::string explanation_json(const Explained& of, const OperatorExplanation& told) {
  return json_document([&](JsonWriter& json) {
    json.field("operator", of.graph[told.op].name);
    json.field("device", of.cluster[told.device].name);
    json.field("makespan", of.plan.makespan().count());
    json.field("inputs", told.ready.count());
    json.field("start", told.start.count());
    json.field("end", told.end.count());
    json.field("critical", told.critical);
    json.values("moves_along", told.moves_along, [&](const OpId op) { return of.graph[op].name; });
    json.begin_array("alternatives");
    for (const Alternative& there : told.alternatives) write_alternative(json, of.cluster, there);
    json.end_array();
  });
}

}  // namespace baechi
