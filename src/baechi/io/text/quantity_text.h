// SPDX-License-Identifier: Apache-2.0
// Quantities with units, as people write them: "50us", "1.5GiB", "10Gbit/s". The arithmetic is
// exact in decimal; what is left beyond whole nanoseconds or bytes is rounded to the nearest.
// GB is 10^9 bytes, GiB is 2^30 bytes; a lower-case b or "bit" is a bit. All throw InputError that
// names the text.
#pragma once

#include <string>
#include <string_view>

#include "baechi/base/short_text.h"  // the forms for people
#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"

namespace baechi {

Time parse_time(std::string_view text);            // ns, us, ms, s, min
Bytes parse_bytes(std::string_view text);          // B, kB .. PB, KiB .. PiB
Bandwidth parse_bandwidth(std::string_view text);  // B/s and bit/s with the same prefixes
Speed parse_speed(std::string_view text);          // "0.6", "1.25": at most six decimals
Speed parse_factor(std::string_view text);         // the same, of anything

// Exact: parse_*() of the text gives the same value back. "1536MiB", "50us", "6GB/s", "0.6".
std::string exact_text(Time time);
std::string exact_text(Bytes bytes);
std::string exact_text(Bandwidth bandwidth);
std::string exact_text(Speed speed);

}  // namespace baechi
