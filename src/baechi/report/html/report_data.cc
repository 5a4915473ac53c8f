// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/html/report_data.h"

#include <array>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "baechi/base/short_text.h"
#include "baechi/base/version.h"
#include "baechi/io/json/json_values.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/report/facts/plan_facts.h"
#include "baechi/report/html/report_operators.h"

namespace baechi {
namespace {

constexpr std::array<std::string_view, 4> kPartNames{"permanent", "temporary", "output", "copy"};
constexpr std::array<std::string_view, 8> kReasonNames{"start",    "input",  "control", "arrival",
                                                       "produced", "device", "queue",   "channel"};

void show_operators(const OpGraph& graph, const Plan& plan, const PlanFacts& facts,
                    ReportOperators& operators) {
  for (const auto& row : facts.bars)
    for (const TimelineBar& bar : row) operators.show(bar.op);
  for (const std::size_t i : facts.transfers)
    operators.show(graph.producer(plan.schedule.transfers[i].tensor));
  for (const PeakFacts& peak : facts.peaks)
    for (const HeldMemory& holder : peak.holders) operators.show(holder.op);
  for (const PathPart& part : facts.path_parts) operators.show(facts.path.links[part.longest].op);
}

// Writes one plan. Times are nanoseconds, amounts are bytes, operators are rows, devices and
// channels are numbers; html/model.js says what each column is.
class PlanWriter {
 public:
  PlanWriter(JsonWriter& json, const OpGraph& graph, const ReportOperators& operators,
             const Plan& plan, const PlanFacts& facts)
      : json_(json), graph_(graph), operators_(operators), plan_(plan), facts_(facts) {
    for (std::size_t i = 0; i < facts.transfers.size(); ++i)
      shown_transfer_.emplace(facts.transfers[i], i);
  }

  void write(std::string_view label) {
    json_.begin_object();
    json_.field("label", label);
    json_.field("method", plan_.method);
    json_.field("makespan", plan_.makespan().count());
    if (plan_.micro_batches > 1) json_.field("micro_batches", plan_.micro_batches);
    if (plan_.replicas.any()) json_.field("replicas", plan_.replicas.count);
    json_.field("order", execution_order_name(plan_.order));
    write_texts("fallbacks", plan_.fallbacks);
    write_texts("notes", plan_.notes);
    write_texts("broken", facts_.broken);
    json_.field("communication", communication_name(plan_.cluster.communication));
    json_.field("sends", sends_name(plan_.cluster.sends));
    if (const auto& messages = plan_.cluster.message_time; messages.has_value())
      json_.field("messages", short_text(messages->send) + " and " + short_text(messages->receive));
    json_.field("cluster", plan_.cluster.name);
    write_bounds();
    write_methods();
    write_links();
    write_channels();
    write_devices();
    write_transfers();
    write_critical_path();
    json_.field("curves_thinned", facts_.curves_thinned);
    json_.field("all_operators", plan_.schedule.slots.size());
    json_.field("all_transfers", plan_.schedule.transfers.size());
    json_.end_object();
  }

 private:
  void write_texts(std::string_view name, const std::vector<std::string>& texts) {
    write_column(json_, name, texts,
                 [](const std::string& text) { return std::string_view(text); });
  }

  void write_bounds() {
    json_.objects(
        "bounds", plan_.bounds,
        [&](const NamedBound& bound) {
          json_.field("name", bound.name);
          json_.field("value", bound.value.count());
        },
        JsonWriter::Layout::kLines);
  }

  void write_methods() {
    json_.begin_array("methods");
    for (const MethodOutcome& row : plan_.methods) {
      json_.begin_object();
      json_.field("method", row.method);
      if (row.makespan.has_value()) json_.field("makespan", row.makespan->count());
      write_texts("fallbacks", row.fallbacks);
      json_.field("reason", row.reason);
      json_.field("devices_used", row.devices_used);
      write_column(json_, "peaks", row.peaks, [](Bytes peak) { return peak.count(); });
      json_.end_object();
    }
    json_.end_array();
  }

  void write_links() {
    static constexpr std::array<std::string_view, 5> kScopes{"default", "other-host", "same-host",
                                                             "kinds", "pair"};
    json_.objects(
        "links", plan_.cluster.links,
        [&](const LinkRule& rule) {
          json_.field("scope", kScopes[static_cast<std::size_t>(rule.scope)]);
          json_.field("from", rule.from);
          json_.field("to", rule.to);
          json_.field("both_ways", rule.both_ways);
          json_.field("latency", rule.latency.count());
          if (rule.bandwidth.has_value()) json_.field("bandwidth", rule.bandwidth->count());
          write_texts("channels", rule.channels);
        },
        JsonWriter::Layout::kLines);
  }

