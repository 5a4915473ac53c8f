// SPDX-License-Identifier: Apache-2.0
// Costs for a model that comes without any, or with estimates only: measured ones from profiles,
// and from shapes, by a roofline on known devices (Paper 4.1 measures them all).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/cost/profile.h"
#include "baechi/generate/costing.h"

namespace baechi {

struct ProfileSource {
  std::string place;  // the file's name, for errors and notes
  Profile profile;
};

struct ModelCosts {
  std::vector<CostedKind> kinds = {};      // to estimate for
  std::optional<std::int64_t> batch = {};  // what stands for a dimension that the model leaves open
  std::map<std::string, std::int64_t, std::less<>> dimensions = {};  // for some of them, by name
  std::vector<ProfileSource> profiles = {};  // the last one that has a cost says it
  bool in_python = false;  // errors name Python's arguments, where else the command's options

  // Neither an estimate nor a measurement: models without costs are refused.
  bool empty() const { return kinds.empty() && profiles.empty(); }
};

// `text` is KIND=PRESET,... or names a profile file: a text without '=', or with '/'. Throws
// InputError for what is neither.
void add_model_costs(const std::string& text, ModelCosts& costs);

// What to say to the one who gave too little, in the words of the command or of Python.
std::string costs_to_give(bool in_python);                             // --costs gpu=rtx3090
std::string batch_to_give(bool in_python);                             // --batch N
std::string dimension_to_give(std::string_view name, bool in_python);  // --dim NAME=N

// with_profile() for all of them, errors beginning with the file's name.
OpGraph with_profiles(OpGraph graph, const ModelCosts& costs);

// The size of the batch: what was asked for, else what a profile was measured with.
std::optional<std::int64_t> batch_of(const ModelCosts& costs);

// Kinds that only profiles have times for: what is not in the profile takes no time on them.
std::vector<std::string> unestimated_kinds(const ModelCosts& costs);

// Without any estimates that must be little: throws InputError "place: reason" when most of a
// model's operators are in no profile.
void check_coverage(const std::vector<std::string_view>& operators, const std::string& place,
                    const ModelCosts& costs);

// What people should know about a graph and its costs: what its reader assumed, what profiles lack,
// and whose times are no measurements. One sentence each.
std::vector<std::string> profile_notes(const OpGraph& graph, const ModelCosts& costs);

}  // namespace baechi
