// SPDX-License-Identifier: Apache-2.0
#include "apps/console.h"

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "apps/system.h"
#include "baechi/base/error.h"
#include "baechi/io/text/source_place.h"
#include "baechi/io/text/text_file.h"

namespace baechi::cli {
namespace {

bool is_rule(std::string_view line) {
  return line.starts_with('-') && line.find_first_not_of("- ") == line.npos;
}

// At most `width` code points, the last one an ellipsis where more stood there.
std::string short_line(std::string_view line, std::size_t width) {
  std::size_t count = 0, cut = line.size();
  for (std::size_t i = 0; i < line.size(); ++i) {
    if ((static_cast<unsigned char>(line[i]) & 0xC0U) == 0x80U) continue;
    if (++count == width) cut = i;
  }
  return count <= width ? std::string(line) : std::string(line.substr(0, cut)) + "…";
}

// Cuts the lines of tables, each a header, a rule and rows up to an empty line.
std::string with_tables_cut(std::string_view text, std::size_t width) {
  std::vector<std::string_view> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  std::string result;
  bool inside = false;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    inside = !lines[i].empty() && (inside || (i + 1 < lines.size() && is_rule(lines[i + 1])));
    result += inside ? short_line(lines[i], width) : std::string(lines[i]);
    result += '\n';
  }
  return result;
}

// Breaks the line at spaces; what follows starts in column `indent`.
void append_folded(std::string& result, std::string line, std::size_t indent, std::size_t width) {
  while (line.size() > width) {
    const std::size_t space = line.rfind(' ', width);
    if (space == line.npos || space <= indent) break;
    result += line.substr(0, space) + '\n';
    line = std::string(indent, ' ') + line.substr(space + 1);
  }
  result += line + '\n';
}

}  // namespace

void print_help(std::string_view text, std::size_t indent) {
  if (!output_is_terminal() || terminal_width() < 2 * indent) return print_result(text);
  std::string result;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);)
    append_folded(result, line, line.starts_with("  ") ? indent : 0, terminal_width());
  print_result(result);
}

void refuse_terminal(const std::string& path, const std::string& example) {
  if (path.empty() && output_is_terminal())
    throw InputError("--output", "this is megabytes of JSON: name a file, such as -o " + example +
                                     "; -o - writes it here");
}

void print_result(std::string_view text) { write_standard_output(text); }

void print_text(std::string_view text) {
  const std::string safe = printable_lines(text);
  print_result(output_is_terminal() ? with_tables_cut(safe, terminal_width()) : safe);
}

void print_words(std::string_view line) {
  std::fprintf(stderr, "%s\n", printable(line, std::string::npos).c_str());
}

void write_result(const std::string& path, std::string_view text) {
  if (path.empty() || path == "-")
    print_result(text);
  else
    write_text_file(path, text);
}

void write_page(const std::string& path, std::string_view page) {
  write_text_file(path, page);
  print_words("wrote " + path + ": open it in a browser");
}

}  // namespace baechi::cli
