// SPDX-License-Identifier: Apache-2.0
#include "baechi/generate/two_tower.h"

#include <string>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/generate/dataflow_ops.h"
#include "baechi/generate/modules.h"

namespace baechi {
namespace {

using namespace generate;

constexpr std::int64_t kFeatureRows = 200'000;

class TwoTower {
 public:
  explicit TwoTower(const TwoTowerOptions& options)
      : options_(options),
        g_({.name = "two-tower", .batch = options.batch, .costing = options.costing}),
        modules_(g_, options.training) {}

  OpGraph build() && {
    const std::int64_t batch = options_.batch;
    const Value user = tower("user", options_.users);
    const Value item = tower("item", options_.items);
    // Every user of the mini-batch against every item of it.
    const Value scores =
        modules_.add({.name = "scores",
                      .kind = "MatMul",
                      .inputs = {user, item},
                      .outputs = {{batch, batch}},
                      .flops = (Bytes(2) * elements(g_.shape(user)) * batch).count()});
    if (options_.training)
      modules_.train(modules_.add({.name = "loss",
                                   .kind = "CrossEntropyLoss",
                                   .inputs = {scores},
                                   .outputs = {Shape{}},
                                   .flops = 11 * elements(g_.shape(scores))}));
    return std::move(g_).finish();
  }

 private:
  Value tower(const std::string& name, std::int64_t rows) {
    const Tape::Scope scope(g_, name);
    std::vector<Value> vectors{lookup("id", rows)};
    for (std::int64_t i = 0; i < options_.features; ++i)
      vectors.push_back(lookup("feature_" + std::to_string(i), kFeatureRows));
    const auto tables = static_cast<std::int64_t>(vectors.size());
    Value x = modules_.add({.name = "cat",
                            .kind = "Concat",
                            .inputs = vectors,
                            .outputs = {{options_.batch, tables * options_.embedding}}});
    std::int64_t width = options_.width;
    for (std::int64_t layer = 0; layer < options_.layers; ++layer, width /= 2) {
      const std::string suffix = std::to_string(layer);
      x = modules_.linear("linear" + suffix, x, width);
      if (layer + 1 < options_.layers) x = modules_.elementwise("relu" + suffix, "ReLU", {x}, 1);
    }
    return modules_.elementwise("normalize", "Normalize", {x}, 4);
  }

  Value lookup(const std::string& name, std::int64_t rows) {
    const Value ids = placeholder(g_, name + "/ids", {options_.batch});
    return modules_.embedding(name, ids, rows, options_.embedding);
  }

  TwoTowerOptions options_;
  Tape g_;
  Modules modules_;
};

}  // namespace

OpGraph generate_two_tower(const TwoTowerOptions& options) {
  require_positive("batch", options.batch);
  require_positive("layers", options.layers);
  require_positive("users", options.users);
  require_positive("items", options.items);
  require_positive("embedding", options.embedding);
  if (options.features < 0) throw InputError("two-tower: features must not be negative");
  if (options.layers > 40 || options.width >> (options.layers - 1) < 1)
    throw InputError("two-tower: a width of " + std::to_string(options.width) +
                     " cannot be halved over " + std::to_string(options.layers) + " layers");
  return TwoTower(options).build();
}

}  // namespace baechi
