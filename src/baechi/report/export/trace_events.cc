// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/export/trace_events.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "baechi/io/json/json_writer.h"
#include "baechi/report/facts/bubbles.h"
#include "baechi/report/facts/memory_curves.h"
#include "baechi/report/facts/waits.h"

namespace baechi {
namespace {

constexpr unsigned kComputeThread = 1;

// Trace events count in microseconds; three decimals keep every nanosecond.
std::string microseconds_text(Time time) {
  char text[32];
  std::snprintf(text, sizeof text, "%lld.%03lld", static_cast<long long>(time.count() / 1000),
                static_cast<long long>(time.count() % 1000));
  return text;
}

struct Thread {
  unsigned process = 0, thread = 0;
  std::string name;
  Time free;  // when its last slice ends
};

// Slices of one thread must not overlap: where transfers do (parallel communication), a lane has as
// many threads as it needs.
class Lanes {
 public:
  // The thread of the named lane that takes a slice at [start, end). Starts must not decrease.
  std::pair<unsigned, unsigned> take(unsigned process, const std::string& lane, Time start,
                                     Time end) {
    unsigned next = kComputeThread + 1;
    std::size_t same_lane = 0;
    for (Thread& thread : threads_) {
      if (thread.process != process) continue;
      next = std::max(next, thread.thread + 1);
      if (thread.name != lane && !thread.name.starts_with(lane + " ")) continue;
      ++same_lane;
      if (thread.free > start) continue;
      thread.free = end;
      return {process, thread.thread};
    }
    threads_.push_back(
        {process, next, same_lane == 0 ? lane : lane + " " + std::to_string(same_lane + 1), end});
    return {process, next};
  }
  const std::vector<Thread>& threads() const { return threads_; }

 private:
  std::vector<Thread> threads_;
};

struct PlacedTransfer {  // where a transfer's slices are
  std::size_t index = 0;
  std::pair<unsigned, unsigned> sends, receives;
  std::vector<std::pair<unsigned, unsigned>> channels;
};

class TraceWriter {
 public:
  TraceWriter(const StepGraph& step, const Plan& plan)
      : step_(step),
        graph_(step.graph()),
        plan_(plan),
        cluster_(plan.cluster),
        order_(order_of(plan.schedule, graph_, cluster_.num_devices())),
        waits_(find_waits(graph_, plan.schedule, order_)) {}

  std::string write() {
    place_transfers();
    if (step_.micro_batches() > 1) write_pipeline();
    write_names();
    for (const OpId op : graph_.ops()) write_operator(op);
    for (const PlacedTransfer& transfer : transfers_) write_transfer(transfer);
    write_memory();
    // Slices come before what points at them.
    std::stable_sort(events_.begin(), events_.end(),
                     [](const Event& a, const Event& b) { return a.at < b.at; });
    std::string text = "{\"displayTimeUnit\": \"ns\", \"otherData\": " + summary() +
                       ",\n\"traceEvents\": [\n" + names_;
    for (const Event& event : events_) text += ",\n" + event.text;
    return text + "\n]}\n";
  }

 private:
  struct Event {
    Time at;
    std::string text;
  };

  static unsigned process(DeviceId device) { return device.value() + 1; }
  unsigned channel_process() const { return static_cast<unsigned>(cluster_.num_devices()) + 1; }

  std::string summary() const {
    std::string text;
    JsonWriter json(text);
    json.begin_object(JsonWriter::Layout::kInline);
    json.field("graph", graph_.name());
    json.field("method", plan_.method);
    json.field("order", execution_order_name(plan_.order));
    json.field("makespan_ns", plan_.makespan().count());
    json.end_object();
    return text;
  }

