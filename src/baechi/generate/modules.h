// SPDX-License-Identifier: Apache-2.0
// Operators at the grain of PyTorch modules (Paper 3.2): one forward, and backward one or, of a
// module with weights, two: the gradient by its inputs, which the modules before it wait for, and
// the one by its weights, which only the optimizer's step waits for. That is one more. All are in
// one colocation group.
//
// Memory: a module holds its parameters permanently, in training also their gradients and what Adam
// keeps: 16 bytes per parameter in any precision (with 16 bits: 2 + 2, and 32-bit weights and two
// moments).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/generate/tape.h"

namespace baechi::generate {

struct Module {
  std::string name;  // below the tape's scope
  std::string_view kind;
  std::vector<Value> inputs;
  std::vector<Shape> outputs;
  std::int64_t flops = 0;  // forward; the backward pass takes twice as many
  std::int64_t parameters = 0;
  // Of the parameters, how many one pass reads (a lookup reads few); absent: all.
  std::optional<std::int64_t> parameters_read = {};
  bool recompute = true;  // a second run gives the same outputs and changes no state
};

class Modules {
 public:
  Modules(Tape& tape, bool training) : tape_(&tape), training_(training) {}

  std::vector<Value> add_all(const Module& module);
  Value add(const Module& module);

  // [..., inner] -> [..., columns]
  Value linear(const std::string& name, Value x, std::int64_t columns, bool bias = true);
  Value embedding(const std::string& name, Value ids, std::int64_t rows, std::int64_t width);
  // One that works element by element, `flops_per_element` of its first input.
  Value elementwise(const std::string& name, std::string_view kind, std::vector<Value> inputs,
                    std::int64_t flops_per_element);
  Value norm(const std::string& name, std::string_view kind, Value x, std::int64_t parameters);

  // In training, adds the backward pass of `loss` and the optimizer's steps.
  void train(Value loss);

 private:
  void differentiate(const Module& module, Bytes moved, Backward& back);

  struct Step {
    OpId module, gradient;  // by the weights
    std::int64_t parameters;
  };

  Tape* tape_;
  bool training_;
  std::vector<Step> steps_;
};

}  // namespace baechi::generate
