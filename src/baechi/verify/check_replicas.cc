// SPDX-License-Identifier: Apache-2.0
#include "baechi/verify/check_replicas.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "baechi/base/in_quotes.h"
#include "baechi/verify/micro_batch_rules.h"

namespace baechi {
namespace {

// What an operator waits for: of whom which output; none for order alone.
using ReplicaNeed = std::tuple<std::size_t, std::optional<std::size_t>>;

class ReplicaComparison {
 public:
  ReplicaComparison(const OpGraph& one, const OpGraph& all, const Replicas& replicas)
      : one_(one),
        all_(all),
        buckets_(replicas.buckets),
        count_(replicas.count),
        shared_(replicas.shared),
        shares_(replicas.shared > 0),
        rules_(one) {
    for (const OpId op : one.ops())
      if (!shares_ || !rules_.of_step(op)) each_has_.push_back(op);
    std::size_t most = 0;
    const auto see = [&](std::string_view name) {
      std::size_t row = 0;
      for (const char c : name) most = std::max(most, row = c == '#' ? row + 1 : 0);
    };
    for (const OpId op : one.ops()) {
      see(one[op].name);
      for (const std::string_view group : one.colocation_names(op)) see(group);
    }
    mark_.assign(most + 1, '#');
  }

  std::vector<std::string> check() {
    if (shares_) return check_shared();
    check_buckets();
    const std::size_t rings = buckets_.size() * count_ * (2 * count_ - 1);
    if (all_.num_ops() != one_.num_ops() * count_ + rings)
      violations_.push_back("replicas: the step has " + std::to_string(all_.num_ops()) +
                            " operators, not those of " + std::to_string(count_) +
                            " replicas and their rings");
    if (!violations_.empty()) return std::move(violations_);
    if (all_.memory_mode() != one_.memory_mode())
      violations_.emplace_back("replicas: the step has another memory mode than the graph");
    check_each();
    for (std::size_t i = one_.num_ops() * count_; i < all_.num_ops(); ++i) check_round(OpId(i));
    check_writes();
    check_groups();
    return std::move(violations_);
  }

 private:
  struct Round {
    std::size_t bucket, round, replica;
  };

  // One set of operators of the step, which no replica need be told from.
  std::vector<std::string> check_shared() {
    for (const OpId op : each_has_)
      if (one_[op].permanent != Bytes(0) || one_[op].random || !rules_.behind(op).empty())
        say(op, "keeps or draws something, and replicas that share the step cannot");
    if (!buckets_.empty()) violations_.emplace_back("replicas: they share the step, and reduce");
    if (all_.num_ops() != one_.num_ops() + (count_ - 1) * each_has_.size() ||
        shared_ != one_.num_ops() - each_has_.size())
      violations_.emplace_back("replicas: they share other operators than those of the step");
    if (!violations_.empty()) return std::move(violations_);
    check_each();
    if (!all_.writes().empty() || all_.memory_mode() != one_.memory_mode())
      violations_.emplace_back("replicas: the step has another memory mode or other writes");
    check_groups();
    return std::move(violations_);
  }

  bool is_there(OpId op, std::size_t r) const { return r == 0 || !shares_ || !rules_.of_step(op); }
  OpId id_in(OpId op, std::size_t r) const {
    if (r == 0 || !is_there(op, r)) return op;
    const auto at = std::ranges::lower_bound(each_has_, op) - each_has_.begin();
    return OpId(one_.num_ops() + (r - 1) * each_has_.size() + static_cast<std::size_t>(at));
  }

  void check_each() {
    for (std::size_t r = 0; r < count_; ++r)
      for (const OpId op : one_.ops())
        if (is_there(op, r)) check_op(id_in(op, r), op, r);
  }

  void say(OpId at, const std::string& what) {
    violations_.push_back("replicas: operator " + in_quotes(all_[at].name) + " " + what);
  }

