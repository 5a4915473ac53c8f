// SPDX-License-Identifier: Apache-2.0
#include "baechi/generate/synthetic.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"

namespace baechi {
namespace {

// Adds operators with drawn costs and one output each.
class Drawer {
 public:
  Drawer(std::string_view name, const SyntheticOptions& options)
      : random_(options.seed), costing_(options.costing), builder_(name) {
    builder_.reserve(static_cast<std::size_t>(options.operators), 0);
  }

  OpId add(std::string_view kind) {
    const std::string name = "op" + std::to_string(builder_.num_ops());
    const OpId op = builder_.add_operator({.name = name,
                                           .kind = kind,
                                           .permanent = Bytes(magnitude(kLeastBytes)),
                                           .temporary = Bytes(magnitude(kLeastBytes))});
    check_growth(op, costing_);
    const Bytes output(magnitude(kLeastBytes));
    set_times(builder_, op, costing_, {.flops = magnitude(kLeastFlops), .bytes = 2 * output});
    outputs_.push_back(builder_.add_output(op, output));
    return op;
  }

  void connect(OpId from, OpId to) { builder_.connect(outputs_[from], to); }
  Random& random() { return random_; }
  OpGraph finish() && { return std::move(builder_).build(); }

 private:
  static constexpr std::int64_t kLeastFlops = 1 << 20, kLeastBytes = 1 << 10;

  // `least` times 1 to 4096: a random power of two, and a random point between it and the next.
  std::int64_t magnitude(std::int64_t least) {
    const std::int64_t low = least << random_.below(12);
    return random_.between(low, 2 * low);
  }

  Random random_;
  const Costing& costing_;
  OpGraphBuilder builder_;
  IdVector<OpId, TensorId> outputs_;
};

void require_operators(const SyntheticOptions& options, std::int64_t least) {
  constexpr std::int64_t kMost = kMostGeneratedOperators;
  if (options.operators < least || options.operators > kMost)
    throw InputError("operators must be " + std::to_string(least) + " to " + std::to_string(kMost) +
                     ", not " + std::to_string(options.operators));
}

std::uint64_t square_root(std::uint64_t n) {
  std::uint64_t root = 0;
  while ((root + 1) * (root + 1) <= n) ++root;
  return root;
}

}  // namespace

OpGraph generate_chain(const SyntheticOptions& options) {
  require_operators(options, 1);
  Drawer draw("chain", options);
  OpId last = draw.add("Synthetic");
  for (std::int64_t i = 1; i < options.operators; ++i) {
    const OpId next = draw.add("Synthetic");
    draw.connect(last, next);
    last = next;
  }
  return std::move(draw).finish();
}

OpGraph generate_fork_join(const SyntheticOptions& options) {
  require_operators(options, 3);
  Drawer draw("fork-join", options);
  const OpId source = draw.add("Synthetic");
  std::vector<OpId> branches;
  for (std::int64_t i = 2; i < options.operators; ++i) {
    branches.push_back(draw.add("Synthetic"));
    draw.connect(source, branches.back());
  }
  const OpId sink = draw.add("Synthetic");
  for (const OpId branch : branches) draw.connect(branch, sink);
  return std::move(draw).finish();
}

OpGraph generate_layered(const SyntheticOptions& options) {
  require_operators(options, 1);
  constexpr std::uint64_t kWidest = 256, kReach = 4;  // layers back
  const auto operators = static_cast<std::uint64_t>(options.operators);
  const std::uint64_t widest = std::min(kWidest, 2 * square_root(operators));
  Drawer draw("layered", options);
  Random& random = draw.random();
  std::vector<std::uint64_t> layer_begin{0};
  std::uint64_t added = 0;
  while (added < operators) {
    const std::uint64_t width = std::min(1 + random.below(widest), operators - added);
    const std::size_t layers = layer_begin.size();  // before this one: layers - 1
    const std::uint64_t reach = layer_begin[layers > kReach ? layers - 1 - kReach : 0];
    for (std::uint64_t i = 0; i < width; ++i) {
      const OpId op = draw.add("Synthetic");
      if (added == 0) continue;
      const std::uint64_t before = layer_begin[layers - 2];
      draw.connect(OpId(static_cast<std::size_t>(before + random.below(added - before))), op);
      for (std::uint64_t more = random.below(5); more > 0; --more)
        draw.connect(OpId(static_cast<std::size_t>(reach + random.below(added - reach))), op);
    }
    added += width;
    layer_begin.push_back(added);
  }
  return std::move(draw).finish();
}

}  // namespace baechi
