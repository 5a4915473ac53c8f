// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/plan/plan_evidence.h"

#include <cstdint>
#include <string_view>

#include "baechi/io/json/json_values.h"

namespace baechi {
namespace {

NamedBound read_bound(JsonReader& json) {
  NamedBound bound;
  json.read_object(2, JsonField{"name", [&] { bound.name = std::string(json.read_string()); }},
                   JsonField{"value", [&] { bound.value = read_time(json); }});
  return bound;
}

OptimizerPass::Size read_size(JsonReader& json) {
  OptimizerPass::Size size;
  const auto count = [&] { return static_cast<std::size_t>(json.read_non_negative("a number")); };
  json.read_object(3, JsonField{"operators", [&] { size.ops = count(); }},
                   JsonField{"edges", [&] { size.edges = count(); }},
                   JsonField{"groups", [&] { size.groups = count(); }});
  return size;
}

OptimizerPass read_pass(JsonReader& json) {
  OptimizerPass pass;
  json.read_object(3, JsonField{"pass", [&] { pass.pass = std::string(json.read_string()); }},
                   JsonField{"before", [&] { pass.before = read_size(json); }},
                   JsonField{"after", [&] { pass.after = read_size(json); }},
                   JsonField{"note", [&] { pass.note = std::string(json.read_string()); }});
  return pass;
}

MethodOutcome read_method(JsonReader& json, std::size_t num_devices) {
  MethodOutcome outcome;
  json.read_object(
      1, JsonField{"method", [&] { outcome.method = std::string(json.read_string()); }},
      JsonField{"makespan", [&] { outcome.makespan = read_time(json); }},
      JsonField{"fallbacks", [&] { outcome.fallbacks = read_texts(json); }},
      JsonField{"reason", [&] { outcome.reason = std::string(json.read_string()); }},
      JsonField{"devices_used",
                [&] {
                  outcome.devices_used =
                      static_cast<std::size_t>(json.read_non_negative("a number of devices"));
                }},
      JsonField{"peaks",
                [&] { json.read_array([&] { outcome.peaks.push_back(read_bytes(json)); }); }});
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