  // Each tensor that the step reads from a micro-batch is in one bucket, and nothing else is.
  void check_buckets() {
    for (std::size_t b = 0; b < buckets_.size(); ++b)
      for (std::size_t i = 0; i < buckets_[b].size(); ++i) {
        const auto [op, port] = buckets_[b][i];
        if (op.index() >= one_.num_ops() || port >= one_.outputs(op).size())
          violations_.emplace_back("replicas: a bucket names a tensor that does not exist");
        else if (!found_.emplace(tensor(op, port), std::pair(b, i)).second)
          violations_.push_back("replicas: an output of " + in_quotes(one_[op].name) +
                                " is in two buckets");
        else if (!rules_.read_by_step(tensor(op, port)))
          violations_.push_back(
              "replicas: no operator of the step reads what the bucket names of " +
              in_quotes(one_[op].name));
      }
    for (const TensorId tensor : one_.tensors())
      if (rules_.read_by_step(tensor) && !found_.contains(tensor))
        violations_.push_back("replicas: an output of " +
                              in_quotes(one_[one_.producer(tensor)].name) +
                              " that the step reads is in no bucket");
  }
  TensorId tensor(OpId op, std::size_t port) const {
    return TensorId((*one_.outputs(op).begin()).index() + port);
  }
  std::size_t port_in_one(TensorId tensor) const {
    return tensor.index() - (*one_.outputs(one_.producer(tensor)).begin()).index();
  }

  // Bucket by bucket, round by round.
  std::size_t id_of(const Round& at) const {
    return one_.num_ops() * count_ + at.bucket * count_ * (2 * count_ - 1) + at.round * count_ +
           at.replica;
  }
  Round round_of(OpId at) const {
    const std::size_t place = at.index() - one_.num_ops() * count_, rounds = 2 * count_ - 1;
    return {place / count_ / rounds, place / count_ % rounds, place % count_};
  }

  void check_op(OpId at, OpId op, std::size_t r) {
    const Operator &is = all_[at], &was = one_[op];
    if (is.name != std::string(was.name) + (r == 0 ? "" : mark_ + std::to_string(r)))
      say(at, "has another name than it should");
    if (is.permanent != was.permanent || is.temporary != was.temporary)
      say(at, "holds other memory than it should");
    if (is.variable != was.variable) say(at, "is, or is not, a variable");
    if (is.random != was.random) say(at, "draws, or does not, random numbers");
    if (is.backward != was.backward) say(at, "is of another pass than it should");
    if (is.per_step != rules_.of_step(op)) say(at, "runs more or less often than it should");
    if (is.pin.has_value() || was.pin.has_value()) say(at, "is pinned, and replicas are apart");
    for (const KindId kind : one_.kinds()) {
      const auto other = all_.find_kind(one_.kind_name(kind));
      if (!other.has_value() || all_.times(*other)[at] != one_.times(kind)[op])
        say(at, "takes another time than it should");
    }
    for (const KindId kind : all_.kinds())
      if (!one_.find_kind(all_.kind_name(kind)).has_value() && all_.times(kind)[at].has_value())
        say(at, "may run on devices that it may not");
    std::vector<Bytes> sizes;
    for (const TensorId tensor : one_.outputs(op)) sizes.push_back(one_.size(tensor));
    check_outputs(at, sizes);
    std::vector<ReplicaNeed> needs;
    for (const Edge& edge : one_.in_edges(op)) {
      const auto reduced = edge.tensor.has_value() ? found_.find(*edge.tensor) : found_.end();
      const bool of_each = shares_ && rules_.of_step(op) && !rules_.of_step(edge.from);
      std::optional<std::size_t> port;
      if (edge.tensor.has_value()) port = port_in_one(*edge.tensor);
      for (std::size_t s = 0; of_each && s < count_; ++s)
        needs.emplace_back(id_in(edge.from, s).index(), port);
      if (of_each) continue;
      if (reduced != found_.end() && rules_.of_step(op))
        needs.emplace_back(id_of({reduced->second.first, 2 * count_ - 2, r}),
                           reduced->second.second);
      else
        needs.emplace_back(id_in(edge.from, r).index(), port);
    }
    check_needs(at, std::move(needs));
  }

  void check_round(OpId at) {
    const auto [b, round, r] = round_of(at);
    const bool last = round == 2 * count_ - 2;
    const Operator& is = all_[at];
    if (is.permanent != Bytes(0) || is.temporary != Bytes(0) || is.variable || is.random)
      say(at, "holds or draws something, and only passes chunks on");
    if (!is.per_step || !is.backward) say(at, "does not run once per step, behind gradients");
    for (const KindId kind : all_.kinds())
      if (all_.times(kind)[at].value_or(Time(0)) != Time(0)) say(at, "takes time");
    std::int64_t bytes = 0;
    std::vector<Bytes> sizes;
    std::vector<ReplicaNeed> needs;
    for (const auto& [op, port] : buckets_[b]) {
      bytes += one_.size(tensor(op, port)).count();
      if (last) sizes.push_back(one_.size(tensor(op, port)));
      if (last || round == 0) needs.emplace_back(r * one_.num_ops() + op.index(), port);
    }
    const auto parts = static_cast<std::int64_t>(count_);
    if (!last) sizes.emplace_back((bytes + parts - 1) / parts);
    check_outputs(at, sizes);
    if (round > 0) {
      needs.emplace_back(id_of({b, round - 1, r == 0 ? count_ - 1 : r - 1}), 0);
      needs.emplace_back(id_of({b, round - 1, r}), std::nullopt);
    }
    check_needs(at, std::move(needs));
    for (const auto& [op, port] : buckets_[b])
      if (!is.group.has_value() || all_[OpId(r * one_.num_ops() + op.index())].group != is.group)
        say(at, "may be on another device than " + in_quotes(one_[op].name) + " of its replica");
  }

