// safetensors: named tensors in one file. Read strictly and without copies, written as Hugging Face's library writes it.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/atomic_file.h"
#include "ridge/dtype.h"
#include "ridge/shape.h"

namespace ridge {

struct SafetensorSpec {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

struct SafetensorView : SafetensorSpec {
  std::span<const std::byte> data;  // C order, little-endian; aligned in files by Ridge, at any address in others'
};

using SafetensorsMetadata = std::map<std::string, std::string>;

struct Safetensors {
  std::vector<SafetensorView> tensors;  // in the order of their data
  SafetensorsMetadata metadata;
};

// Views into `file`, whose tensors lie back to back and fill it. Values are not looked at: a BOOL can have any byte.
// ErrorCode::io says what is wrong, in which tensor; `name` is what it calls the file.
Safetensors parse_safetensors(std::span<const std::byte> file, const std::string& name = "safetensors");

// A mapped file. Copies share the mapping, and views live as long as the last of them, also when the path is replaced or removed meanwhile.
// A file that is cut short in its place takes the pages of its readers away; Ridge itself only ever replaces files.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::vector<SafetensorView>& tensors() const;
  const SafetensorsMetadata& metadata() const;
  const SafetensorView* find(std::string_view name) const;  // null: there is none
  const SafetensorView& at(std::string_view name) const;    // ErrorCode::io names the nearest

 private:
  struct Mapped;
  std::shared_ptr<const Mapped> mapped_;
};

// Writes header first, then data as it comes, so that no more than a piece is in memory. Nothing is at the path before commit().
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, std::vector<SafetensorSpec> tensors, const SafetensorsMetadata& metadata = {}, const FileOptions& options = {});

  // The order in which data must be written: wide types first, so that all are aligned, then by name. It does not depend on the order given.
  const std::vector<SafetensorSpec>& order() const { return order_; }
  void write(std::span<const std::byte> piece);  // the next bytes; pieces need not be whole tensors
  void commit();                                 // ErrorCode::value when bytes are missing

 private:
  std::vector<SafetensorSpec> order_;
  AtomicFile file_;
  int64_t end_ = 0;  // size of the whole file
};

void write_safetensors(const std::string& path, std::span<const SafetensorView> tensors, const SafetensorsMetadata& metadata = {},
                       const FileOptions& options = {});

}  // namespace ridge
