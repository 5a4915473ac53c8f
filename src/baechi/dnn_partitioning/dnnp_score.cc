// SPDX-License-Identifier: Apache-2.0
#include "baechi/dnn_partitioning/dnnp_score.h"

#include <algorithm>
#include <array>
#include <utility>

#include "baechi/base/error.h"

namespace baechi {
namespace {

constexpr std::array kObjectives{
    DnnpObjectiveEntry{"dnnp-latency", DnnpObjective::kLatency,
                       "the time from first to last, an accelerator's operators being one call"},
    DnnpObjectiveEntry{"dnnp-maxload", DnnpObjective::kMaxLoad,
                       "the largest load of a device: the pace of a pipeline"},
};

// A place from which tensors go out and come in, standing for the host, and how much of the time
// counts.
struct Opposite {
  DeviceId device;
  std::int64_t share;  // 1, or 2 for half of it
};

std::optional<Opposite> opposite(const CostModel& costs, DeviceId device) {
  std::optional<Opposite> other;
  for (const DeviceId candidate : costs.cluster().devices()) {
    if (candidate == device) continue;
    if (costs.cluster()[candidate].kind == kHostKind) return Opposite{candidate, 1};
    if (!other.has_value()) other = Opposite{candidate, 2};
  }
  return other;
}

void check(const CostModel& costs, const Placement& placement) {
  const OpGraph& graph = costs.graph();
  const auto named = [&](OpId op) { return "operator '" + std::string(graph[op].name) + "'"; };
  for (const OpId op : graph.ops()) {
    if (!costs.may_run(op, placement[op]))
      throw InputError(named(op) + " cannot run on device '" + costs.cluster()[placement[op]].name +
                       "'");
    if (const auto group = graph[op].group)
      if (const OpId first = graph.members(*group).front(); placement[first] != placement[op])
        throw InputError(named(first) + " and " + named(op) +
                         " share a colocation group and are on different devices");
  }
}

// Whether data of `op` is read on a device other than its own.
bool read_elsewhere(const OpGraph& graph, const Placement& placement, OpId op) {
  return std::ranges::any_of(graph.out_edges(op), [&](const Edge& edge) {
    return edge.tensor.has_value() && placement[edge.to] != placement[op];
  });
}

void add_loads(const CostModel& costs, const DnnpCosts& moves, const Placement& placement,
               DnnpScore& score) {
  const OpGraph& graph = costs.graph();
  score.loads.assign(costs.cluster().num_devices(), Time(0));
  std::optional<DeviceId> host;
  for (const DeviceId device : costs.cluster().devices())
    if (!host.has_value() && moves.is_host(device)) host = device;
  std::vector<DeviceId> readers;
  for (const OpId op : graph.ops()) {
    const DeviceId home = placement[op];
    score.loads[moves.is_host(home) ? *host : home] += *costs.compute_time(op, home);
    if (!moves.is_host(home) && read_elsewhere(graph, placement, op))
      score.loads[home] += moves.out(op, home);
    readers.clear();
    for (const Edge& edge : graph.out_edges(op))
      if (const DeviceId to = placement[edge.to];
          edge.tensor.has_value() && to != home && !moves.is_host(to))
        readers.push_back(to);
    std::ranges::sort(readers);
    readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
    for (const DeviceId to : readers) score.loads[to] += moves.in(op, to);
  }
  score.value = *std::ranges::max_element(score.loads);
}

// The calls of every accelerator. A set of operators that no path leaves and enters again is one
// call; another one is cut into pieces, which never run an operator before its ancestors.
class Calls {
 public:
  Calls(const CostModel& costs, const DnnpCosts& moves, const Placement& placement,
        const CancelFlag* cancel)
      : costs_(costs),
        graph_(costs.graph()),
        moves_(moves),
        placement_(placement),
        of_(graph_.num_ops(), 0) {
    for (const DeviceId device : costs.cluster().devices())
      if (!moves.is_host(device)) {
        throw_if_cancelled(cancel);
        cut(device);
      }
    for (const OpId op : graph_.ops())
      if (moves.is_host(placement[op])) of_[op] = add(op);
  }

  // Absent when calls wait for each other.
  std::optional<Time> run() {
    std::vector<std::size_t> waits(calls_.size(), 0);
    for (const OpId op : graph_.ops())
      for (const Edge& edge : graph_.in_edges(op))
        if (of_[edge.from] != of_[op]) ++waits[of_[op]];
    std::vector<std::size_t> ready;
    for (std::size_t call = 0; call < calls_.size(); ++call)
      if (waits[call] == 0) ready.push_back(call);
    std::size_t done = 0;
    Time last;
    while (!ready.empty()) {
      const std::size_t call = ready.back();
      ready.pop_back();
      ++done;
      finish(calls_[call]);
      last = std::max(last, calls_[call].finish);
      for (const OpId op : calls_[call].ops)
        for (const Edge& edge : graph_.out_edges(op))
          if (of_[edge.to] != call && --waits[of_[edge.to]] == 0) ready.push_back(of_[edge.to]);
    }
    if (done < calls_.size()) return std::nullopt;
    return last;
  }

  std::vector<DnnpCall> accelerator_calls() const {
    std::vector<DnnpCall> found;
    for (const Call& call : calls_)
      if (const DeviceId device = placement_[call.ops.front()]; !moves_.is_host(device))
        found.push_back({device, call.ops.size(), call.finish});
    return found;
  }

