// SPDX-License-Identifier: Apache-2.0
// A line on stderr that says what takes so long: only on a terminal, and only after a second.
#pragma once

#include <memory>
#include <string>

namespace baechi::cli {

// Shows "words (3 s)", and news if there are any, while it lives, and takes the line away again.
class Progress {
 public:
  explicit Progress(const std::string& words);
  ~Progress();

  void tell(const std::string& news);  // shown behind the time from now on

 private:
  struct Ticker;
  std::unique_ptr<Ticker> ticker_;  // absent when stderr is no terminal
};

}  // namespace baechi::cli