  // "channels": their names; "channel_pairs": [from, to, channel, ...] of pairs that send.
  void write_channels() {
    const Cluster cluster(plan_.cluster);
    write_column(json_, "channels", cluster.channels(),
                 [&](ChannelId id) { return std::string_view(cluster.channel_name(id)); });
    std::map<std::pair<DeviceId, DeviceId>, const Link*> links;
    for (const Transfer& transfer : plan_.schedule.transfers)
      links.emplace(std::pair(transfer.from, transfer.to),
                    &cluster.link(transfer.from, transfer.to));
    json_.begin_array("channel_pairs");
    for (const auto& [pair, link] : links) {
      if (link->channels.empty()) continue;
      json_.begin_array();
      json_.value(pair.first.value());
      json_.value(pair.second.value());
      for (const ChannelId channel : link->channels) json_.value(channel.value());
      json_.end_array();
    }
    json_.end_array();
  }

  void write_devices() {
    json_.begin_array("devices");
    for (const DeviceId id : plan_.devices.keys()) {
      const Device& device = plan_.cluster.devices[id.index()];
      const PlanDevice& seen = plan_.devices[id];
      json_.begin_object();
      json_.field("name", device.name);
      json_.field("kind", device.kind);
      json_.field("host", device.host);
      json_.field("capacity", device.capacity.count());
      json_.field("speed", device.speed.count());
      json_.field("busy", seen.busy.count());
      json_.field("sent", seen.sent.count());
      json_.field("received", seen.received.count());
      write_idle(facts_.waits.idle[id]);
      if (!facts_.bubbles.empty()) write_bubbles(facts_.bubbles[id]);
      write_peak(facts_.peaks[id]);
      if (seen.run_peak.has_value()) json_.field("run_peak", seen.run_peak->count());
      write_curve(facts_.curves[id]);
      write_bars(facts_.bars[id]);
      json_.end_object();
    }
    json_.end_array();
  }

  void write_idle(const IdleTime& idle) {
    json_.begin_object("idle");
    json_.field("elsewhere", idle.elsewhere.count());
    json_.field("queued", idle.queued.count());
    json_.field("moving", idle.moving.count());
    json_.field("other", idle.other.count());
    json_.field("after", idle.after.count());
    json_.end_object();
  }

  void write_bubbles(const DeviceBubbles& told) {
    json_.begin_object("bubbles");
    Time end;  // of the bubble before
    write_column(json_, "gap", told.bubbles, [&](const Bubble& bubble) {
      return (bubble.start - std::exchange(end, bubble.end)).count();
    });
    write_column(json_, "time", told.bubbles,
                 [](const Bubble& bubble) { return (bubble.end - bubble.start).count(); });
    write_column(json_, "cause", told.bubbles,
                 [](const Bubble& bubble) { return static_cast<unsigned>(bubble.cause); });
    write_column(json_, "totals", told.total, [](Time total) { return total.count(); });
    json_.end_object();
  }

  void write_peak(const PeakFacts& peak) {
    json_.field("peak", peak.bytes.count());
    json_.field("peak_at", peak.at.count());
    json_.begin_object("peak_parts");
    for (std::size_t part = 0; part < kPartNames.size(); ++part)
      json_.field(kPartNames[part], peak.parts[part].count());
    json_.end_object();
    json_.begin_array("holders");
    for (const HeldMemory& holder : peak.holders) {
      json_.begin_array();
      json_.value(static_cast<unsigned>(holder.use));
      json_.value(*operators_.row(holder.op));
      json_.value(holder.bytes.count());
      json_.end_array();
    }
    json_.end_array();
    json_.field("more_holders", peak.more_holders);
  }

  // Differences to the point before.
  void write_curve(const MemoryCurve& curve) {
    Time at;
    write_column(json_, "curve_at", curve, [&](const MemoryPoint& point) {
      return (point.at - std::exchange(at, point.at)).count();
    });
    Bytes bytes;
    write_column(json_, "curve_bytes", curve, [&](const MemoryPoint& point) {
      return (point.bytes - std::exchange(bytes, point.bytes)).count();
    });
  }

  void write_bars(const std::vector<TimelineBar>& bars) {
    json_.begin_object("bars");
    write_column(json_, "operator", bars,
                 [&](const TimelineBar& bar) { return *operators_.row(bar.op); });
    Time end;  // of the bar before
    write_column(json_, "gap", bars, [&](const TimelineBar& bar) {
      return (bar.start - std::exchange(end, bar.end)).count();
    });
    write_column(json_, "time", bars,
                 [](const TimelineBar& bar) { return (bar.end - bar.start).count(); });
    write_column(json_, "waited", bars, [&](const TimelineBar& bar) {
      return (bar.start - facts_.waits.last_input[bar.op].ready).count();
    });
    write_column(json_, "cause", bars, [&](const TimelineBar& bar) { return cause(bar.op); });
    write_blocks(bars);
    json_.end_object();
  }

