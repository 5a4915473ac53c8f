// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/profile/model_costs.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/base/near_name.h"
#include "baechi/io/profile/profile_file.h"
#include "baechi/io/text/source_place.h"
#include "baechi/io/text/text_file.h"

namespace baechi {
namespace {

bool names_a_preset(std::string_view text) {
  const auto& presets = all_device_presets();
  const std::string name = in_lower_case(text);
  return std::any_of(presets.begin(), presets.end(),
                     [&](const DevicePreset& preset) { return preset.name == name; });
}

void add_presets(const std::string& text, ModelCosts& costs) {
  for (CostedKind& kind : parse_costed_kinds(text)) {
    const bool twice = std::any_of(costs.kinds.begin(), costs.kinds.end(),
                                   [&](const CostedKind& k) { return k.kind == kind.kind; });
    if (twice) throw InputError("devices '" + text + "'", "kind '" + kind.kind + "' occurs twice");
    costs.kinds.push_back(std::move(kind));
  }
}

}  // namespace

void add_model_costs(const std::string& text, ModelCosts& costs) {
  if (text.find('=') != text.npos && text.find('/') == text.npos) return add_presets(text, costs);
  const std::string name = costs.in_python ? "costs" : "--costs";
  if (names_a_preset(text))
    throw InputError(name, "for which kind of device is the preset? as in gpu=" + text);
  if (std::error_code unknown; text != "-" && !std::filesystem::exists(text, unknown) && !unknown)
    throw InputError(
        name, in_quotes(text) + " is no file of measured costs, nor KIND=PRESET as in gpu=rtx3090");
  SourceText source = read_text_file(text);
  Profile profile = reading(source.name, [&] { return parse_profile(source.text, source.name); });
  costs.profiles.push_back({std::move(source.name), std::move(profile)});
}

OpGraph with_profiles(OpGraph graph, const ModelCosts& costs) {
  for (const ProfileSource& source : costs.profiles) {
    try {
      graph = with_profile(graph, source.profile);
    } catch (const InputError& error) {
      throw InputError(source.place, printable(error.what()));
    }
  }
  return graph;
}

std::optional<std::int64_t> batch_of(const ModelCosts& costs) {
  std::optional<std::int64_t> batch = costs.batch;
  for (const ProfileSource& source : costs.profiles)
    if (!batch.has_value()) batch = source.profile.batch_size;
  return batch;
}

std::vector<std::string> unestimated_kinds(const ModelCosts& costs) {
  std::vector<std::string> kinds;
  for (const ProfileSource& source : costs.profiles)
    for (std::string& kind : measured_kinds(source.profile))
      if (std::ranges::find(costs.kinds, kind, &CostedKind::kind) == costs.kinds.end() &&
          std::ranges::find(kinds, kind) == kinds.end())
        kinds.push_back(std::move(kind));
  return kinds;
}

std::string costs_to_give(bool in_python) {
  return in_python ? "costs=\"gpu=rtx3090\"" : "--costs gpu=rtx3090";
}

std::string batch_to_give(bool in_python) { return in_python ? "batch=N" : "--batch N"; }

std::string dimension_to_give(std::string_view name, bool in_python) {
  const std::string shown = printable(name, 60);
  return in_python ? "dimensions={\"" + shown + "\": N}" : "--dim " + shown + "=N";
}

void check_coverage(const std::vector<std::string_view>& operators, const std::string& place,
                    const ModelCosts& costs) {
  if (!costs.kinds.empty()) return;
  std::unordered_set<std::string_view> measured;
  for (const ProfileSource& source : costs.profiles)
    for (const OperatorProfile& op : source.profile.operators) measured.insert(op.name);
  const auto known = static_cast<std::size_t>(std::ranges::count_if(
      operators, [&](std::string_view name) { return measured.contains(name); }));
  if (2 * known < operators.size())
    throw InputError(place, "only " + std::to_string(known) + " of " +
                                std::to_string(operators.size()) + " operators are in " +
                                costs.profiles.front().place + ": estimate the others, as with " +
                                costs_to_give(costs.in_python));
}

namespace {

// Loops whose work nobody knows: estimates see what goes in and out of one only.
void add_loop_note(const OpGraph& graph, const ModelCosts& costs, std::vector<std::string>& notes) {
  if (costs.kinds.empty()) return;
  std::unordered_set<std::string_view> measured;
  for (const ProfileSource& source : costs.profiles)
    for (const OperatorProfile& op : source.profile.operators) measured.insert(op.name);
  std::size_t count = 0;
  std::string_view first;
  for (const OpId op : graph.ops()) {
    const std::string_view kind = graph[op].kind;
    if ((kind != "While" && kind != "StatelessWhile") || measured.contains(graph[op].name))
      continue;
    if (count++ == 0) first = graph[op].name;
  }
  if (count > 0)
    notes.push_back(printable(in_quotes(first), 120) +
                    (count == 1
                         ? " is a loop, which counts"
                         : " and " + std::to_string(count - 1) + " more are loops, which count") +
                    " as one operator without the work of its steps: measure the costs, or unroll");
}

}  // namespace

std::vector<std::string> profile_notes(const OpGraph& graph, const ModelCosts& costs) {
  std::vector<std::string> notes = graph.notes(), measured;
  add_loop_note(graph, costs, notes);
  if (costs.profiles.empty()) return notes;
  for (const ProfileSource& source : costs.profiles) {
    for (const std::string& note : coverage_notes(graph, source.profile))
      notes.push_back(source.place + ": " + printable(note));
    for (std::string& kind : measured_kinds(source.profile)) measured.push_back(std::move(kind));
  }
  const auto is_measured = [&](std::string_view kind) {
    return std::find(measured.begin(), measured.end(), kind) != measured.end();
  };
  if (is_measured(kAnyKind)) return notes;
  for (const KindId kind : graph.kinds())
    if (const std::string_view name = graph.kind_name(kind); !is_measured(name))
      notes.push_back(costs.profiles.front().place + ": has no times for " +
                      (name == kAnyKind ? "other device kinds"
                                        : printable("device kind " + in_quotes(name), 120)) +
                      ": those are estimates");
  return notes;
}

}  // namespace baechi
