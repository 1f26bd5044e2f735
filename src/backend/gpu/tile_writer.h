// Writes a fused group's nodes as straight-line code for V neighbouring elements of one thread. The skeletons around it (tile_source)
// say which values are wanted where; what they need is written before them, once per scope.
#pragma once
#include <string>
#include <vector>

#include "backend/gpu/tile_loops.h"

namespace ridge::gpu {

// Names in the text: x0, x1, … the indices of the axes (of the fastest one that of the vector's first element), p0, p1, … a pointer per
// access, v0, v1, … values (arrays of V where they vary along the fastest axis), I the type of element numbers, V, and
// A: whether vectors lie at multiples of their size.
class TileWriter {
 public:
  TileWriter(const TileGroup& group, const TileFacts& facts);

  void line(std::string text);
  void open(std::string text) { line(std::move(text)), ++depth_; }
  void close(const char* text = "}") { --depth_, line(text); }
  std::string take() { return std::move(text_); }

  // Writes what the node needs and the node itself, unless they are there already. `live`: whether memory may be touched.
  void want(int node, const std::string& live);
  std::vector<int> missing(int node) const;  // what want() would write
  void store(int node, const std::string& live);
  bool has(int node) const { return !place_[size_t(node)].empty(); }
  void place(int node, std::string name) { place_[size_t(node)] = std::move(name), array_[size_t(node)] = facts_.wide(node); }  // made by the skeleton
  std::string value(int node) const;                                                                                  // inside a loop over k where it is wide
  void place_one(int node, std::string value) { place_[size_t(node)] = std::move(value), array_[size_t(node)] = 0; }  // the same for all of the vector
  void add_divisor(int node);                                                                                         // where it divides values of a whole row

  // Values made in a scope are forgotten when it ends; kept ones stay.
  struct Scope {
    std::vector<std::string> place;
    std::vector<char> array, divisor;
  };
  Scope enter() const { return {place_, array_, divisor_}; }
  void leave(const Scope& scope) { place_ = scope.place, array_ = scope.array, divisor_ = scope.divisor; }

  // Comparisons of a position with what is the same for the whole vector: a test that decides it for all of it, and what it then is.
  struct Decision {
    int node;
    std::string test;
    bool value;
  };
  std::vector<Decision> decisions(const std::vector<char>& nodes) const;
  void decide(const Decision& d) { place_[size_t(d.node)] = d.value ? "1" : "0", array_[size_t(d.node)] = 0, decided_ = true; }
  bool is_zero(int node) const { return place_[size_t(node)] == "bits_float(0x0u)"; }

  // The value goes to this array or variable, declared by the skeleton, instead of one of its own.
  void target(int node, std::string name) { target_[size_t(node)] = std::move(name); }
  void untarget() { target_.assign(target_.size(), {}); }
  // A load's elements also go to (first time) or come from (afterwards) shared memory at this address.
  void shared(int node, std::string address, bool first) { shared_[size_t(node)] = std::move(address), shared_first_[size_t(node)] = first; }

  static const char* type(DType t);    // in registers
  static const char* memory(DType t);  // in memory
  static std::string rounded(DType t, const std::string& expression);

 private:
  std::string own(int node);  // declares the variable and notes it
  void emit(int node, const std::string& live);
  void load(int node, const std::string& live);
  void random(int node);
  void pointwise(int node, const std::string& expression);
  std::string operation(int node) const;
  std::string cast(int node) const;
  std::string literal(const TileNode& node) const;
  std::string element(const TileAccess& access, bool wide_number) const;  // number of the (first) element
  std::string inside(const TileAccess& access) const;                     // condition of the bounds; empty: none
  bool stored_only(int node) const;
  bool same_value(int a, int b) const;
  bool is_below_maximum(int node) const;  // a difference to the maximum of the same values
  bool is_fixed(const TileAccess& access) const;
  int chosen(int node) const;  // of a select whose condition is decided; -1: not decided

  const TileGroup& group_;
  const TileFacts& facts_;
  std::string text_;
  int depth_ = 0;
  bool decided_ = false;
  std::vector<std::string> place_, target_, shared_;
  std::vector<char> array_;  // of V
  std::vector<char> shared_first_;
  std::vector<char> divisor_;  // a Divisor was made of it
  std::vector<char> divides_;  // some value that varies more often is divided by it
};

}  // namespace ridge::gpu