  // [bar, operators, busy time] of bars that stand for several operators.
  void write_blocks(const std::vector<TimelineBar>& bars) {
    json_.begin_array("blocks");
    for (std::size_t i = 0; i < bars.size(); ++i) {
      if (bars[i].count == 1) continue;
      json_.value(i);
      json_.value(bars[i].count);
      json_.value(bars[i].busy.count());
    }
    json_.end_array();
  }

  // What brought the last input: transfer t as -(t + 1), operator o as o + 1, nothing shown as 0.
  std::int64_t cause(OpId op) const {
    const LastInput& last = facts_.waits.last_input[op];
    if (last.transfer.has_value()) {
      const auto shown = shown_transfer_.find(*last.transfer);
      return shown == shown_transfer_.end() ? 0 : -static_cast<std::int64_t>(shown->second) - 1;
    }
    if (!last.op.has_value()) return 0;
    const std::optional<std::size_t> row = operators_.row(*last.op);
    return row.has_value() ? static_cast<std::int64_t>(*row) + 1 : 0;
  }

  void write_transfers() {
    const auto column = [&](std::string_view name, const auto& of) {
      write_column(json_, name, facts_.transfers,
                   [&](std::size_t i) { return of(plan_.schedule.transfers[i]); });
    };
    json_.begin_object("transfers");
    column("operator",
           [&](const Transfer& t) { return *operators_.row(graph_.producer(t.tensor)); });
    column("port", [&](const Transfer& t) {
      return t.tensor.value() - (*graph_.outputs(graph_.producer(t.tensor)).begin()).value();
    });
    column("from", [](const Transfer& t) { return t.from.value(); });
    column("to", [](const Transfer& t) { return t.to.value(); });
    column("bytes", [&](const Transfer& t) { return graph_.size(t.tensor).count(); });
    column("requested", [](const Transfer& t) { return t.requested.count(); });
    column("queued", [](const Transfer& t) { return (t.start - t.requested).count(); });
    column("time", [](const Transfer& t) { return (t.end - t.start).count(); });
    json_.end_object();
  }

  // [reason, start, time, use, operator, device, and of a transfer its number or -1], ...
  void write_critical_path() {
    json_.field("path_links", facts_.path.links.size());
    write_column(json_, "path_totals",
                 std::array{CriticalUse::kCompute, CriticalUse::kTransfer, CriticalUse::kDeviceWait,
                            CriticalUse::kQueueWait},
                 [&](CriticalUse use) { return facts_.path.total(use).count(); });
    write_column(json_, "reasons", kReasonNames, [](std::string_view name) { return name; });
    json_.begin_array("critical_path");
    for (const PathPart& part : facts_.path_parts) {
      const CriticalLink& link = facts_.path.links[part.longest];
      json_.begin_array();
      json_.value(static_cast<unsigned>(link.reason));
      json_.value(part.start.count());
      json_.value((part.end - part.start).count());
      json_.value(static_cast<unsigned>(facts_.path.use(part.longest)));
      json_.value(*operators_.row(link.op));
      json_.value(plan_.schedule.slots[link.op].device.value());
      const auto shown =
          link.transfer.has_value() ? shown_transfer_.find(*link.transfer) : shown_transfer_.end();
      if (link.transfer.has_value())
        json_.value(shown == shown_transfer_.end() ? -1 : static_cast<std::int64_t>(shown->second));
      json_.end_array();
    }
    json_.end_array();
  }

  JsonWriter& json_;
  const OpGraph& graph_;
  const ReportOperators& operators_;
  const Plan& plan_;
  const PlanFacts& facts_;
  std::map<std::size_t, std::size_t> shown_transfer_;  // place in the page by index in the schedule
};

}  // namespace

std::string report_data(const StepGraph& step, std::span<const ReportPlan> plans) {
  const OpGraph& graph = step.graph();
  std::vector<PlanFacts> facts;
  ReportOperators operators(step);
  for (const ReportPlan& shown : plans) {
    facts.push_back(plan_facts(step, *shown.plan));
    show_operators(graph, *shown.plan, facts.back(), operators);
  }
  operators.number();

  std::string text;
  JsonWriter json(text);
  json.begin_object(JsonWriter::Layout::kCompact);
  json.field("baechi", version());
  json.begin_object("graph");
  json.field("name", graph.name());
  json.field("operators", graph.num_ops());
  json.field("edges", graph.num_edges());
  json.field("memory_mode", memory_mode_name(graph.memory_mode()));
  if (graph.batch_size().has_value()) json.field("batch_size", *graph.batch_size());
  json.end_object();
  operators.write(json);
  json.begin_array("plans");
  for (std::size_t i = 0; i < plans.size(); ++i)
    PlanWriter(json, graph, operators, *plans[i].plan, facts[i]).write(plans[i].label);
  json.end_array();
  json.end_object();
  json.finish();
  return text;
}

}  // namespace baechi