 private:
  struct Call {
    std::vector<OpId> ops;
    Time finish;
  };

  std::size_t add(OpId op) {
    calls_.push_back({{op}, {}});
    return calls_.size() - 1;
  }

  void cut(DeviceId device) {
    const bool whole = is_contiguous(device);
    IdVector<OpId, std::size_t> piece(graph_.num_ops(), 0);
    std::vector<std::optional<std::size_t>> call_of;
    for (const OpId op : graph_.topological_order()) {
      const bool here = placement_[op] == device;
      for (const Edge& edge : graph_.in_edges(op))
        piece[op] =
            std::max(piece[op], piece[edge.from] + (placement_[edge.from] == device ? 0 : 1));
      if (!here) continue;
      piece[op] = whole ? 1 : std::max<std::size_t>(piece[op], 1);
      if (call_of.size() <= piece[op]) call_of.resize(piece[op] + 1);
      std::optional<std::size_t>& call = call_of[piece[op]];
      if (call.has_value())
        calls_[*call].ops.push_back(op);
      else
        call = add(op);
      of_[op] = *call;
    }
  }

  // No path leaves the device and comes back.
  bool is_contiguous(DeviceId device) const {
    IdVector<OpId, bool> after(graph_.num_ops(), false);  // elsewhere, after an operator of it
    for (const OpId op : graph_.topological_order()) {
      const bool here = placement_[op] == device;
      for (const Edge& edge : graph_.in_edges(op)) {
        if (here && after[edge.from]) return false;
        if (!here && (after[edge.from] || placement_[edge.from] == device)) after[op] = true;
      }
    }
    return true;
  }

  // Inputs come in, everything is computed, outputs go out, and all of them are there at the end.
  void finish(Call& call) {
    const DeviceId device = placement_[call.ops.front()];
    const bool host = moves_.is_host(device);
    const std::size_t self = of_[call.ops.front()];
    Time ready, work;
    std::vector<OpId> sources;
    for (const OpId op : call.ops) {
      work += *costs_.compute_time(op, device);
      for (const Edge& edge : graph_.in_edges(op)) {
        if (of_[edge.from] == self) continue;
        ready = std::max(ready, calls_[of_[edge.from]].finish);
        if (edge.tensor.has_value()) sources.push_back(edge.from);
      }
      if (!host && std::ranges::any_of(graph_.out_edges(op), [&](const Edge& edge) {
            return edge.tensor.has_value() && of_[edge.to] != self;
          }))
        work += moves_.out(op, device);
    }
    std::ranges::sort(sources);
    sources.erase(std::unique(sources.begin(), sources.end()), sources.end());
    if (!host)
      for (const OpId source : sources) work += moves_.in(source, device);
    call.finish = ready + work;
  }

  const CostModel& costs_;
  const OpGraph& graph_;
  const DnnpCosts& moves_;
  const Placement& placement_;
  IdVector<OpId, std::size_t> of_;  // the call that runs it
  std::vector<Call> calls_;
};

}  // namespace

std::span<const DnnpObjectiveEntry> dnnp_objectives() { return kObjectives; }

DnnpObjective find_dnnp_objective(std::string_view name) {
  std::string known;
  for (const DnnpObjectiveEntry& entry : kObjectives) {
    if (entry.name == name) return entry.objective;
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw InputError("unknown objective '" + std::string(name) + "'; there are " + known);
}

DnnpCosts::DnnpCosts(const CostModel& costs, const CancelFlag* cancel) {
  const OpGraph& graph = costs.graph();
  const Cluster& cluster = costs.cluster();
  std::vector<std::optional<Opposite>> opposites;
  for (const DeviceId device : cluster.devices()) {
    host_.push_back(cluster[device].kind == kHostKind);
    opposites.push_back(opposite(costs, device));
  }
  for (const OpId op : graph.ops()) {
    if (op.index() % 256 == 0) throw_if_cancelled(cancel);
    for (const DeviceId device : cluster.devices()) {
      Time out, in;
      if (const auto other = opposites[device.index()]; other.has_value() && !host_[device])
        for (const TensorId tensor : graph.outputs(op)) {
          if (graph.consumers(tensor).empty()) continue;
          out += costs.transfer_time(tensor, device, other->device);
          in += costs.transfer_time(tensor, other->device, device);
        }
      const std::int64_t share = opposites[device.index()].value_or(Opposite{device, 1}).share;
      out_.push_back(Time((out.count() + share - 1) / share));
      in_.push_back(Time((in.count() + share - 1) / share));
    }
  }
}

DnnpScore dnnp_score(const CostModel& costs, const Placement& placement, DnnpObjective objective,
                     const CancelFlag* cancel) {
  check(costs, placement);
  const DnnpCosts moves(costs, cancel);
  DnnpScore score;
  score.memory.assign(costs.cluster().num_devices(), Bytes(0));
  for (const OpId op : costs.graph().ops())
    score.memory[placement[op]] += costs.graph()[op].permanent;
  score.fits = std::ranges::all_of(costs.cluster().devices(), [&](DeviceId device) {
    return moves.is_host(device) || score.memory[device] <= costs.cluster()[device].capacity;
  });
  if (objective == DnnpObjective::kMaxLoad) {
    add_loads(costs, moves, placement, score);
    return score;
  }
  Calls calls(costs, moves, placement, cancel);
  score.value = calls.run();
  if (score.value.has_value()) score.calls = calls.accelerator_calls();
  return score;
}

}  // namespace baechi
