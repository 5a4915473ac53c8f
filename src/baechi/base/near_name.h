// SPDX-License-Identifier: Apache-2.0
// Names that a misspelt one may have meant.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace baechi {

std::string in_lower_case(std::string_view text);

// Levenshtein's distance, or anything above `most` when it is more than that.
std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t most);

// So many edits still make a slip of the finger.
std::size_t most_edits(std::string_view name);

// "; did you mean 'NEAR'?", whatever its case; empty when none is near.
std::string did_you_mean(const std::string& name, const std::vector<std::string>& known);

// The same, or "; there are " and the known names when none is near.
std::string meant_by(const std::string& name, const std::vector<std::string>& known);

// "WHO has no option 'NAME'; did you mean 'NEAR'?", or what there is when nothing is near.
std::string unknown_option(const std::string& who, const std::string& name,
                           const std::vector<std::string>& known);

}  // namespace baechi
