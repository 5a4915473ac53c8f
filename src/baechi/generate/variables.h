// SPDX-License-Identifier: Apache-2.0
// Model parameters as a TensorFlow graph has them: a variable, its initialiser, its read, the
// optimizer's slots and the update, all in one colocation group (Paper 3.1.1).
//
// Memory: the variable and each slot hold their bytes permanently. Operators read the variable
// through the output of its read, which counts as one copy more while it lives: the model of memory
// has no aliases. Gradients are tensors that flow to the update.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/generate/tape.h"

namespace baechi::generate {

enum class Initializer : std::uint8_t { kZeros, kOnes, kUniform, kTruncatedNormal };

struct Variable {
  OpId op;
  Value handle;
  Shape shape;
  std::optional<Value> read;  // absent where only a fused update touches it
};

class Variables {
 public:
  explicit Variables(Tape& tape) : tape_(&tape) {}

  // Adds a variable and returns the value that operators read.
  Value trainable(const std::string& name, const Shape& shape, Initializer initializer);
  // One that the optimizer does not touch.
  Variable untrained(const std::string& name, const Shape& shape, Initializer initializer);

  // Adds an operator of the step that changes `variable`: stores `value` in it (or, by `kind`, adds
  // or subtracts it), or does whatever `operation` says.
  void assign(const Variable& variable, const std::string& name, std::string_view kind,
              Value value);
  void apply(const Variable& variable, Operation operation);

  // Adds a slot that belongs to `owner`: same shape, same colocation group, starts as zeros.
  Variable slot(const Variable& owner, const std::string& name, bool with_read);

  const std::vector<Variable>& all_trainable() const { return trainable_; }
  const std::vector<OpId>& assignments() const { return assignments_; }

 private:
  struct Description {
    std::string name;
    Shape shape;
    Initializer initializer = Initializer::kZeros;
    std::optional<OpId> owner = {};
    bool with_read = true;
  };
  Variable add(const Description& description);
  Value initial_value(const Shape& shape, Initializer initializer);

  Tape* tape_;
  std::vector<Variable> trainable_;
  std::vector<OpId> assignments_;  // of the step, not of initialisers
};

// The number of steps so far, which the schedule reads.
Value step_counter(Tape& g);
// The learning rate as a scalar value, after warm-up and `decays` halvings.
Value learning_rate_schedule(Tape& g, Value global_step, int decays);

struct AdamOptions {
  bool fused = true;  // one ApplyAdam per variable, else its arithmetic operator by operator
  bool clip = false;  // gradients by their global norm
};
// Each adds the update of every trainable variable from its gradient, then the operator that waits
// for all assignments. Call once, after Tape::differentiate().
void apply_adam(Tape& g, Variables& variables, Value learning_rate, const AdamOptions& options);
void apply_rms_prop(Tape& g, Variables& variables, Value learning_rate);

}  // namespace baechi::generate
