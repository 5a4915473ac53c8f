// SPDX-License-Identifier: Apache-2.0
#include "baechi/verify/check_recomputation.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>

#include "baechi/base/in_quotes.h"

namespace baechi {
namespace {

// What an operator waits for: of whom which output; none for order alone.
using Need = std::tuple<OpId, std::optional<std::size_t>>;

std::optional<std::size_t> port_of(const OpGraph& graph, const Edge& edge) {
  if (!edge.tensor.has_value()) return std::nullopt;
  std::size_t port = 0;
  for (const TensorId output : graph.outputs(edge.from)) {
    if (output == *edge.tensor) break;
    ++port;
  }
  return port;
}

class Comparison {
 public:
  Comparison(const OpGraph& original, const OpGraph& step, std::span<const Recomputation> again)
      : original_(original), step_(step), again_(again) {
    for (std::size_t i = 0; i < again.size(); ++i)
      second_run_.emplace(again[i].op, OpId(original.num_ops() + i));
  }

  std::vector<std::string> check() {
    if (step_.num_ops() != original_.num_ops() + again_.size() ||
        second_run_.size() != again_.size()) {
      violations_.push_back("the step has " + std::to_string(step_.num_ops()) +
                            " runs, not one of every operator and one more of each recomputed");
      return violations_;
    }
    if (step_.memory_mode() != original_.memory_mode())
      violations_.push_back("the step has another memory mode than the graph");
    if (!std::ranges::equal(step_.writes(), original_.writes()))
      violations_.push_back("the step writes other variables than the graph");
    check_groups();
    for (const OpId op : original_.ops()) check_run(op, op, nullptr);
    for (std::size_t i = 0; i < again_.size(); ++i) {
      check_allowed(again_[i].op);
      check_run(OpId(original_.num_ops() + i), again_[i].op, &again_[i]);
    }
    for (const TensorId tensor : step_.tensors())
      if (step_.consumers(tensor).empty() && step_.size(tensor) > Bytes(0) && dropped(tensor))
        say(step_.producer(tensor), "holds an output that nobody is left to read");
    return violations_;
  }

 private:
  void say(OpId run, const std::string& what) {
    violations_.push_back("recomputation: operator " + in_quotes(step_[run].name) + " " + what);
  }

  // Nobody reads it here, but somebody does in the original graph, or it is of a second run.
  bool dropped(TensorId tensor) const {
    const OpId run = step_.producer(tensor);
    if (run.index() >= original_.num_ops()) return true;
    const std::size_t port = tensor.index() - (*step_.outputs(run).begin()).index();
    const TensorId same((*original_.outputs(run).begin()).index() + port);
    return !original_.consumers(same).empty();
  }

  // What shares a device in the original graph does so here.
  void check_groups() {
    std::map<GroupId, GroupId> now;
    for (const OpId op : original_.ops()) {
      const auto was = original_[op].group, is = step_[op].group;
      if (!was.has_value()) continue;
      if (!is.has_value() || now.emplace(*was, *is).first->second != *is)
        say(op, "may be on another device than its colocation group");
    }
  }

  void check_allowed(OpId op) {
    const Operator& data = original_[op];
    bool reads = false;
    for (const Edge& edge : original_.in_edges(op)) reads = reads || edge.tensor.has_value();
    const auto written = [&](OpId variable) {
      return std::ranges::any_of(original_.writes(), [&](const Write& write) {
        return write.variable == variable || write.op == op;
      });
    };
    for (const Edge& edge : original_.in_edges(op))
      if (edge.tensor.has_value() && written(edge.from)) reads = false;
    if (data.backward || data.per_step || !data.recompute || !reads || written(op))
      say(op, "may not run a second time");
  }

  void check_run(OpId run, OpId op, const Recomputation* again) {
    const Operator &is = step_[run], &was = original_[op];
    if (is.variable != was.variable) say(run, "is, or is not, a variable");
    if (is.random != (again == nullptr && was.random))
      say(run, "draws, or does not, random numbers");
    if (is.permanent != (again != nullptr ? Bytes(0) : was.permanent))
      say(run, "holds other permanent memory than it should");
    Bytes held = is.temporary, holds = was.temporary;
    for (const TensorId tensor : step_.outputs(run)) held += step_.size(tensor);
    for (const TensorId tensor : original_.outputs(op)) holds += original_.size(tensor);
    if (!readable(run, op)) say(run, "drops an output before it is read");
    if (again == nullptr && !keeps_results(op)) say(run, "drops an output that the step ends with");
    if (held != holds) say(run, "holds other memory while it runs than it should");
    if (!same_times(run, op)) say(run, "takes another time than it should");
    if (is.pin != was.pin) say(run, "is pinned elsewhere");
    if (again != nullptr && (!is.group.has_value() || is.group != step_[op].group))
      say(run, "may be on another device than its first run");
    if (needs_of(run) != needs_for(op, again)) say(run, "reads or waits for what it should not");
  }

  // What somebody reads has its size.
  bool readable(OpId run, OpId op) const {
    const auto is = step_.outputs(run), was = original_.outputs(op);
    if (is.size() != was.size()) return false;
    return std::equal(is.begin(), is.end(), was.begin(), [&](TensorId made, TensorId given) {
      return step_.consumers(made).empty() || step_.size(made) == original_.size(given);
    });
  }

  // What nobody reads in the original graph has its size, too: the step ends with it.
  bool keeps_results(OpId op) const {
    const auto is = step_.outputs(op), was = original_.outputs(op);
    return is.size() != was.size() ||
           std::equal(is.begin(), is.end(), was.begin(), [&](TensorId made, TensorId given) {
             return !original_.consumers(given).empty() ||
                    step_.size(made) == original_.size(given);
           });
  }

  bool same_times(OpId run, OpId op) const {
    for (const KindId kind : original_.kinds()) {
      const auto other = step_.find_kind(original_.kind_name(kind));
      if (!other.has_value() || step_.times(*other)[run] != original_.times(kind)[op]) return false;
    }
    return step_.num_kinds() == original_.num_kinds();
  }

  std::vector<Need> needs_of(OpId run) const {
    std::vector<Need> needs;
    for (const Edge& edge : step_.in_edges(run))
      needs.emplace_back(edge.from, port_of(step_, edge));
    std::sort(needs.begin(), needs.end());
    return needs;
  }

  // A reader of the backward pass and a second run read of the last run that there is.
  std::vector<Need> needs_for(OpId op, const Recomputation* again) const {
    std::vector<Need> needs;
    for (const Edge& edge : original_.in_edges(op)) {
      const std::optional<std::size_t> port = port_of(original_, edge);
      if (!port.has_value()) {
        if (again == nullptr) needs.emplace_back(edge.from, port);
        continue;
      }
      const auto later = second_run_.find(edge.from);
      const bool late = again != nullptr || original_[op].backward;
      needs.emplace_back(late && later != second_run_.end() ? later->second : edge.from, port);
    }
    if (again != nullptr) {
      needs.emplace_back(op, std::nullopt);
      if (again->after.has_value()) needs.emplace_back(*again->after, std::nullopt);
    }
    std::sort(needs.begin(), needs.end());
    needs.erase(std::unique(needs.begin(), needs.end()), needs.end());
    return needs;
  }

  const OpGraph& original_;
  const OpGraph& step_;
  std::span<const Recomputation> again_;
  std::map<OpId, OpId> second_run_;
  std::vector<std::string> violations_;
};

}  // namespace

std::vector<std::string> check_recomputation(const OpGraph& original, const OpGraph& step,
                                             std::span<const Recomputation> again) {
  return Comparison(original, step, again).check();
}

}  // namespace baechi