  void check_outputs(OpId at, const std::vector<Bytes>& sizes) {
    std::vector<Bytes> found;
    for (const TensorId tensor : all_.outputs(at)) found.push_back(all_.size(tensor));
    if (found != sizes) say(at, "has other outputs than it should");
  }

  void check_needs(OpId at, std::vector<ReplicaNeed> needs) {
    std::vector<ReplicaNeed> found;
    for (const Edge& edge : all_.in_edges(at)) {
      std::optional<std::size_t> port;
      if (edge.tensor.has_value())
        port = edge.tensor->index() - (*all_.outputs(edge.from).begin()).index();
      found.emplace_back(edge.from.index(), port);
    }
    std::sort(needs.begin(), needs.end());
    std::sort(found.begin(), found.end());
    if (needs != found) say(at, "reads or waits for what it should not");
  }

  void check_writes() {
    std::vector<Write> writes;
    for (std::size_t r = 0; r < count_; ++r)
      for (const auto& [op, variable] : one_.writes())
        writes.push_back(
            {OpId(r * one_.num_ops() + op.index()), OpId(r * one_.num_ops() + variable.index())});
    std::sort(writes.begin(), writes.end());
    if (!std::equal(writes.begin(), writes.end(), all_.writes().begin(), all_.writes().end()))
      violations_.emplace_back("replicas: the step writes other variables than the graph");
  }

  // What shares a device in the graph does so in every replica.
  void check_groups() {
    std::map<std::pair<GroupId, std::size_t>, GroupId> now;
    for (std::size_t r = 0; r < count_; ++r)
      for (const OpId op : one_.ops()) {
        if (!is_there(op, r)) continue;
        const OpId at = id_in(op, r);
        const auto was = one_[op].group, is = all_[at].group;
        if (!was.has_value()) continue;
        if (!is.has_value() || now.emplace(std::pair(*was, r), *is).first->second != *is)
          say(at, "may be on another device than its colocation group");
      }
  }

  const OpGraph& one_;
  const OpGraph& all_;
  const std::vector<std::vector<ReducedTensor>>& buckets_;
  const std::size_t count_;
  const std::size_t shared_;
  const bool shares_;  // the operators of the step
  const MicroBatchRules rules_;
  std::vector<OpId> each_has_;  // operators, sorted
  std::string mark_;
  std::map<TensorId, std::pair<std::size_t, std::size_t>> found_;  // its bucket, its place there
  std::vector<std::string> violations_;
};

}  // namespace

std::vector<std::string> check_replicas(const OpGraph& one, const OpGraph& all,
                                        const Replicas& replicas) {
  return ReplicaComparison(one, all, replicas).check();
}

std::vector<std::string> check_apart(const StepGraph& step, const Plan& plan) {
  const std::size_t rings =
      plan.replicas.buckets.size() * plan.replicas.count * (2 * plan.replicas.count - 1);
  const std::size_t of_one = (step.ops_of_one() - rings) / plan.replicas.count;
  IdVector<DeviceId, std::optional<std::size_t>> replica(plan.cluster.devices.size());
  std::vector<std::string> violations;
  for (std::size_t i = 0; i < of_one * plan.replicas.count; ++i) {
    const DeviceId device = plan.schedule.slots[OpId(i)].device;
    if (replica[device].value_or(i / of_one) != i / of_one)
      violations.push_back("replicas: device " +
                           in_quotes(plan.cluster.devices[device.index()].name) +
                           " has operators of replicas " + std::to_string(*replica[device]) +
                           " and " + std::to_string(i / of_one));
    replica[device] = i / of_one;
  }
  return violations;
}

}  // namespace baechi
