// Writes a fused group's nodes as straight-line code for V neighbouring elements of one thread. The skeletons (tile_source) request the values they need; each
// value's inputs are written before it, once per scope.
#pragma once
#include <string>
#include <vector>

#include "backend/gpu/tile_loops.h"

namespace ridge::gpu {

// Names in the text: x0, x1, … the axis indices (on the fastest axis, the index of the vector's first element); p0, p1, … one pointer per access; v0, v1, …
// values (arrays of V if they vary along the fastest axis); I the type of element indices; V; and A: whether vectors are aligned to their size.
class TileWriter {
 public:
  TileWriter(const TileGroup& group, const TileFacts& facts);

  void line(const std::string& text);
  void open(const std::string& text) { line(text), ++depth_; }
  void close(const char* text = "}") { --depth_, line(text); }
  std::string take() { return std::move(text_); }

  // Writes the node and everything it depends on, except what is already written. `live`: the condition under which memory may be accessed.
  void want(int node, const std::string& live);
  std::vector<int> missing(int node) const;  // what want() would write
  void store(int node, const std::string& live);
  bool has(int node) const { return !place_[size_t(node)].empty(); }
  void place(int node, std::string name) { place_[size_t(node)] = std::move(name), array_[size_t(node)] = facts_.wide(node); }  // computed by the skeleton
  std::string value(int node) const;  // if it is an array, an expression inside a loop over k
  void place_one(int node, std::string value) { place_[size_t(node)] = std::move(value), array_[size_t(node)] = 0; }  // the same for the whole vector
  void add_divisor(int node);  // for a node that divides the values of a whole row

  // Values written in a scope are forgotten when it ends; kept values stay.
  struct Scope {
    std::vector<std::string> place;
    std::vector<char> array, divisor;
  };
  Scope enter() const { return {place_, array_, divisor_}; }
  void leave(const Scope& scope) { place_ = scope.place, array_ = scope.array, divisor_ = scope.divisor; }

  // Comparisons of a position with a value that is the same for the whole vector: a test that settles the comparison for the whole vector, and its outcome.
  struct Decision {
    int node;
    std::string test;
    bool value;
  };
  std::vector<Decision> decisions(const std::vector<char>& nodes) const;
  void decide(const Decision& d) { place_[size_t(d.node)] = d.value ? "1" : "0", array_[size_t(d.node)] = 0, decided_ = true; }
  bool is_zero(int node) const { return place_[size_t(node)] == "bits_float(0x0u)"; }

  // Writes the value to this array or variable, declared by the skeleton, instead of a new one.
  void target(int node, std::string name) { target_[size_t(node)] = std::move(name); }
  void untarget() { target_.assign(target_.size(), {}); }
  // Also stores a load's elements in shared memory at this address (the first time), or reads them from there (afterwards).
  void shared(int node, std::string address, bool first) { shared_[size_t(node)] = std::move(address), shared_first_[size_t(node)] = first; }

  static const char* type(DType t);    // in registers
  static const char* memory(DType t);  // in memory
  static std::string rounded(DType t, const std::string& expression);

  std::string element(const TileAccess& access, bool wide_number) const;  // index of the (first) element

 private:
  std::string own(int node);  // declares the variable and records it
  void emit(int node, const std::string& live);
  void load(int node, const std::string& live);
  void random(int node);
  void pointwise(int node, const std::string& expression);
  std::string operation(int node) const;
  std::string cast(int node) const;
  std::string literal(const TileNode& node) const;
  std::string inside(const TileAccess& access) const;  // the bounds check as a condition; empty: none
  bool stored_only(int node) const;
  bool same_value(int a, int b) const;
  bool is_below_maximum(int node) const;  // the node is a value minus the maximum of the same values
  bool is_fixed(const TileAccess& access) const;
  int chosen(int node) const;  // the operand that a select takes if its condition is settled; -1: not settled

  const TileGroup& group_;
  const TileFacts& facts_;
  std::string text_;
  int depth_ = 0;
  bool decided_ = false;
  std::vector<std::string> place_, target_, shared_;
  std::vector<char> array_;  // is an array of V
  std::vector<char> shared_first_;
  std::vector<char> divisor_;  // a Divisor was made from it
  std::vector<char> divides_;  // divides a value that varies over more axes
};

}  // namespace ridge::gpu