  void place_transfers() {
    const auto& all = plan_.schedule.transfers;
    transfers_.resize(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) transfers_[i].index = i;
    std::sort(transfers_.begin(), transfers_.end(),
              [&](const PlacedTransfer& a, const PlacedTransfer& b) {
                return std::tie(all[a.index].start, a.index) <
                       std::tie(all[b.index].start, b.index);
              });
    const bool one_queue = cluster_.communication() == CommunicationMode::kSequential;
    for (PlacedTransfer& placed : transfers_) {
      const Transfer& t = all[placed.index];
      placed.sends =
          lanes_.take(process(t.from), one_queue ? "transfers" : "sends", t.start, t.end);
      placed.receives =
          lanes_.take(process(t.to), one_queue ? "transfers" : "receives", t.start, t.end);
      for (const ChannelId channel : cluster_.link(t.from, t.to).channels)
        placed.channels.push_back(
            lanes_.take(channel_process(), cluster_.channel_name(channel), t.start, t.end));
    }
  }

  // Events that are not yet sorted: {"name": ..., "ph": ..., "pid": ..., "tid": ..., and what
  // `more` adds.
  template <class More>
  std::string event(std::string_view phase, std::string_view name,
                    std::pair<unsigned, unsigned> where, const More& more) {
    std::string text;
    JsonWriter json(text);
    json.begin_object(JsonWriter::Layout::kCompact);
    json.field("name", name);
    json.field("ph", phase);
    json.field("pid", where.first);
    json.field("tid", where.second);
    more(json);
    json.end_object();
    return text;
  }

  template <class Value>
  void write_metadata(std::string_view what, std::pair<unsigned, unsigned> where,
                      std::string_view name, const Value& value) {
    names_ += names_.empty() ? "" : ",\n";
    names_ += event("M", what, where, [&](JsonWriter& json) {
      json.begin_object("args");
      json.field(name, value);
      json.end_object();
    });
  }

  void write_process(unsigned number, std::string_view name) {
    write_metadata("process_name", {number, 0}, "name", name);
    write_metadata("process_sort_index", {number, 0}, "sort_index", number);
  }

  void write_thread(std::pair<unsigned, unsigned> where, std::string_view name) {
    write_metadata("thread_name", where, "name", name);
    write_metadata("thread_sort_index", where, "sort_index", where.second);
  }

  void write_names() {
    for (const DeviceId device : cluster_.devices()) {
      write_process(process(device), cluster_[device].name);
      write_thread({process(device), kComputeThread}, "compute");
    }
    if (cluster_.num_channels() > 0) write_process(channel_process(), "channels");
    for (const Thread& thread : lanes_.threads())
      write_thread({thread.process, thread.thread}, thread.name);
  }

  template <class Args>
  void add_slice(std::string_view name, std::string_view category,
                 std::pair<unsigned, unsigned> where, std::pair<Time, Time> when,
                 const Args& args) {
    events_.push_back({when.first, event("X", name, where, [&](JsonWriter& json) {
                         json.field("cat", category);
                         json.key("ts");
                         json.number(microseconds_text(when.first));
                         json.key("dur");
                         json.number(microseconds_text(when.second - when.first));
                         json.begin_object("args");
                         args(json);
                         json.end_object();
                       })});
  }

  // Passes come before the operators that lie in them.
  void write_pipeline() {
    for (const DeviceId device : cluster_.devices()) write_passes(device);
    const auto bubbles = find_bubbles(step_, cluster_, plan_.schedule);
    for (const DeviceId device : cluster_.devices())
      for (const Bubble& bubble : bubbles[device].bubbles)
        add_slice(kBubbleCauses[static_cast<std::size_t>(bubble.cause)], "idle",
                  lanes_.take(process(device), "idle", bubble.start, bubble.end),
                  {bubble.start, bubble.end}, [](JsonWriter&) {});
  }

  void write_passes(DeviceId device) {
    const std::vector<OpId>& order = order_[device];
    for (std::size_t i = 0; i < order.size();) {
      const std::optional<std::uint32_t> number = step_.micro_batch(order[i]);
      const bool backward = graph_[order[i]].backward;
      const Time start = plan_.schedule.slots[order[i]].start;
      Time end = start;
      for (; i < order.size() && step_.micro_batch(order[i]) == number &&
             graph_[order[i]].backward == backward;
           ++i)
        end = plan_.schedule.slots[order[i]].end;
      if (!number.has_value() || end == start) continue;
      const std::string name = (backward ? "backward " : "forward ") + std::to_string(*number);
      add_slice(name, "pass", {process(device), kComputeThread}, {start, end},
                [&](JsonWriter& json) { json.field("micro_batch", *number); });
    }
  }

