// SPDX-License-Identifier: Apache-2.0
// ONNX models written field by field, and what the tests of their reader and writer ask of graphs.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "baechi/io/onnx/onnx.h"
#include "unit/io/wire_text.h"
#include "unit/refusal.h"

namespace baechi::onnx_text {

inline constexpr std::uint64_t kFloat = 1, kInt64 = 7;

// A dimension of 0 is open, and named "n".
inline std::string value(std::string_view name, const std::vector<std::uint64_t>& sizes,
                         std::uint64_t element = kFloat) {
  std::string dims;
  for (const std::uint64_t size : sizes)
    dims += field(1, size != 0 ? number(1, size) : field(2, "n"));
  return field(1, name) + field(2, field(1, number(1, element) + field(2, dims)));
}
inline std::string tensor(std::string_view name, const std::vector<std::uint64_t>& sizes,
                          std::uint64_t element = kFloat,
                          const std::vector<std::uint64_t>& values = {}) {
  std::string out;
  for (const std::uint64_t size : sizes) out += number(1, size);
  out += number(2, element) + field(8, name);
  for (const std::uint64_t v : values) out += number(7, v);
  return out;
}
inline std::string integer(std::string_view name, std::uint64_t value) {
  return field(5, field(1, name) + number(3, value) + number(20, 2));
}
inline std::string body(std::string_view name, const std::string& graph) {
  return field(5, field(1, name) + field(6, graph) + number(20, 5));
}
inline std::string node(std::string_view name, std::string_view op,
                        const std::vector<std::string>& inputs,
                        const std::vector<std::string>& outputs,
                        const std::string& attributes = "") {
  std::string text;
  for (const std::string& input : inputs) text += field(1, input);
  for (const std::string& output : outputs) text += field(2, output);
  return field(1, text + field(3, name) + field(4, op) + attributes);
}
inline std::string model(const std::string& graph, std::uint64_t ir_version = 8) {
  return number(1, ir_version) + field(2, "test") + field(7, graph);
}
inline std::string input(std::string_view name, const std::vector<std::uint64_t>& sizes,
                         std::uint64_t element = kFloat) {
  return field(11, value(name, sizes, element));
}
inline std::string initializer(std::string_view name, const std::vector<std::uint64_t>& sizes) {
  return field(5, tensor(name, sizes));
}

inline ModelCosts costs(std::optional<std::int64_t> batch = {},
                        std::map<std::string, std::int64_t, std::less<>> dimensions = {}) {
  return {.kinds = parse_costed_kinds("gpu=rtx2080"),
          .batch = batch,
          .dimensions = std::move(dimensions)};
}
inline OpGraph read(const std::string& bytes, const ModelCosts& with = costs()) {
  return parse_onnx(bytes, "m.onnx", {}, with);
}
inline std::string complaint(const std::string& bytes, const ModelCosts& with = costs()) {
  return testing::refusal_of([&] { read(bytes, with); });
}
inline OpId find(const OpGraph& graph, std::string_view name) {
  const std::optional<OpId> op = graph.find(name);
  REQUIRE_MESSAGE(op.has_value(), std::string(name));
  return *op;
}
inline std::int64_t bytes_out(const OpGraph& graph, std::string_view name) {
  return graph.output_bytes(find(graph, name)).count();
}
// x [n, 4] -> MatMul w [4, 8] -> Relu.
inline std::string small_graph() {
  return node("mm", "MatMul", {"x", "w"}, {"y"}) + node("relu", "Relu", {"y"}, {"z"}) +
         input("x", {0, 4}) + initializer("w", {4, 8}) + field(12, value("z", {0, 8}));
}

}  // namespace baechi::onnx_text
