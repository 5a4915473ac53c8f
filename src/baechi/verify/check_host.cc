// SPDX-License-Identifier: Apache-2.0
#include "baechi/verify/check_host.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>

#include "baechi/base/in_quotes.h"
#include "baechi/graph/topological_order.h"

namespace baechi {
namespace {

struct Turn {  // of a host's thread: an operator and its transfers
  Time begin, end;
  OpId op;
};

class HostCheck {
 public:
  HostCheck(const OpGraph& graph, const Cluster& cluster, const Schedule& schedule,
            const Sentences& say, const std::function<void(const std::string&)>& report)
      : graph_(graph), cluster_(cluster), schedule_(schedule), say_(say), report_(report) {}

  void check() {
    const bool asks = cluster_.host_time().has_value();
    const std::size_t moments = schedule_.asked.size();
    if (moments != (asks ? graph_.num_ops() : 0)) {
      report_("the plan says of " + std::to_string(moments) +
              " operators when they are asked for, " +
              (asks ? "the graph has " + std::to_string(graph_.num_ops())
                    : std::string("and its cluster has no host time")));
      return;
    }
    if (!asks) return;
    std::map<std::string, std::vector<Turn>> threads;
    std::vector<std::int64_t> copies(graph_.num_ops(), 0);
    for (const Transfer& transfer : schedule_.transfers)
      ++copies[graph_.producer(transfer.tensor).index()];
    for (const OpId op : graph_.ops()) {
      const Time asked = schedule_.asked[op];
      const Time call = runs(op) ? cluster_.host_time()->call : Time(0);
      threads[cluster_[schedule_.slots[op].device].host].push_back(
          {asked - call, asked + cluster_.host_time()->send * copies[op.index()], op});
    }
    for (auto& [host, turns] : threads) check_thread(host, turns);
    for (const OpId op : graph_.ops()) check_inputs(op);
    check_devices();
  }

 private:
  bool runs(OpId op) const { return schedule_.slots[op].start < schedule_.slots[op].end; }

  void check_thread(const std::string& host, std::vector<Turn>& turns) {
    std::sort(turns.begin(), turns.end(), [](const Turn& a, const Turn& b) {
      return std::tie(a.begin, a.end, a.op) < std::tie(b.begin, b.end, b.op);
    });
    Time now = cluster_.host_time()->step;
    for (const Turn& turn : turns) {
      if (turn.begin != now)
        return report_("host " + in_quotes(host) + " begins to ask for " + say_.op(turn.op) +
                       " at " + Sentences::time(turn.begin) + ", not at " + Sentences::time(now) +
                       ", when it has asked for what comes before");
      now = turn.end;
    }
  }

  void check_inputs(OpId op) {
    if (!runs(op)) return;
    for (const Edge& edge : graph_.in_edges(op)) {
      if (!runs(edge.from) || schedule_.asked[edge.from] <= schedule_.asked[op]) continue;
      const DeviceId from = schedule_.slots[edge.from].device, to = schedule_.slots[op].device;
      if (cluster_[from].host != cluster_[to].host) continue;
      report_(say_.op(op) + " is asked for at " + Sentences::time(schedule_.asked[op]) +
              ", before " + say_.op(edge.from) + ", which it waits for, at " +
              Sentences::time(schedule_.asked[edge.from]));
    }
  }

  // A device works off what it is asked for in that order.
  void check_devices() {
    std::vector<OpId> ops;
    for (const OpId op : graph_.ops())
      if (runs(op)) ops.push_back(op);
    std::sort(ops.begin(), ops.end(), [&](OpId a, OpId b) {
      return std::tuple(schedule_.slots[a].start, a) < std::tuple(schedule_.slots[b].start, b);
    });
    IdVector<DeviceId, std::optional<OpId>> last(cluster_.num_devices());
    for (const OpId op : ops) {
      std::optional<OpId>& before = last[schedule_.slots[op].device];
      if (before.has_value() && schedule_.asked[op] < schedule_.asked[*before])
        report_(say_.op(op) + " is asked for before " + say_.op(*before) + ", which " +
                say_.device(schedule_.slots[op].device) + " runs first");
      before = op;
    }
  }

  const OpGraph& graph_;
  const Cluster& cluster_;
  const Schedule& schedule_;
  const Sentences& say_;
  const std::function<void(const std::string&)>& report_;
};

}  // namespace

void check_host(const OpGraph& graph, const Cluster& cluster, const Schedule& schedule,
                const Sentences& say, const std::function<void(const std::string&)>& report) {
  HostCheck(graph, cluster, schedule, say, report).check();
}

void check_asked_in_program_order(const OpGraph& graph, const Cluster& cluster,
                                  const Schedule& schedule, const Sentences& say,
                                  const std::function<void(const std::string&)>& report) {
  if (!cluster.host_time().has_value()) return;
  std::map<std::string, OpId> last;
  for (const OpId op : program_order(graph)) {
    if (graph[op].variable) continue;
    const auto [before, first] = last.emplace(cluster[schedule.slots[op].device].host, op);
    if (!first && schedule.asked[op] < schedule.asked[before->second])
      report(say.op(op) + " is asked for before " + say.op(before->second) +
             ", which comes first in the graph's file");
    before->second = op;
  }
}

std::vector<Time> asked_transfers(const Cluster& cluster, const OpGraph& graph,
                                  const Schedule& schedule) {
  std::vector<Time> asked;
  std::optional<OpId> of;
  Time now;
  for (const Transfer& transfer : schedule.transfers) {
    const OpId producer = graph.producer(transfer.tensor);
    if (of != producer) now = schedule.asked[producer];
    of = producer;
    now += cluster.host_time()->send;
    asked.push_back(now);
  }
  return asked;
}

}  // namespace baechi
