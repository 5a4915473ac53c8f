// SPDX-License-Identifier: Apache-2.0
#include "baechi/study/near_names.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "baechi/base/error.h"

namespace baechi {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

// Levenshtein's distance, or anything above `most` when it is more than that.
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

}  // namespace

std::vector<std::string> near_names(const OpGraph& graph, std::string_view text,
                                    std::size_t count) {
  struct Match {
    bool contains;
    std::size_t distance;
    OpId op;
  };
  constexpr std::size_t kLongest = 200;  // beyond it a name is no slip of the finger
  const std::string wanted = lower(text.substr(0, kLongest));
  const std::size_t most = std::max<std::size_t>(2, wanted.size() / 3);
  std::vector<Match> matches;
  for (const OpId op : graph.ops()) {
    const std::string name = lower(graph[op].name);
    if (!wanted.empty() && name.find(wanted) != std::string::npos) {
      matches.push_back({true, name.size() - wanted.size(), op});
    } else if (const std::size_t distance = edit_distance(wanted, name, most); distance <= most) {
      matches.push_back({false, distance, op});
    }
  }
  const auto nearer = [](const Match& a, const Match& b) {
    return std::tuple(!a.contains, a.distance, a.op) < std::tuple(!b.contains, b.distance, b.op);
  };
  const std::size_t kept = std::min(count, matches.size());
  std::partial_sort(matches.begin(), matches.begin() + static_cast<std::ptrdiff_t>(kept),
                    matches.end(), nearer);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kept; ++i) names.emplace_back(graph[matches[i].op].name);
  return names;
}

OpId find_operator(const OpGraph& graph, std::string_view name) {
  if (const std::optional<OpId> op = graph.find(name)) return *op;
  std::string words = "the graph has no operator '" + std::string(name.substr(0, 200)) + "'";
  const std::vector<std::string> near = near_names(graph, name);
  for (std::size_t i = 0; i < near.size(); ++i)
    words += (i == 0 ? "; near it: '" : ", '") + near[i] + "'";
  throw InputError(words);
}

}  // namespace baechi
