// SPDX-License-Identifier: Apache-2.0
#include "baechi/verify/check_residency.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "baechi/base/in_quotes.h"
#include "baechi/verify/micro_batch_rules.h"

namespace baechi {
namespace {

// An output of an operator, or none for order alone.
using Need = std::tuple<OpId, std::optional<std::size_t>>;

std::size_t port_in(const OpGraph& graph, TensorId tensor) {
  std::size_t port = 0;
  for (const TensorId output : graph.outputs(graph.producer(tensor))) {
    if (output == tensor) return port;
    ++port;
  }
  return port;
}

class StoredComparison {
 public:
  StoredComparison(const OpGraph& original, const OpGraph& step, const Residency& residency,
                   const OpGraph* one)
      : original_(original),
        step_(step),
        residency_(residency),
        stored_(residency.on_store.begin(), residency.on_store.end()),
        carried_(one != nullptr ? one->writes() : original.writes()),
        once_(original.num_ops()),
        update_(original.num_ops()) {
    std::optional<MicroBatchRules> rules;
    if (one != nullptr) rules.emplace(*one);
    first_sum_ = original.num_ops();
    if (one != nullptr)
      for (const OpId op : one->ops())
        if (rules->accumulates(op)) --first_sum_;
    for (const OpId op : original.ops()) {
      const Operator& data = original[op];
      const bool once =
          one == nullptr ? data.per_step : op.index() < one->num_ops() && rules->of_step(op);
      once_[op] = once;
      update_[op] = once && data.backward && !data.variable && !data.forward.has_value();
    }
  }

  std::vector<std::string> check(const ClusterSpec& cluster) {
    number_fetches();
    find_streamed();
    if (step_.num_ops() != original_.num_ops() + fetches_.size() + 2 * streamed_.size()) {
      violations_.push_back("the step has " + std::to_string(step_.num_ops()) +
                            " runs, not one of every operator and one of each fetch, and two of "
                            "each streamed update");
      return violations_;
    }
    const auto store = std::ranges::find(cluster.devices, residency_.store, &Device::name);
    if (store == cluster.devices.end() || store->kind != "host")
      violations_.push_back("residency: " + in_quotes(residency_.store) +
                            " is no device of the cluster of kind host");
    if (step_.memory_mode() != original_.memory_mode() ||
        original_.memory_mode() != MemoryMode::kDataflow)
      violations_.push_back("residency: needs the memory mode dataflow");
    if (!std::ranges::equal(step_.writes(), original_.writes()))
      violations_.push_back("the step writes other variables than the graph");
    check_groups();
    for (const OpId op : original_.ops()) check_operator(op);
    for (std::size_t i = 0; i < fetches_.size(); ++i)
      check_fetch(OpId(original_.num_ops() + i), *fetches_[i].first, *fetches_[i].second);
    std::size_t next = original_.num_ops() + fetches_.size();
    for (const auto& [update, variables] : streamed_) {
      check_put(update, variables, OpId(next), OpId(next + 1));
      next += 2;
    }
    return violations_;
  }

 private:
  void say(OpId run, const std::string& what) {
    violations_.push_back("residency: operator " + in_quotes(step_[run].name) + " " + what);
  }

  void number_fetches() {
    for (const AwayTensor& away : residency_.away)
      for (const Fetch& fetch : away.fetches) {
        const OpId id(original_.num_ops() + fetches_.size());
        for (const OpId reader : fetch.readers)
          if (!reads_from_.emplace(std::tuple(away.producer, std::size_t{away.port}, reader), id)
                   .second)
            say(away.producer, "is fetched twice for one reader");
        fetches_.emplace_back(&away, &fetch);
      }
  }

  // Updates elsewhere that read variables on the store.
  void find_streamed() {
    for (const OpId op : original_.ops()) {
      if (!update_[op] || stored_.contains(op)) continue;
      std::vector<OpId> variables;
      std::size_t all = 0;
      for (const Edge& edge : original_.in_edges(op)) {
        if (!edge.tensor.has_value() || !original_[edge.from].variable) continue;
        ++all;
        if (stored_.contains(edge.from)) variables.push_back(edge.from);
      }
      if (variables.empty()) continue;
      if (variables.size() < all) say(op, "changes variables on the store and elsewhere");
      if (original_[op].permanent != Bytes(0)) say(op, "is streamed, but keeps memory of its own");
      for (const OpId variable : variables) {
        if (++changed_[variable] > 1) say(variable, "is changed by two updates elsewhere");
        if (!reads_from_.contains(std::tuple(variable, std::size_t{0}, op)))
          say(op, "changes what it has not fetched");
        for (const Edge& edge : original_.out_edges(variable))
          if (edge.tensor.has_value() && update_[edge.to] && stored_.contains(edge.to))
            say(variable, "is changed both on the store and elsewhere");
      }
      streamed_.emplace_back(op, std::move(variables));
    }
  }

