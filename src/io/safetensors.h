// safetensors: named tensors in one file. Read strictly and without copying, written in the same form as Hugging Face's library.
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
  std::span<const std::byte> data;  // C order, little-endian; aligned in files written by Ridge, possibly unaligned in others
};

using SafetensorsMetadata = std::map<std::string, std::string>;

struct Safetensors {
  std::vector<SafetensorView> tensors;  // in the order of their data
  SafetensorsMetadata metadata;
};

// Views into `file`; its tensors must be contiguous and fill it. Values are not checked: a BOOL can hold any byte. ErrorCode::io says what is wrong with which
// tensor; `name` is the file's name in messages.
Safetensors parse_safetensors(std::span<const std::byte> file, const std::string& name = "safetensors");

// A mapped file. Copies share the mapping, and views stay valid as long as the last copy, even if the path is replaced or removed. Truncating the file in place
// invalidates its readers' pages; Ridge itself only ever replaces files.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::vector<SafetensorView>& tensors() const;
  const SafetensorsMetadata& metadata() const;
  const SafetensorView* find(std::string_view name) const;  // null: not found
  const SafetensorView& at(std::string_view name) const;    // ErrorCode::io suggests the nearest name

 private:
  struct Mapped;
  std::shared_ptr<const Mapped> mapped_;
};

// Writes the header, then the data piece by piece, so that only one piece is in memory. Nothing appears at the path before commit().
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, std::vector<SafetensorSpec> tensors, const SafetensorsMetadata& metadata = {}, const FileOptions& options = {});

  // The order in which data must be written: widest types first, so that all are aligned, then by name. It is independent of the order given.
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
