// SPDX-License-Identifier: Apache-2.0
// Places in input text, and text from it that is fit to be shown.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace baechi {

// "name:line:column", both counted from 1, columns in characters.
std::string source_place(std::string_view text, std::size_t offset, const std::string& name);

// One line of bounded length, whatever the input: what steers a terminal (control characters, C1
// ones too, and changes of direction) and bytes that are not UTF-8 become escapes, a long text is
// cut.
std::string printable(std::string_view text, std::size_t max_bytes = 400);

// The same for text of several lines: line feeds stay, nothing is cut.
std::string printable_lines(std::string_view text);

// The length of the well-formed UTF-8 sequence at the start of `text`, 0 when there is none.
std::size_t utf8_length(std::string_view text);

}  // namespace baechi
