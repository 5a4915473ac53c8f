// SPDX-License-Identifier: Apache-2.0
#include "baechi/study/near_names.h"

#include <algorithm>
#include <tuple>

#include "baechi/base/error.h"
#include "baechi/base/near_name.h"

namespace baechi {
std::vector<std::string> near_names(const OpGraph& graph, std::string_view text,
                                    std::size_t count) {
  struct Match {
    bool contains;
    std::size_t distance;
    OpId op;
  };
  constexpr std::size_t kLongest = 200;  // beyond it a name is no slip of the finger
  const std::string wanted = in_lower_case(text.substr(0, kLongest));
  const std::size_t most = most_edits(wanted);
  std::vector<Match> matches;
  for (const OpId op : graph.ops()) {
    const std::string name = in_lower_case(graph[op].name);
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
