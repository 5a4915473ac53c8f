// SPDX-License-Identifier: Apache-2.0
// A plan as torch.distributed.pipelining runs it.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/graph/unroll.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/report/export/layer_formats.h"
#include "baechi/report/export/layers.h"

namespace baechi {
namespace {

// Of a stage and a micro-batch. With the gradients by inputs and by weights one after the other it
// is one action, B.
enum class Step : std::uint8_t { kForward, kInput, kWeight };
constexpr std::array kSteps{Step::kForward, Step::kInput, Step::kWeight};
constexpr std::size_t index(Step step) { return static_cast<std::size_t>(step); }

class Chain {
 public:
  Chain(const OpGraph& graph, const Plan& plan)
      : graph_(graph), plan_(plan), once_(once_per_step(graph)), stages_(chain_of(graph, plan)) {
    find_ranks();
    for (const OpId op : graph.topological_order())
      if (!once_[op]) stage_.try_emplace(op, stage_of(op));
    check_neighbours();
    check_groups();
    find_steps();
  }

  const std::vector<Stage>& stages() const { return stages_; }
  std::size_t rank(std::size_t stage) const { return rank_.at(stages_[stage].device); }
  std::size_t ranks() const { return rank_.size(); }
  // The operators of a stage that run in a step, in topological order.
  const std::vector<OpId>& ops(std::size_t stage, Step step) const {
    return ops_[stage][index(step)];
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw InputError(graph_.name(), "the plan is no chain of stages: " + why);
  }
  std::string said(OpId op) const { return in_quotes(graph_[op].name); }
  std::string said(std::size_t stage) const {
    return "stage " + std::to_string(stage) + " (" +
           plan_.cluster.devices[stages_[stage].device.index()].name + ")";
  }

  void find_ranks() {
    std::set<DeviceId> used;
    for (const Stage& stage : stages_) used.insert(stage.device);
    for (const DeviceId device : used) rank_.emplace(device, rank_.size());
  }

  std::optional<std::size_t> stage_of_module(OpId op) const {
    const std::string name = module_name(graph_, op);
    const auto inside = [&](const std::string& module) {
      return name == module || (name.starts_with(module) && name[module.size()] == '.');
    };
    for (std::size_t i = 0; i < stages_.size(); ++i)
      for (const auto* modules : {&stages_[i].before, &stages_[i].layers, &stages_[i].after})
        if (std::ranges::any_of(*modules, inside)) return i;
    return std::nullopt;
  }

  // What is in no module of a stage is with what it reads; a backward operator is with its forward.
  std::size_t stage_of(OpId op) const {
    if (const auto forward = graph_[op].forward; forward.has_value() && stage_.contains(*forward))
      return stage_.at(*forward);
    if (const auto named = stage_of_module(op)) return *named;
    std::optional<std::size_t> stage;
    for (const Edge& edge : graph_.in_edges(op))
      if (const auto known = stage_.find(edge.from); known != stage_.end())
        stage = graph_[op].backward ? std::min(stage.value_or(stages_.size()), known->second)
                                    : std::max(stage.value_or(0), known->second);
    return stage.value_or(0);
  }

  // What has a backward operator; where none names its forward one, what weights went into.
  IdVector<OpId, bool> trained() const {
    IdVector<OpId, bool> found(graph_.num_ops(), false);
    bool linked = false;
    for (const OpId op : graph_.ops())
      if (const auto forward = graph_[op].forward) linked = found[*forward] = true;
    if (linked) return found;
    for (const OpId op : graph_.topological_order()) {
      if (once_[op]) continue;
      found[op] = graph_[op].permanent > Bytes(0);
      for (const Edge& edge : graph_.in_edges(op)) found[op] = found[op] || found[edge.from];
    }
    return found;
  }

  // Stages hand on what is trained to the next one alone, and gradients to the one before. Masks
  // and positions each stage has its own of.
  void check_neighbours() const {
    const IdVector<OpId, bool> trained = this->trained();
    for (const OpId op : graph_.ops())
      for (const Edge& edge : graph_.out_edges(op))
        if (edge.tensor.has_value() && !once_[op] && !once_[edge.to] &&
            (trained[op] || graph_[op].backward))
          check_edge(edge);
  }

