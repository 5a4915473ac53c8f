// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/text/quantity_text.h"

#include <doctest/doctest.h>

#include <string>

#include "baechi/base/error.h"
#include "baechi/base/random.h"
#include "baechi/io/text/decimal.h"

namespace baechi {
namespace {

TEST_CASE("units: GB and GiB differ, and a lower-case b is a bit") {
  CHECK(parse_bytes("8GB") == Bytes(8'000'000'000));
  CHECK(parse_bytes("8GiB") == gibibytes(8));
  CHECK(parse_bytes("1.5 GiB") == Bytes(1'610'612'736));
  CHECK(parse_bytes("512B") == Bytes(512));
  CHECK(parse_bytes("64kB") == parse_bytes("64KB"));
  CHECK(parse_bytes("0") == Bytes(0));
  CHECK(parse_bandwidth("6GB/s") == Bandwidth(6'000'000'000));
  CHECK(parse_bandwidth("10Gbit/s") == Bandwidth(1'250'000'000));
  CHECK(parse_bandwidth("10Gbps") == parse_bandwidth("10Gb/s"));
  CHECK(parse_bandwidth("10GBps") == parse_bandwidth("10GB/s"));
  CHECK(parse_bandwidth("1GiB/s") == Bandwidth(std::int64_t{1} << 30));
}

TEST_CASE("units: times are exact, in every spelling of micro") {
  CHECK(parse_time("50us") == Time(50'000));
  CHECK(parse_time("12.5us") == Time(12'500));
  CHECK(parse_time("12.5µs") == Time(12'500));
  CHECK(parse_time("12.5μs") == Time(12'500));
  CHECK(parse_time("0.1s") == Time(100'000'000));
  CHECK(parse_time("1.1ms") == Time(1'100'000));
  CHECK(parse_time("2min") == Time(120'000'000'000));
  CHECK(parse_time("3ns") == Time(3));
  CHECK(parse_time("0") == Time(0));
}

TEST_CASE("units: what is left beyond the smallest unit rounds to the nearest, halves up") {
  CHECK(parse_bytes("1.1GiB") == Bytes(1'181'116'006));  // .4 bytes more
  CHECK(parse_time("1.0005us") == Time(1'001));
  CHECK(parse_time("1.00049us") == Time(1'000));
  CHECK(parse_bandwidth("12bit/s") == Bandwidth(2));
  CHECK_THROWS_AS(parse_bandwidth("1bit/s"), InputError);  // would be none at all
}

TEST_CASE("units: a speed is a decimal with at most six places, exactly") {
  CHECK(parse_speed("0.6") == Speed(600'000));
  CHECK(parse_speed("1") == kFullSpeed);
  CHECK(parse_speed("2.25") == Speed(2'250'000));
  CHECK(parse_speed("0.000001") == Speed(1));
  CHECK_THROWS_AS(parse_speed("0.0000001"), InputError);
}

TEST_CASE("units: text that is no quantity is refused") {
  for (const char* text : {"",         "GiB",     "8",      "8G",    "8Gi",   "8gib",   "8GIB",
                           "-8GiB",    "+8GiB",   "08GiB",  ".5GiB", "5.GiB", "8GiBx",  "8  GiB",
                           "1e999GiB", "9e18GiB", "NaNGiB", "8Gb",   "0.5B",  "8,5GiB", "1_000B"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_bytes(text), InputError);
  }
  for (const char* text : {"", "5", "5sec", "5h", "-5us", "0.1ns", "1e30s", "us"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_time(text), InputError);
  }
  for (const char* text : {"", "5", "6GB", "6G/s", "6GiBit", "GB/s", "6/s"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_bandwidth(text), InputError);
  }
  for (const char* text : {"", "fast", "0.6x", "-1", "60%"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_speed(text), InputError);
  }
}

TEST_CASE("units: exact text reads back as the same value") {
  CHECK(exact_text(gibibytes(24)) == "24GiB");
  CHECK(exact_text(Bytes(8'000'000'000)) == "8GB");
  CHECK(exact_text(Bytes(0)) == "0B");
  CHECK(exact_text(microseconds(50)) == "50us");
  CHECK(exact_text(Bandwidth(6'000'000'000)) == "6GB/s");
  CHECK(exact_text(Speed(600'000)) == "0.6");
  CHECK(exact_text(kFullSpeed) == "1");
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const auto value = static_cast<std::int64_t>(random.below(std::uint64_t{1} << (seed % 63)));
    CHECK(parse_time(exact_text(Time(value))) == Time(value));
    CHECK(parse_bytes(exact_text(Bytes(value))) == Bytes(value));
    CHECK(parse_bandwidth(exact_text(Bandwidth(value))) == Bandwidth(value));
    CHECK(parse_speed(exact_text(Speed(value))) == Speed(value));
  }
}

TEST_CASE("decimal: numbers keep their value whatever their form") {
  const auto whole = [](const char* text) {
    const auto decimal = parse_decimal(text);
    REQUIRE(decimal.has_value());
    const auto scaled = scale(*decimal, 1, 1);
    REQUIRE(scaled.has_value());
    CHECK(scaled->exact);
    return decimal->negative ? -scaled->value : scaled->value;
  };
  CHECK(whole("1000.000") == 1000);
  CHECK(whole("1e3") == 1000);
  CHECK(whole("-12.5E+1") == -125);
  CHECK(whole("0.00000000000000000000000000000000000000000000000000e5") == 0);
  CHECK(whole("9223372036854775807") == 9223372036854775807);
  CHECK(whole("100000000000000000000000000000000000000000000e-44") == 1);
  CHECK_FALSE(scale(*parse_decimal("9223372036854775808"), 1, 1).has_value());
  CHECK_FALSE(scale(*parse_decimal("1e400"), 1, 1).has_value());
  CHECK_FALSE(scale(*parse_decimal("1e-400"), 1, 1)->exact);
  CHECK_FALSE(parse_decimal("1e99999999999").has_value());
  CHECK_FALSE(parse_decimal("1111111111111111111111111111111111111111").has_value());
}

TEST_CASE("decimal: a value just below, at and above one half rounds as it should") {
  CHECK(scale(*parse_decimal("0.49999999999999999999999999999999999999"), 1, 1)->value == 0);
  CHECK(scale(*parse_decimal("0.5"), 1, 1)->value == 1);
  CHECK(scale(*parse_decimal("2.5"), 1, 1)->value == 3);
  CHECK(scale(*parse_decimal("7"), 1, 8)->value == 1);
  CHECK(scale(*parse_decimal("3"), 1, 8)->value == 0);
}

TEST_CASE("decimal: only JSON's number grammar is a number") {
  for (const char* text : {"0", "-0", "10", "1.5", "1e5", "1E-5", "-1.25e+10"})
    CHECK(number_length(text) == std::string(text).size());
  for (const char* text : {"", "-", "+1", ".5", "1.", "01", "1e", "1e+", "x"})
    CHECK(number_length(text) == 0);
}

TEST_CASE("quantity text: a factor is read as a speed is, and is not called one") {
  CHECK(parse_factor("1.25") == Speed(1'250'000));
  CHECK_THROWS_WITH_AS(parse_factor("1.5x"), "factor '1.5x' is not a plain number such as 0.6",
                       InputError);
}

}  // namespace
}  // namespace baechi
