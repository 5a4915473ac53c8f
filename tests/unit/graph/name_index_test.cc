// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/name_index.h"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "baechi/base/random.h"

namespace baechi {
namespace {

TEST_CASE("name index: agrees with a map through growth, repeats and misses") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    NameIndex index;
    if (seed % 2 == 1) index.reserve(random.below(300));
    std::vector<std::string> names;
    std::map<std::string, OpId> expected;
    const auto name_of = [&](OpId op) -> std::string_view { return names[op.index()]; };
    CHECK_FALSE(index.find("", name_of).has_value());
    for (int i = 0; i < 600; ++i) {
      const std::string name(random.below(3), static_cast<char>('a' + random.below(26)));
      const std::string text = name + std::to_string(random.below(200));
      const OpId next(names.size());
      const bool added = index.insert(text, next, name_of);
      CHECK(added == expected.emplace(text, next).second);
      if (added) names.push_back(text);
      const std::string other = std::to_string(random.below(400));
      const auto at = expected.find(other);
      CHECK(index.find(other, name_of) ==
            (at == expected.end() ? std::optional<OpId>() : std::optional<OpId>(at->second)));
    }
    for (const auto& [name, op] : expected) CHECK(index.find(name, name_of) == op);
  }
}

}  // namespace
}  // namespace baechi
