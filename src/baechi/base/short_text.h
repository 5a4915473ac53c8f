// SPDX-License-Identifier: Apache-2.0
// Times and amounts of memory for people: "12.3 ms", "4.67 GiB". io/text/quantity_text.h has the exact
// forms, and reads them.
#pragma once

#include <string>

#include "baechi/base/units.h"

namespace baechi {

// Three significant digits. Requires a value that is not negative.
std::string short_text(Time time);
std::string short_text(Bytes bytes);

// "1.50 GiB (1,610,612,736 bytes)", "17 bytes".
std::string in_words(Bytes bytes);

}  // namespace baechi