  // The new values stand where the copies were, then reach the store.
  void check_put(OpId update, const std::vector<OpId>& variables, OpId made, OpId put) {
    for (const OpId run : {made, put}) {
      const Operator& is = step_[run];
      if (is.permanent != Bytes(0) || is.temporary != Bytes(0) || is.variable || is.random)
        say(run, "is more than a put");
    }
    for (const KindId kind : step_.kinds())
      for (const OpId run : {made, put})
        if (step_.times(kind)[run].value_or(Time(0)) != Time(0)) say(run, "takes time");
    if (!step_[made].group.has_value() || step_[made].group != step_[update].group)
      say(made, "may be on another device than its update");
    if (step_[put].pin != std::optional<std::string_view>(residency_.store))
      say(put, "is not bound to the store");
    std::vector<Need> of_made{{update, std::nullopt}}, of_put;
    for (const OpId variable : variables) {
      const auto fetch = reads_from_.find(std::tuple(variable, std::size_t{0}, update));
      if (fetch != reads_from_.end()) of_made.emplace_back(fetch->second, std::size_t{0});
      of_put.emplace_back(made, of_put.size());
    }
    std::sort(of_made.begin(), of_made.end());
    if (needs_of(made) != of_made || needs_of(put) != of_put || !step_.outputs(put).empty())
      say(put, "brings back other values than its update has made");
    const auto outputs = step_.outputs(made);
    if (!std::ranges::equal(outputs, variables, [&](TensorId tensor, OpId variable) {
          return step_.size(tensor) == original_.size(*original_.outputs(variable).begin());
        }))
      say(made, "makes other tensors than the variables that its update changes");
  }

  // What shares a device in the original graph does so here, but for what is on the store.
  void check_groups() {
    std::map<GroupId, GroupId> now;
    for (const OpId op : original_.ops()) {
      const auto was = original_[op].group, is = step_[op].group;
      if (!was.has_value() || stored_.contains(op)) continue;
      bool alone = true;
      for (const OpId member : original_.members(*was))
        alone = alone && (member == op || stored_.contains(member));
      if (alone) continue;
      if (!is.has_value() || now.emplace(*was, *is).first->second != *is)
        say(op, "may be on another device than its colocation group");
    }
  }

  void check_operator(OpId op) {
    const Operator &is = step_[op], &was = original_[op];
    if (is.name != was.name || is.variable != was.variable || is.random != was.random ||
        is.per_step != was.per_step || is.backward != was.backward)
      say(op, "is not the operator of the graph");
    if (is.permanent != was.permanent || is.temporary != was.temporary)
      say(op, "holds other memory than in the graph");
    if (!same_outputs(op)) say(op, "makes other tensors than in the graph");
    for (const KindId kind : original_.kinds()) {
      const auto other = step_.find_kind(original_.kind_name(kind));
      if (!other.has_value() || step_.times(*other)[op] != original_.times(kind)[op])
        say(op, "takes another time than in the graph");
    }
    if (stored_.contains(op)) {
      check_stored(op);
    } else if (is.pin != was.pin) {
      say(op, "is pinned elsewhere");
    }
    if (needs_of(op) != needs_for(op)) say(op, "reads or waits for what it should not");
  }

  void check_stored(OpId op) {
    const Operator& data = original_[op];
    if (!data.variable && !update_[op]) say(op, "is neither a variable nor an update");
    if (step_[op].pin != std::optional<std::string_view>(residency_.store))
      say(op, "is not bound to the store");
    if (data.pin.has_value() && *data.pin != residency_.store) say(op, "is pinned elsewhere");
    for (const Write& write : carried_)
      if (write.variable == op) say(op, "is changed by every micro-batch");
    if (data.variable) check_no_late_reader(op);
    for (const Edge& edge : original_.in_edges(op))
      if (edge.tensor.has_value() && original_[edge.from].variable && !stored_.contains(edge.from))
        say(op, "changes on the store what is elsewhere");
  }

