// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/names_of_one.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "baechi/base/in_quotes.h"
#include "baechi/plan/fit/memory_needs.h"

namespace baechi {
namespace {

void replace_all(std::string& text, const std::string& old, const std::string& by) {
  for (std::size_t at = text.find(old); at != text.npos; at = text.find(old, at + by.size()))
    text.replace(at, old.size(), by);
}

}  // namespace

std::string in_names_of_one(std::string text, const Unrolled& step) {
  if (step.micro_batches == 1 || text.find('@') == text.npos) return text;
  const OpGraph& graph = step.graph;
  const auto name_of = [&](OpId op) { return step.name(step.original[op]); };
  for (const GroupId group : graph.groups()) {
    const auto members = graph.members(group);
    const std::string words = unit_words(graph[members.front()].name, members.size());
    if (text.find(words) == text.npos) continue;
    std::vector<OpId> originals;
    for (const OpId op : members) originals.push_back(step.original[op]);
    std::sort(originals.begin(), originals.end());
    originals.erase(std::unique(originals.begin(), originals.end()), originals.end());
    replace_all(text, words, unit_words(name_of(members.front()), originals.size()));
  }
  for (const OpId op : graph.ops())
    if (const std::string_view name = name_of(op); name != graph[op].name)
      replace_all(text, in_quotes(graph[op].name), in_quotes(name));
  return text;
}

void tell_of_one(Unplaceable& answer, const Unrolled& step) {
  answer.reason = in_names_of_one(std::move(answer.reason), step);
  if (answer.op.has_value()) answer.op = step.original[*answer.op];
  for (MethodOutcome& row : answer.methods)
    row.reason = in_names_of_one(std::move(row.reason), step);
}

}  // namespace baechi
