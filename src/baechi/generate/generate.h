// SPDX-License-Identifier: Apache-2.0
// Every graph that baechi can make up, by name: for `baechi generate`, examples and experiments.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "baechi/base/cancel.h"
#include "baechi/generate/costing.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

// What a user may ask of a generator; absent: the generator's default. Asking for something that
// the generator has not is an InputError.
struct GenerateRequest {
  std::optional<std::int64_t> batch = {};
  std::optional<std::int64_t> micro_batches = {};  // the graph is of one of so many equal parts
  std::optional<std::int64_t> length = {};
  std::optional<std::int64_t> layers = {};
  std::optional<std::int64_t> operators = {};
  std::optional<std::uint64_t> seed = {};
  std::optional<bool> training = {};  // else one forward pass
  std::optional<bool> shared_embedding = {};
  std::optional<bool> project_at_once = {};
  std::optional<Precision> precision = {};
  std::optional<std::vector<CostedKind>> kinds = {};  // absent: gpu=rtx2080
  const CancelFlag* cancel = nullptr;                 // when set: throws Cancelled
};

struct GeneratorEntry {
  std::string_view name;     // "gnmt"
  std::string_view summary;  // one line
  std::string_view options;  // the names of the request's members it listens to: "batch length"
  OpGraph (*generate)(const GenerateRequest& request);
  // The graph has at least so many operators: what is too large is refused before it is built.
  // Absent: the generator limits its layers itself.
  double (*least_operators)(const GenerateRequest& request) = nullptr;
};

std::span<const GeneratorEntry> all_generators();

// Throws InputError for an unknown name (listing the known ones), an option that this generator
// does not have, or a value that it cannot use.
OpGraph generate_graph(std::string_view name, const GenerateRequest& request = {});

}  // namespace baechi
