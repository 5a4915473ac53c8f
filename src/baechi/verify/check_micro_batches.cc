// SPDX-License-Identifier: Apache-2.0
#include "baechi/verify/check_micro_batches.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "baechi/base/in_quotes.h"
#include "baechi/verify/micro_batch_rules.h"

namespace baechi {
namespace {

// What an operator waits for: of whom which output; none for order alone.
using Need = std::tuple<OpId, std::optional<std::size_t>>;

std::size_t port_of(const OpGraph& graph, TensorId tensor) {
  return tensor.index() - (*graph.outputs(graph.producer(tensor)).begin()).index();
}

class StepComparison {
 public:
  StepComparison(const OpGraph& one, const OpGraph& step, std::uint32_t micro_batches,
                 std::size_t max_violations)
      : one_(one),
        step_(step),
        micro_batches_(micro_batches),
        max_violations_(max_violations),
        rules_(one) {
    number_runs();
  }

  std::vector<std::string> check() {
    if (runs_.size() != step_.num_ops()) {
      report("the step has " + std::to_string(step_.num_ops()) + " operators, not " +
             std::to_string(runs_.size()) + ": one of every operator and micro-batch");
      return std::move(violations_);
    }
    if (step_.memory_mode() != one_.memory_mode())
      report("the step has another memory mode than the graph");
    for (const OpId at : step_.ops()) {
      check_name(at);
      check_costs(at);
      check_outputs(at);
      if (needs_of(at) != needs_for(at)) say(at, "reads or waits for what it should not");
    }
    check_groups();
    return std::move(violations_);
  }

 private:
  // An operator of the step: which of the graph's it is, and of which micro-batch.
  struct Run {
    OpId op;
    std::optional<std::uint32_t> micro_batch;  // absent: of the step, or a sum
    bool sum = false;
  };

  // In the order of their ids: the graph's own, then micro-batches 1, 2, ..., then sums.
  void number_runs() {
    first_copy_.assign(one_.num_ops(), OpId(0));
    for (const OpId op : one_.ops())
      runs_.push_back({op, rules_.of_step(op) ? std::nullopt : std::optional(0U)});
    for (std::uint32_t m = 1; m < micro_batches_; ++m)
      for (const OpId op : one_.ops()) {
        if (rules_.of_step(op)) continue;
        if (m == 1) first_copy_[op] = OpId(runs_.size());
        if (m == 1) ++stride_;
        runs_.push_back({op, m});
      }
    for (const OpId op : one_.ops())
      if (rules_.accumulates(op)) {
        sums_.emplace(op, OpId(runs_.size()));
        runs_.push_back({op, std::nullopt, true});
      }
  }
  OpId run_of(OpId op, std::uint32_t m) const {
    if (m == 0 || rules_.of_step(op)) return op;
    return OpId(first_copy_[op].index() + (m - 1) * stride_);
  }

  void report(const std::string& what) {
    if (violations_.size() < max_violations_) violations_.push_back("micro-batches: " + what);
  }
  void say(OpId at, const std::string& what) {
    report("operator " + in_quotes(step_[at].name) + " " + what);
  }

  void check_name(OpId at) {
    const Run& run = runs_[at];
    std::string name(one_[run.op].name);
    if (run.sum)
      name += rules_.mark() + "sum";
    else if (run.micro_batch.has_value())
      name += rules_.mark() + std::to_string(*run.micro_batch);
    if (step_[at].name != name) say(at, "should be " + in_quotes(name));
  }

  // What it holds beside its outputs, how long it takes, and where it may run.
  void check_costs(OpId at) {
    const Run& run = runs_[at];
    const Operator &is = step_[at], &was = one_[run.op];
    const bool first = !run.sum && run.micro_batch.value_or(0) == 0;
    if (is.permanent != (first ? was.permanent : Bytes(0)))
      say(at, "holds other permanent memory than it should");
    if (is.temporary != (run.sum ? Bytes(0) : was.temporary))
      say(at, "holds other temporary memory than it should");
    if (is.variable != (!run.sum && was.variable)) say(at, "is, or is not, a variable");
    if (is.random != (!run.sum && was.random)) say(at, "draws, or does not, random numbers");
    if (is.pin != was.pin) say(at, "is pinned elsewhere");
    if (is.backward != was.backward) say(at, "is of another pass than it should");
    bool same = step_.num_kinds() == one_.num_kinds();
    for (const KindId kind : one_.kinds()) {
      const auto other = step_.find_kind(one_.kind_name(kind));
      std::optional<Time> time = one_.times(kind)[run.op];
      if (run.sum && time.has_value()) time = Time(0);
      same = same && other.has_value() && step_.times(*other)[at] == time;
    }
    if (!same) say(at, "takes another time than it should");
  }