  void write_operator(OpId op) {
    const OpSlot& slot = plan_.schedule.slots[op];
    add_slice(graph_[op].name, graph_[op].backward ? "backward" : "forward",
              {process(slot.device), kComputeThread}, {slot.start, slot.end},
              [&](JsonWriter& json) {
                json.field("kind", graph_[op].kind);
                if (const auto number = step_.micro_batch(op)) json.field("micro_batch", *number);
                json.field("permanent", graph_[op].permanent.count());
                json.field("temporary", graph_[op].temporary.count());
                json.field("outputs", graph_.output_bytes(op).count());
                json.field("waited_ns", (slot.start - waits_.last_input[op].ready).count());
              });
  }

  void write_transfer(const PlacedTransfer& placed) {
    const Transfer& t = plan_.schedule.transfers[placed.index];
    const OpId producer = graph_.producer(t.tensor);
    const auto args = [&](JsonWriter& json) {
      json.field("tensor", graph_[producer].name);
      json.field("from", cluster_[t.from].name);
      json.field("to", cluster_[t.to].name);
      json.field("bytes", graph_.size(t.tensor).count());
      json.field("queued_ns", (t.start - t.requested).count());
    };
    const std::string name(graph_[producer].name);
    add_slice(name + " to " + cluster_[t.to].name, "transfer", placed.sends, {t.start, t.end},
              args);
    add_slice(name + " from " + cluster_[t.from].name, "transfer", placed.receives,
              {t.start, t.end}, args);
    for (const auto& channel : placed.channels)
      add_slice(name, "transfer", channel, {t.start, t.end}, args);
    add_flow(placed, t, producer);
  }

  // From the producer over the sending and the receiving slice to the first reader.
  void add_flow(const PlacedTransfer& placed, const Transfer& t, OpId producer) {
    std::optional<OpId> reader;
    for (const Edge& edge : graph_.consumers(t.tensor)) {
      const OpSlot& slot = plan_.schedule.slots[edge.to];
      if (slot.device != t.to || slot.start < t.end) continue;
      if (!reader.has_value() || slot.start < plan_.schedule.slots[*reader].start) reader = edge.to;
    }
    if (!reader.has_value()) return;  // not so in a plan that keeps the rules
    const OpSlot& made = plan_.schedule.slots[producer];
    const auto add = [&](std::string_view phase, std::pair<unsigned, unsigned> where, Time at) {
      events_.push_back({at, event(phase, "tensor", where, [&](JsonWriter& json) {
                           json.field("cat", "transfer");
                           json.field("id", placed.index + 1);
                           json.key("ts");
                           json.number(microseconds_text(at));
                           if (phase == "f") json.field("bp", "e");
                         })});
    };
    add("s", {process(t.from), kComputeThread}, made.start);
    add("t", placed.sends, t.start);
    add("t", placed.receives, t.start);
    add("f", {process(t.to), kComputeThread}, plan_.schedule.slots[*reader].start);
  }

  void write_memory() {
    const auto curves = memory_curves(graph_, plan_.schedule, cluster_.num_devices());
    for (const DeviceId device : cluster_.devices()) {
      for (const MemoryPoint& point : curves[device])
        events_.push_back(
            {point.at, event("C", "memory", {process(device), 0}, [&](JsonWriter& json) {
               json.key("ts");
               json.number(microseconds_text(point.at));
               json.begin_object("args");
               json.field("bytes", point.bytes.count());
               json.end_object();
             })});
    }
  }

  const StepGraph step_;
  const OpGraph& graph_;
  const Plan& plan_;
  Cluster cluster_;
  DeviceOrder order_;
  Waits waits_;
  Lanes lanes_;
  std::vector<PlacedTransfer> transfers_;
  std::vector<Event> events_;
  std::string names_;  // the metadata events
};

}  // namespace

std::string trace_events(const StepGraph& step, const Plan& plan) {
  return TraceWriter(step, plan).write();
}

}  // namespace baechi