  // From its updates on, who waits for them, step by step.
  void check_no_late_reader(OpId variable) {
    std::set<OpId> readers, behind, next;
    for (const Edge& edge : original_.out_edges(variable))
      if (edge.tensor.has_value() && once_[edge.to])
        (update_[edge.to] ? next : readers).insert(edge.to);
    while (!readers.empty() && !next.empty()) {
      std::set<OpId> further;
      for (const OpId op : next)
        for (const Edge& edge : original_.out_edges(op))
          if (behind.insert(edge.to).second) further.insert(edge.to);
      next = std::move(further);
    }
    for (const OpId reader : readers)
      if (behind.contains(reader))
        say(reader, "reads " + in_quotes(original_[variable].name) +
                        " on the store behind an update of it: the old or the new value");
  }

  void check_fetch(OpId run, const AwayTensor& away, const Fetch& fetch) {
    const Operator& is = step_[run];
    if (is.pin != std::optional<std::string_view>(residency_.store))
      say(run, "is not bound to the store");
    if (is.permanent != Bytes(0) || is.temporary != Bytes(0) || is.variable || is.random)
      say(run, "is more than a fetch");
    for (const KindId kind : step_.kinds()) {
      const auto time = step_.times(kind)[run];
      if (time.has_value() != (step_.kind_name(kind) == "host") ||
          time.value_or(Time(0)) != Time(0))
        say(run, "takes time, or runs elsewhere than on a host");
    }
    for (const OpId reader : fetch.readers)
      if (reader.index() >= first_sum_) say(run, "brings back a buffer that is added to meanwhile");
    const auto given = original_.outputs(away.producer);
    if (away.port >= given.size()) return say(run, "fetches what nobody makes");
    const TensorId tensor = given.begin()[static_cast<std::ptrdiff_t>(away.port)];
    if (step_.outputs(run).size() != 1 ||
        step_.size(*step_.outputs(run).begin()) != original_.size(tensor))
      say(run, "brings back another tensor than was sent");
    if (original_[away.producer].variable && !stored_.contains(away.producer))
      say(run, "fetches a variable that the store does not have");
    std::vector<Need> needs{{away.producer, std::size_t{away.port}}};
    if (fetch.after.has_value() && *fetch.after != away.producer)
      needs.emplace_back(*fetch.after, std::nullopt);
    std::vector<Need> found = needs_of(run);
    std::erase(found, Need(away.producer, std::nullopt));
    std::sort(needs.begin(), needs.end());
    if (found != needs) say(run, "reads or waits for what it should not");
  }

  bool same_outputs(OpId op) const {
    const auto is = step_.outputs(op), was = original_.outputs(op);
    return is.size() == was.size() &&
           std::equal(is.begin(), is.end(), was.begin(), [&](TensorId made, TensorId given) {
             return step_.size(made) == original_.size(given);
           });
  }

  std::vector<Need> needs_of(OpId run) const {
    std::vector<Need> needs;
    for (const Edge& edge : step_.in_edges(run)) {
      std::optional<std::size_t> port;
      if (edge.tensor.has_value()) port = port_in(step_, *edge.tensor);
      needs.emplace_back(edge.from, port);
    }
    std::sort(needs.begin(), needs.end());
    return needs;
  }

  std::vector<Need> needs_for(OpId op) const {
    std::vector<Need> needs;
    for (const Edge& edge : original_.in_edges(op)) {
      if (!edge.tensor.has_value()) {
        needs.emplace_back(edge.from, std::nullopt);
        continue;
      }
      const std::size_t port = port_in(original_, *edge.tensor);
      const auto fetch = reads_from_.find(std::tuple(edge.from, port, op));
      if (fetch != reads_from_.end())
        needs.emplace_back(fetch->second, std::size_t{0});
      else
        needs.emplace_back(edge.from, port);
    }
    std::sort(needs.begin(), needs.end());
    return needs;
  }

  const OpGraph& original_;
  const OpGraph& step_;
  const Residency& residency_;
  std::set<OpId> stored_;
  const std::span<const Write> carried_;  // by operators of every micro-batch
  IdVector<OpId, bool> once_, update_;
  std::size_t first_sum_ = 0;
  std::map<std::tuple<OpId, std::size_t, OpId>, OpId> reads_from_;  // by tensor and reader
  std::vector<std::pair<const AwayTensor*, const Fetch*>> fetches_;
  std::vector<std::pair<OpId, std::vector<OpId>>> streamed_;  // with the variables that it changes
  std::map<OpId, int> changed_;                               // variables, by so many of these
  std::vector<std::string> violations_;
};

}  // namespace

std::vector<std::string> check_residency(const OpGraph& original, const OpGraph& step,
                                         const ClusterSpec& cluster, const Residency& residency,
                                         const OpGraph* one) {
  return StoredComparison(original, step, residency, one).check(cluster);
}

}  // namespace baechi