  // Of what only the step reads, copies add to the buffer that copy 0 makes.
  void check_outputs(OpId at) {
    const Run& run = runs_[at];
    std::vector<Bytes> sizes;
    for (const TensorId tensor : one_.outputs(run.op)) {
      const bool added_up = rules_.read_by_step(tensor),
                 own = !added_up || rules_.read_by_own(tensor);
      if (run.sum ? !added_up : false) continue;
      const bool holds = run.sum || own || run.micro_batch.value_or(0) == 0;
      sizes.push_back(holds ? one_.size(tensor) : Bytes(0));
    }
    if (run.micro_batch == 0U)
      for (const TensorId tensor : one_.outputs(run.op))
        if (rules_.read_by_step(tensor) && rules_.read_by_own(tensor))
          sizes.push_back(one_.size(tensor));
    std::vector<Bytes> found;
    for (const TensorId tensor : step_.outputs(at)) found.push_back(step_.size(tensor));
    if (found != sizes) say(at, "has other outputs than it should");
  }

  std::vector<Need> needs_of(OpId at) const {
    std::vector<Need> needs;
    for (const Edge& edge : step_.in_edges(at))
      needs.emplace_back(edge.from, edge.tensor.has_value()
                                        ? std::optional(port_of(step_, *edge.tensor))
                                        : std::nullopt);
    std::sort(needs.begin(), needs.end());
    return needs;
  }

  std::vector<Need> needs_for(OpId at) const {
    const Run& run = runs_[at];
    std::vector<Need> needs;
    if (run.sum)
      add_needs_of_sum(run.op, needs);
    else
      for (const Edge& edge : one_.in_edges(run.op)) add_needs(edge, run, needs);
    if (const std::uint32_t m = run.micro_batch.value_or(0); m > 0) {
      if (rules_.accumulates(run.op)) needs.emplace_back(run.op, std::nullopt);  // makes the buffer
      for (const OpId before : rules_.behind(run.op))
        needs.emplace_back(run_of(before, m - 1), std::nullopt);
    }
    std::sort(needs.begin(), needs.end());
    needs.erase(std::unique(needs.begin(), needs.end()), needs.end());
    return needs;
  }

  void add_needs(const Edge& edge, const Run& run, std::vector<Need>& needs) const {
    std::optional<std::size_t> port;
    if (edge.tensor.has_value()) port = port_of(one_, *edge.tensor);
    if (rules_.of_step(edge.from))
      needs.emplace_back(edge.from, port);
    else if (run.micro_batch.has_value())
      needs.emplace_back(run_of(edge.from, *run.micro_batch), port);
    else if (port.has_value())
      needs.emplace_back(sums_.at(edge.from), place_among(*edge.tensor, false));
    else
      for (std::uint32_t m = 0; m < micro_batches_; ++m)
        needs.emplace_back(run_of(edge.from, m), std::nullopt);
  }

  void add_needs_of_sum(OpId op, std::vector<Need>& needs) const {
    for (std::uint32_t m = 0; m < micro_batches_; ++m)
      needs.emplace_back(run_of(op, m), std::nullopt);
    for (const TensorId tensor : one_.outputs(op))
      if (rules_.read_by_step(tensor))
        needs.emplace_back(op, rules_.read_by_own(tensor)
                                   ? one_.outputs(op).size() + place_among(tensor, true)
                                   : port_of(one_, tensor));
  }

  // Which one it is of its producer's tensors that the step reads, or of those that it reads beside
  // the micro-batch.
  std::size_t place_among(TensorId tensor, bool both) const {
    std::size_t place = 0;
    for (const TensorId other : one_.outputs(one_.producer(tensor))) {
      if (other == tensor) break;
      if (rules_.read_by_step(other) && (!both || rules_.read_by_own(other))) ++place;
    }
    return place;
  }

  // Copies and the sum share a device, and what shares one in the graph does, or by a variable that
  // micro-batches change; nothing else has to.
  void check_groups() {
    IdVector<OpId, std::size_t> members(one_.num_ops());
    for (const OpId op : one_.ops()) ++members[rules_.together_with(op)];
    std::map<OpId, GroupId> group_of;
    std::map<GroupId, OpId> together_of;
    for (const OpId at : step_.ops()) {
      const OpId op = runs_[at].op, together = rules_.together_with(op);
      const std::optional<GroupId> found = step_[at].group;
      if (!one_[op].group.has_value() && rules_.of_step(op) && members[together] == 1) {
        if (found.has_value()) say(at, "is in a colocation group, and should be in none");
        continue;
      }
      if (!found.has_value() || group_of.emplace(together, *found).first->second != *found)
        say(at, "may be on another device than its colocation group or its other copies");
      else if (together_of.emplace(*found, together).first->second != together)
        say(at, "is in a colocation group that it should not be in");
    }
  }

  const OpGraph& one_;
  const OpGraph& step_;
  const std::uint32_t micro_batches_;
  const std::size_t max_violations_;
  const MicroBatchRules rules_;
  IdVector<OpId, Run> runs_;         // by id in the step
  IdVector<OpId, OpId> first_copy_;  // that for micro-batch 1
  std::size_t stride_ = 0;           // from a copy to that for the next micro-batch
  std::map<OpId, OpId> sums_;        // by the operator that is added up
  std::vector<std::string> violations_;
};

}  // namespace

std::vector<std::string> check_micro_batches(const OpGraph& one, const OpGraph& step,
                                             std::uint32_t micro_batches,
                                             std::size_t max_violations) {
  return StepComparison(one, step, micro_batches, max_violations).check();
}

}  // namespace baechi
