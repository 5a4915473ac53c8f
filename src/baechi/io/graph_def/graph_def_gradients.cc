// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/graph_def/graph_def_gradients.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace baechi {
namespace {

constexpr std::string_view kSymbolicGradient = "_grad";

// TensorFlow names what a tape or tf.gradients() adds after what it is the gradient of: where the
// mark of such a name is, and how long.
struct GradientMark {
  std::size_t at, length;
};
std::optional<GradientMark> gradient_mark(std::string_view name) {
  for (const std::string_view mark : {"gradient_tape/", "gradients/"}) {
    const std::size_t at = name.find(mark);
    if (at != name.npos && (at == 0 || name[at - 1] == '/')) return GradientMark{at, mark.size()};
  }
  return std::nullopt;
}

// The name without the mark: the forward operator, or something inside its scope.
std::string gradient_of(std::string_view name) {
  const GradientMark mark = *gradient_mark(name);
  return std::string(name.substr(0, mark.at)) += name.substr(mark.at + mark.length);
}

// "a/b" of "a/b/c"; empty at the top.
std::string_view parent(std::string_view name) {
  const std::size_t slash = name.rfind('/');
  return slash == name.npos ? std::string_view() : name.substr(0, slash);
}

class GradientPairing {
 public:
  GradientPairing(const GraphDefOperators& operators, OpGraphBuilder& builder)
      : operators_(operators),
        builder_(builder),
        backward_(operators.size(), false),
        forward_(operators.size()) {
    for (const OpId op : operators.keys())
      if (gradient_mark(operators[op].node.name).has_value()) gradients_.push_back(op);
  }

  void run() {
    if (gradients_.empty()) return;
    find_consumers();
    mark_backward();
    pair_by_name();
    pair_by_neighbours();
    for (const OpId op : operators_.keys()) {
      if (backward_[op]) builder_.set_backward(op);
      if (forward_[op].has_value()) builder_.set_forward(op, *forward_[op]);
    }
  }

 private:
  void find_consumers();
  void mark_backward();
  void pair_by_name();
  void pair_by_neighbours();
  std::span<const OpId> consumers(OpId op) const {
    return std::span<const OpId>(consumers_)
        .subspan(first_consumer_[op.index()],
                 first_consumer_[op.index() + 1] - first_consumer_[op.index()]);
  }
  // Takes its forward operator from a neighbour, when it has none.
  bool inherits(OpId op) const {
    return backward_[op] && !forward_[op].has_value() &&
           (operators_[op].node.op == "AddN" || gradient_mark(operators_[op].node.name));
  }

  const GraphDefOperators& operators_;
  OpGraphBuilder& builder_;
  std::vector<OpId> gradients_;  // by their names
  std::vector<std::uint32_t> first_consumer_;
  std::vector<OpId> consumers_;
  IdVector<OpId, bool> backward_;
  IdVector<OpId, std::optional<OpId>> forward_;
};

// Consumers of data, one row per operator.
void GradientPairing::find_consumers() {
  first_consumer_.assign(operators_.size() + 1, 0);
  for (const GraphDefOperator& op : operators_)
    for (const GraphDefInput& input : op.inputs)
      if (!input.control) ++first_consumer_[input.from.index() + 1];
  for (std::size_t i = 1; i < first_consumer_.size(); ++i)
    first_consumer_[i] += first_consumer_[i - 1];
  consumers_.assign(first_consumer_.back(), OpId(0));
  std::vector<std::uint32_t> next(first_consumer_.begin(), first_consumer_.end() - 1);
  for (const OpId op : operators_.keys())
    for (const GraphDefInput& input : operators_[op].inputs)
      if (!input.control) consumers_[next[input.from.index()]++] = op;
}

void GradientPairing::mark_backward() {
  std::vector<OpId> open = gradients_;
  for (const OpId op : open) backward_[op] = true;
  while (!open.empty()) {
    const OpId op = open.back();
    open.pop_back();
    for (const OpId consumer : consumers(op)) {
      if (backward_[consumer]) continue;
      backward_[consumer] = true;
      open.push_back(consumer);
    }
  }
}

void GradientPairing::pair_by_name() {
  std::unordered_map<std::string_view, OpId> heaviest;  // of a scope
  for (const OpId op : operators_.keys()) {
    if (backward_[op]) continue;
    for (std::string_view scope = parent(operators_[op].node.name); !scope.empty();
         scope = parent(scope)) {
      const auto [at, added] = heaviest.emplace(scope, op);
      if (!added && operators_[at->second].flops < operators_[op].flops) at->second = op;
    }
  }
  const auto named = [&](std::string_view name) -> std::optional<OpId> {
    const std::optional<OpId> exact = builder_.find(name);
    if (exact.has_value() && !backward_[*exact]) return exact;
    const auto scope = heaviest.find(name);
    return scope == heaviest.end() ? std::nullopt : std::optional(scope->second);
  };
  for (const OpId op : gradients_) {
    const std::string name = gradient_of(operators_[op].node.name);
    for (std::string_view of = name; !of.empty() && !forward_[op].has_value(); of = parent(of)) {
      if (of.ends_with(kSymbolicGradient))  // tf.gradients() says "MatMul_grad" for MatMul's
        forward_[op] = named(of.substr(0, of.size() - kSymbolicGradient.size()));
      if (!forward_[op].has_value()) forward_[op] = named(of);
    }
  }
}

void GradientPairing::pair_by_neighbours() {
  std::vector<OpId> open;
  const auto all_with_forward = [&] {
    for (const OpId op : operators_.keys())
      if (forward_[op].has_value()) open.push_back(op);
  };
  const auto hand_on = [&](OpId from, OpId to) {
    if (!inherits(to)) return;
    forward_[to] = forward_[from];
    open.push_back(to);
  };
  all_with_forward();
  for (std::size_t i = 0; i < open.size(); ++i)
    for (const OpId from = open[i]; const GraphDefInput& input : operators_[from].inputs)
      if (!input.control) hand_on(from, input.from);
  open.clear();
  all_with_forward();
  for (std::size_t i = 0; i < open.size(); ++i)
    for (const OpId from = open[i]; const OpId consumer : consumers(from)) hand_on(from, consumer);
}

}  // namespace

void pair_gradients(const GraphDefOperators& operators, OpGraphBuilder& builder) {
  GradientPairing(operators, builder).run();
}

}  // namespace baechi
