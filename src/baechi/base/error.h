// SPDX-License-Identifier: Apache-2.0
// What goes wrong by the user's hand, as exceptions with one readable line.
#pragma once

#include <stdexcept>
#include <string>

namespace baechi {

// A file or an argument is wrong. `what()` is "place: reason", for example
// "graph.json:12:7: $.operators[3].time: expected a number, found a string".
// Exit code 2 on the command line, ValueError in Python.
class InputError : public std::runtime_error {
 public:
  explicit InputError(const std::string& reason) : std::runtime_error(reason) {}
  InputError(const std::string& place, const std::string& reason)
      : std::runtime_error(place.empty() ? reason : place + ": " + reason) {}
};

// The user asked to stop (see base/cancel.h).
class Cancelled : public std::runtime_error {
 public:
  Cancelled() : std::runtime_error("cancelled") {}
};

}  // namespace baechi