  void check_edge(const Edge& edge) const {
    const std::size_t from = stage_.at(edge.from), to = stage_.at(edge.to);
    const bool back = graph_[edge.to].backward;
    if (from == to || (back && !graph_[edge.from].backward)) return;  // kept since the forward pass
    if (back ? from == to + 1 : to == from + 1) return;
    refuse(
        said(edge.from) + " of " + said(from) + " is read by " + said(edge.to) + " of " + said(to) +
        ", and torch.distributed.pipelining hands tensors to the next stage only: move a border, "
        "or plan by a method for equal layers, such as 1f1b");
  }

  // Where weights are shared each stage would have a copy, and the copies would not stay equal.
  void check_groups() const {
    for (const GroupId group : graph_.groups()) {
      std::optional<OpId> first;
      for (const OpId op : graph_.members(group)) {
        if (once_[op] || graph_[op].backward) continue;
        if (first.has_value() && stage_.at(*first) != stage_.at(op))
          refuse(said(*first) + " and " + said(op) + " belong together (they share weights), and " +
                 "are parts of " + said(stage_.at(*first)) + " and " + said(stage_.at(op)));
        if (!first.has_value()) first = op;
      }
    }
  }

  // Gradients that an earlier stage waits for are by inputs, the rest by weights. The first stage
  // has no inputs that want one.
  void find_steps() {
    ops_.resize(stages_.size());
    IdVector<OpId, bool> awaited(graph_.num_ops(), false);
    const auto order = graph_.topological_order();
    for (auto at = order.rbegin(); at != order.rend(); ++at) {
      if (once_[*at] || !graph_[*at].backward) continue;
      for (const Edge& edge : graph_.out_edges(*at))
        if (!once_[edge.to] && (awaited[edge.to] || stage_.at(edge.to) < stage_.at(*at)))
          awaited[*at] = true;
    }
    for (const OpId op : order) {
      if (once_[op]) continue;
      const Step step = !graph_[op].backward ? Step::kForward
                        : awaited[op]        ? Step::kInput
                                             : Step::kWeight;
      ops_[stage_.at(op)][index(step)].push_back(op);
    }
    for (std::size_t stage = 0; stage < stages_.size(); ++stage)
      if (ops(stage, Step::kInput).empty() && ops(stage, Step::kWeight).empty())
        throw InputError(graph_.name(), said(stage) +
                                            " has no backward pass, and the schedules of "
                                            "torch.distributed.pipelining train: plan a step of "
                                            "training");
  }

  const OpGraph& graph_;
  const Plan& plan_;
  IdVector<OpId, bool> once_;
  std::vector<Stage> stages_;
  std::map<DeviceId, std::size_t> rank_;
  std::map<OpId, std::size_t> stage_;
  std::vector<std::array<std::vector<OpId>, kSteps.size()>> ops_;
};

struct Pass {
  std::size_t stage = 0;
  Step step = Step::kForward;
  std::uint32_t micro_batch = 0;
  friend auto operator<=>(const Pass&, const Pass&) = default;
};

// A pass of a stage runs as a whole. One list of all of them, in the order of the plan's starts, each
// behind what it waits for: so no ranks that keep to it wait for each other in a circle.
class Passes {
 public:
  Passes(const OpGraph& graph, const Plan& plan, const Chain& chain)
      : plan_(plan), chain_(chain), step_(unroll(graph, plan.micro_batches)) {}

  std::vector<std::vector<Pass>> by_rank() const {
    std::vector<std::vector<Pass>> found(chain_.ranks());
    std::set<Pass> done;
    using Entry = std::tuple<Time, Pass>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
    const auto add = [&](const Pass& pass) {
      if (std::ranges::all_of(waits_for(pass), [&](const Pass& p) { return done.contains(p); }))
        ready.emplace(start_of(pass), pass);
    };
    for (std::uint32_t m = 0; m < plan_.micro_batches; ++m) add({0, Step::kForward, m});
    while (!ready.empty()) {
      const Pass pass = std::get<Pass>(ready.top());
      ready.pop();
      done.insert(pass);
      found[chain_.rank(pass.stage)].push_back(pass);
      for (const Pass& next : waiting_for(pass)) add(next);
    }
    return found;
  }

 private:
  std::size_t last() const { return chain_.stages().size() - 1; }

