// SPDX-License-Identifier: Apache-2.0
// Builds the graph of a training step the way TensorFlow does (Paper 4.1): a model definition adds
// forward operators; differentiate() walks them backwards, adds their gradient operators, colocated
// with the forward operator, and sums the gradients of tensors that were used more than once.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/generate/costing.h"
#include "baechi/graph/op_graph.h"
#include "baechi/graph/op_graph_builder.h"

namespace baechi::generate {

using Value = Id<struct ValueTag>;  // a tensor on the tape
using Shape = std::vector<std::int64_t>;

std::int64_t elements(const Shape& shape);

// An operator to add.
struct Operation {
  std::string name;  // below the current scope; made unique as "mul", "mul_1", "mul_2"
  std::string_view kind;
  std::vector<Value> inputs = {};
  std::vector<Shape> outputs = {};
  std::int64_t flops = 0;
  bool kernel = true;               // false: constants, shapes, views
  std::optional<Bytes> moved = {};  // absent: every input and output once
  Bytes permanent = {};
  Bytes temporary = {};
  std::vector<OpId> after = {};       // control edges from these
  std::optional<OpId> colocate = {};  // joins the colocation group of this operator
  std::optional<OpId> forward = {};   // it is a backward operator of this one, hence colocated
  bool trainable = false;             // holds parameters: its outputs want gradients
  bool update = false;                // belongs to the update: backward, but of no operator
  bool recompute = true;              // a second run gives the same outputs
};

class Tape;

// What the gradient function of one forward operator sees.
class Backward {
 public:
  // Whether a gradient has reached this output, and that gradient.
  bool has_gradient(std::size_t output) const { return gradients_[output].has_value(); }
  Value gradient(std::size_t output = 0) const;
  Value output(std::size_t index = 0) const { return outputs_[index]; }
  OpId forward() const { return forward_; }
  OpId last_added() const;  // the operator that add() or add_all() added last
  const Shape& shape(Value value) const;
  Bytes bytes(Value value) const;
  bool wants(Value input) const;  // false: its gradient is not needed

  // Adds a backward operator, named below "gradients/FORWARD_grad/".
  std::vector<Value> add_all(Operation operation);
  Value add(Operation operation);

  void give(Value input, Value gradient);
  // The gradient is zero but for some rows: `rows` of it, at `indices`.
  void give_rows(Value input, Value rows, Value indices);

 private:
  friend class Tape;
  struct Given {
    Value input, gradient;
    std::optional<Value> indices;
  };
  Backward(Tape& tape, OpId forward, std::vector<Value> outputs)
      : tape_(&tape), forward_(forward), outputs_(std::move(outputs)) {}

  Tape* tape_;
  OpId forward_;
  std::vector<Value> outputs_;
  std::vector<std::optional<Value>> gradients_;
  std::vector<Given> given_;
};

using Gradient = std::function<void(Backward&)>;

class Tape {
 public:
  struct Options {
    std::string name;
    std::int64_t batch = 1;
    Costing costing = {};
    // TensorFlow's GATE_OP: no gradient of an operator is used before all of them are there.
    bool gate_gradients = false;
  };
  explicit Tape(Options options);

  // Adds an operator; `gradient` as its derivative, absent where none flows through it.
  std::vector<Value> add_all(const Operation& operation, Gradient gradient = {});
  Value add(const Operation& operation, Gradient gradient = {});  // the only output
  OpId add_sink(const Operation& operation);                      // without outputs

  const Shape& shape(Value value) const { return values_[value].shape; }
  Bytes bytes(Value value) const { return values_[value].bytes; }
  Bytes bytes_of(const Shape& shape) const;
  OpId producer(Value value) const { return values_[value].producer; }
  const std::string& name(OpId op) const { return names_[op]; }
  const Costing& costing() const { return options_.costing; }

  void require_gradient(Value value);  // as of a trainable variable
  bool wants_gradient(Value value) const { return values_[value].wants_gradient; }

  // Adds the backward pass of `loss`, once per tape; gradient() answers after it.
  void differentiate(Value loss);
  std::optional<Value> gradient(Value value) const { return values_[value].gradient; }

  // Names added during the scope's life are below `name`, or below the root if it begins with '/'.
  class Scope {
   public:
    Scope(Tape& tape, std::string_view name);
    ~Scope() { tape_->scope_ = outer_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Tape* tape_;
    std::string outer_;
  };

  // Operators added during its life run once per step, the others once per micro-batch.
  class OncePerStep {
   public:
    explicit OncePerStep(Tape& tape) : tape_(&tape), outer_(tape.once_per_step_) {
      tape.once_per_step_ = true;
    }
    ~OncePerStep() { tape_->once_per_step_ = outer_; }
    OncePerStep(const OncePerStep&) = delete;
    OncePerStep& operator=(const OncePerStep&) = delete;

   private:
    Tape* tape_;
    bool outer_;
  };

  OpGraph finish() &&;

 private:
  friend class Backward;
  struct Partial {  // a term of a gradient
    Value value;
    std::optional<Value> indices;  // if it is only some rows
  };
  struct Entry {  // of a value
    TensorId tensor;
    OpId producer;
    Shape shape;
    Bytes bytes;
    bool wants_gradient;
    std::uint32_t uses;  // forward operators whose gradient functions have not run yet
    std::vector<Partial> partials;
    std::optional<Value> gradient;  // their sum, once uses is 0
  };
  struct Step {  // of the forward pass
    OpId op;
    std::vector<Value> inputs, outputs;
    Gradient gradient;
  };

  std::string unique_name(std::string name);
  std::vector<Value> emit(const std::string& name, const Operation& operation);
  void colocate(OpId op, OpId with);
  void gate(Backward& backward);
  void run_backward(const Step& step);
  void drop_use(Value value);
  std::optional<Value> sum_gradients(Value value);
  Value densify(Value value, const std::vector<Partial>& rows);

  Options options_;
  OpGraphBuilder builder_;
  std::string scope_;  // "" or "outer/inner/"
  bool once_per_step_ = false;
  std::unordered_map<std::string, std::uint32_t> times_used_;
  IdVector<OpId, std::string> names_;
  IdVector<OpId, OpId> group_leader_;  // itself: in no group, or the one that names it
  IdVector<Value, Entry> values_;
  std::vector<Step> steps_;
};

}  // namespace baechi::generate
