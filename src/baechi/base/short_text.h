// SPDX-License-Identifier: Apache-2.0
// Times, memory, shares and counts for people: "12.3 ms", "4.67 GiB", "8.4%", "12,345". What the
// command and Python print comes from here; report/html/format.js has the same rules in the page's
// language. io/text/quantity_text.h has the exact forms, and reads them.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>

#include "baechi/base/units.h"

namespace baechi {

// Three significant digits, rounded half up. Requires a value that is not negative.
std::string short_text(Time time);
std::string short_text(Bytes bytes);

// "1.50 GiB", "17 bytes".
std::string in_words(Bytes bytes);
// Rounded up, as an amount to ask for: "1261 MiB", "900 KiB", "17 bytes".
std::string enough_text(Bytes bytes);

// "12,345", from its digits and from a count.
std::string with_commas(std::string digits);
template <std::integral Count>
std::string count_text(Count count) {
  return with_commas(std::to_string(count));
}
// "1 operator", "12,345 operators".
std::string counted(std::size_t count, const char* what);

// A part of a whole, rounded half up: "8.4%", "84%", "<0.1%" for what is next to nothing; beyond
// 200% as a factor, "3.5x".
std::string share_text(std::int64_t part, std::int64_t whole);
std::string share_text(double fraction);
// How much more or less, with its sign: "+8.4%", "-12%", "0%"; beyond +200% as a factor of what it
// was, "3.5x".
std::string change_text(double fraction);
// An upper bound, so rounded up: "at most 8.5% above the best possible", "at most 3.6x the best
// possible".
std::string at_most_above(double fraction, const std::string& what);
// An upper bound on a share, rounded up.
std::string at_most_share(std::int64_t part, std::int64_t whole);
// What somebody gave, with the digits that it had: "12.5%".
std::string given_share(double fraction);

}  // namespace baechi
