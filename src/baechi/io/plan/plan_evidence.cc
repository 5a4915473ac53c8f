// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/plan/plan_evidence.h"

#include <array>
#include <cstdint>
#include <string_view>

#include "baechi/io/json/json_values.h"

namespace baechi {
namespace {

NamedBound read_bound(JsonReader& json) {
  static constexpr std::array<std::string_view, 2> kBoundNames{"name", "value"};
  NamedBound bound;
  const std::uint64_t seen = json.read_fields(kBoundNames, [&](std::size_t field) {
    if (field == 0)
      bound.name = std::string(json.read_string());
    else
      bound.value = read_time(json);
  });
  json.require_fields(kBoundNames, seen, 2);
  return bound;
}

OptimizerPass::Size read_size(JsonReader& json) {
  static constexpr std::array<std::string_view, 3> kSizeNames{"operators", "edges", "groups"};
  OptimizerPass::Size size;
  const std::uint64_t seen = json.read_fields(kSizeNames, [&](std::size_t field) {
    (field == 0   ? size.ops
     : field == 1 ? size.edges
                  : size.groups) = static_cast<std::size_t>(json.read_non_negative("a number"));
  });
  json.require_fields(kSizeNames, seen, 3);
  return size;
}

OptimizerPass read_pass(JsonReader& json) {
  static constexpr std::array<std::string_view, 4> kPassNames{"pass", "before", "after", "note"};
  OptimizerPass pass;
  const std::uint64_t seen = json.read_fields(kPassNames, [&](std::size_t field) {
    switch (field) {
      case 0:
        pass.pass = std::string(json.read_string());
        break;
      case 1:
        pass.before = read_size(json);
        break;
      case 2:
        pass.after = read_size(json);
        break;
      default:
        pass.note = std::string(json.read_string());
    }
  });
  json.require_fields(kPassNames, seen, 3);
  return pass;
}

MethodOutcome read_method(JsonReader& json, std::size_t num_devices) {
  static constexpr std::array<std::string_view, 6> kMethodNames{
      "method", "makespan", "fallbacks", "reason", "devices_used", "peaks"};
  MethodOutcome outcome;
  const std::uint64_t seen = json.read_fields(kMethodNames, [&](std::size_t field) {
    switch (field) {
      case 0:
        outcome.method = std::string(json.read_string());
        break;
      case 1:
        outcome.makespan = read_time(json);
        break;
      case 2:
        outcome.fallbacks = read_texts(json);
        break;
      case 3:
        outcome.reason = std::string(json.read_string());
        break;
      case 4:
        outcome.devices_used =
            static_cast<std::size_t>(json.read_non_negative("a number of devices"));
        break;
      default:
        json.read_array([&] { outcome.peaks.push_back(read_bytes(json)); });
    }
  });
  json.require_fields(kMethodNames, seen, 1);
  if (!outcome.peaks.empty() && outcome.peaks.size() != num_devices)
    json.fail("expected one peak for each of the cluster's devices");
  return outcome;
}

}  // namespace

std::vector<NamedBound> read_bounds(JsonReader& json) {
  std::vector<NamedBound> bounds;
  json.read_array([&] { bounds.push_back(read_bound(json)); });
  return bounds;
}

std::vector<MethodOutcome> read_methods(JsonReader& json, std::size_t num_devices) {
  std::vector<MethodOutcome> methods;
  json.read_array([&] { methods.push_back(read_method(json, num_devices)); });
  return methods;
}

std::vector<OptimizerPass> read_passes(JsonReader& json) {
  std::vector<OptimizerPass> passes;
  json.read_array([&] { passes.push_back(read_pass(json)); });
  return passes;
}

std::vector<std::string> read_texts(JsonReader& json) {
  std::vector<std::string> texts;
  json.read_array([&] { texts.emplace_back(json.read_string()); });
  return texts;
}

}  // namespace baechi
