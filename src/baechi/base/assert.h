// SPDX-License-Identifier: Apache-2.0
// Checks for our own bugs. They never see user input (that is InputError's job), are O(1), and stay
// on in every build; a failed one throws, so that a library user's process survives our fault.
#pragma once

#include <stdexcept>
#include <string>

namespace baechi {

class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void assertion_failed(const char* condition, const char* why, const char* file,
                                   int line);

}  // namespace baechi

#define BAECHI_ASSERT(condition, why)                                    \
  do {                                                                   \
    if (!(condition)) [[unlikely]]                                       \
      ::baechi::assertion_failed(#condition, (why), __FILE__, __LINE__); \
  } while (false)

#ifdef BAECHI_EXPENSIVE_CHECKS
#define BAECHI_EXPENSIVE_ASSERT(condition, why) BAECHI_ASSERT(condition, why)
#else
#define BAECHI_EXPENSIVE_ASSERT(condition, why) \
  do {                                          \
  } while (false)
#endif
