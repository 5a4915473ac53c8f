// SPDX-License-Identifier: Apache-2.0
#include "baechi/base/near_name.h"

#include <algorithm>
#include <utility>

#include "baechi/base/in_quotes.h"

namespace baechi {

std::string in_lower_case(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t most) {
  if (a.size() > b.size()) std::swap(a, b);
  if (b.size() - a.size() > most) return most + 1;
  std::vector<std::size_t> row(a.size() + 1);
  for (std::size_t i = 0; i <= a.size(); ++i) row[i] = i;
  for (std::size_t j = 1; j <= b.size(); ++j) {
    std::size_t diagonal = std::exchange(row[0], j);
    for (std::size_t i = 1; i <= a.size(); ++i) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[i], std::min({replaced, row[i] + 1, row[i - 1] + 1}));
    }
    if (*std::min_element(row.begin(), row.end()) > most) return most + 1;
  }
  return row.back();
}

std::size_t most_edits(std::string_view name) {
  if (name.size() < 4) return name.size() / 2;  // so that something of the name is left
  return std::max<std::size_t>(2, name.size() / 3);
}

std::string did_you_mean(const std::string& name, const std::vector<std::string>& known) {
  const std::string wanted = in_lower_case(name);
  const std::string* nearest = nullptr;
  std::size_t least = most_edits(wanted) + 1;
  for (const std::string& other : known)
    if (const std::size_t edits = edit_distance(wanted, in_lower_case(other), least); edits < least)
      nearest = &other, least = edits;
  return nearest != nullptr ? "; did you mean " + in_quotes(*nearest) + "?" : std::string();
}

std::string meant_by(const std::string& name, const std::vector<std::string>& known) {
  if (std::string near = did_you_mean(name, known); !near.empty()) return near;
  std::string all;
  for (const std::string& other : known) all += (all.empty() ? "" : ", ") + other;
  return "; there are " + all;
}

std::string unknown_option(const std::string& who, const std::string& name,
                           const std::vector<std::string>& known) {
  return who + " has no option " + in_quotes(name) + meant_by(name, known);
}

}  // namespace baechi
