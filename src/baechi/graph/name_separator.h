// SPDX-License-Identifier: Apache-2.0
// Names of copies of operators that are no operator's name yet. Beyond the paper.
#pragma once

#include <string>
#include <string_view>

namespace baechi {

// Some of "@", "@@", ...: a name with it and something behind it is none of those it avoids.
class NameSeparator {
 public:
  explicit NameSeparator(char mark = '@') : mark_(mark), text_(1, mark) {}

  void avoid(std::string_view name) {
    while (name.find(text_) != std::string_view::npos) text_ += mark_;
  }
  std::string_view text() const { return text_; }

 private:
  char mark_;
  std::string text_;
};

}  // namespace baechi
