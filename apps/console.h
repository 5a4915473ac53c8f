// SPDX-License-Identifier: Apache-2.0
// The two ways out of the command: results on stdout, words on stderr.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace baechi::cli {

// Writes to stdout. Throws InputError when that fails (a full disk), so that no cut-off result
// ends with exit code 0.
void print_result(std::string_view text);

// A result for people, who may see it in a terminal: what would steer that is escaped.
void print_text(std::string_view text);

// One line of words on stderr, likewise.
void print_words(std::string_view line);

// Help, whose descriptions begin in column `indent`: in a terminal no line is wider than it.
void print_help(std::string_view text, std::size_t indent);

// Throws InputError when a document of megabytes would go to a terminal that nobody asked for;
// `example` is a file's name.
void refuse_terminal(const std::string& path, const std::string& example);

// Writes `text` to the file, atomically, or to stdout when `path` is empty or "-".
void write_result(const std::string& path, std::string_view text);

// The same for a page, beside a result: says on stderr where it is.
void write_page(const std::string& path, std::string_view page);

}  // namespace baechi::cli