  std::vector<Pass> waits_for(const Pass& pass) const {
    const auto [stage, step, m] = pass;
    if (step == Step::kWeight) return {{stage, Step::kInput, m}};
    if (step == Step::kForward)
      return stage == 0 ? std::vector<Pass>{} : std::vector<Pass>{{stage - 1, step, m}};
    std::vector<Pass> waits{{stage, Step::kForward, m}};
    if (stage < last()) waits.push_back({stage + 1, step, m});
    return waits;
  }

  std::vector<Pass> waiting_for(const Pass& pass) const {
    const auto [stage, step, m] = pass;
    if (step == Step::kWeight) return {};
    std::vector<Pass> next;
    if (step == Step::kForward) {
      if (stage < last()) next.push_back({stage + 1, step, m});
      next.push_back({stage, Step::kInput, m});
      return next;
    }
    next.push_back({stage, Step::kWeight, m});
    if (stage > 0) next.push_back({stage - 1, step, m});
    return next;
  }

  // When the plan begins with a pass; where the gradients by weights begin before those by inputs
  // have ended, when it goes on with them then.
  Time start_of(const Pass& pass) const {
    const auto& ops = chain_.ops(pass.stage, pass.step);
    if (pass.step != Step::kWeight) {
      if (!ops.empty()) return first_start(ops, pass.micro_batch, Time(0));
      return first_start(chain_.ops(pass.stage, Step::kWeight), pass.micro_batch, Time(0));
    }
    return first_start(ops, pass.micro_batch, end_of_inputs(pass));
  }

  Time end_of_inputs(const Pass& pass) const {
    Time end(0);
    for (const OpId op : chain_.ops(pass.stage, Step::kInput))
      end = std::max(end, plan_.schedule.slots[step_.copy(op, pass.micro_batch)].end);
    return end;
  }

  // Of those that start no earlier; if there is none, that time.
  Time first_start(const std::vector<OpId>& ops, std::uint32_t m, Time earliest) const {
    std::optional<Time> first;
    for (const OpId op : ops)
      if (const Time start = plan_.schedule.slots[step_.copy(op, m)].start; start >= earliest)
        first = std::min(first.value_or(start), start);
    return first.value_or(earliest);
  }

  const Plan& plan_;
  const Chain& chain_;
  Unrolled step_;
};

// As torch.distributed.pipelining reads a row: "0F0,0F1,0B0".
std::string actions_in(const std::vector<Pass>& passes) {
  std::string text;
  const auto add = [&](const Pass& pass, char letter) {
    text += (text.empty() ? "" : ",") + std::to_string(pass.stage) + letter +
            std::to_string(pass.micro_batch);
  };
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const Pass& pass = passes[i];
    const bool whole = pass.step == Step::kInput && i + 1 < passes.size() &&
                       passes[i + 1] == Pass{pass.stage, Step::kWeight, pass.micro_batch};
    add(pass, whole ? 'B' : "FIW"[index(pass.step)]);
    if (whole) ++i;
  }
  return text;
}

const std::string& first_module(const Stage& stage) {
  if (!stage.before.empty()) return stage.before.front();
  return stage.layers.empty() ? stage.after.front() : stage.layers.front();
}

}  // namespace

std::string to_torch_pipelining(const OpGraph& graph, const Plan& plan) {
  const Chain chain(graph, plan);
  std::string text, actions;
  for (const auto& passes : Passes(graph, plan, chain).by_rank())
    actions += actions_in(passes) + "\n";
  JsonWriter json(text);
  json.begin_object();
  json.field("micro_batches", plan.micro_batches);
  json.begin_object("split_spec");
  for (std::size_t i = 1; i < chain.stages().size(); ++i)
    json.field(first_module(chain.stages()[i]), "beginning");
  json.end_object();
  json.begin_array("stages");
  for (std::size_t i = 0; i < chain.stages().size(); ++i) {
    const Stage& stage = chain.stages()[i];
    json.begin_object(JsonWriter::Layout::kInline);
    json.field("rank", chain.rank(i));
    json.field("device", plan.cluster.devices[stage.device.index()].name);
    json.begin_array("modules");
    for (const auto* modules : {&stage.before, &stage.layers, &stage.after})
      for (const std::string& module : *modules) json.value(module);
    json.end_array();
    json.end_object();
  }
  json.end_array();
  json.field("actions_csv", actions);
  json.end_object();
  json.finish();
  return text;
}

}  // namespace baechi
