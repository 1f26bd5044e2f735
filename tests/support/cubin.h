// Reads a kernel's resource usage from its machine code (an ELF file), and computes a digest of its instructions.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "io/checksum.h"

namespace ridge::test {

class Cubin {
 public:
  // Registers per thread, bytes of its stack frame (spilled registers and arrays not held in registers), static shared memory per block.
  struct Use {
    int registers = -1, frame = -1;
    int64_t shared = 0;
  };

  explicit Cubin(std::string_view bytes) : bytes_(bytes) {
    const uint64_t table = read(40, uint64_t(0));
    const uint16_t count = read(60, uint16_t(0)), names = read(62, uint16_t(0));
    for (uint16_t i = 0; i < count; ++i) sections_.push_back({read(table + i * sizeof(Header), Header{}), {}});
    if (names < count)
      for (Section& s : sections_) s.name = text_at(sections_[names].header.offset + s.header.name);
  }

  Use use_of(const std::string& entry) const {
    Use use;
    const Header *symbols = nullptr, *info = nullptr;
    for (const Section& s : sections_) {
      if (s.name == ".nv.shared." + entry) use.shared = int64_t(s.header.size);
      if (s.name == ".symtab") symbols = &s.header;
      if (s.name == ".nv.info") info = &s.header;
    }
    if (!symbols || !info) return use;
    // An attribute is one byte of format, one of kind, two of size, then the value; function attributes start with the function's symbol.
    for (uint64_t at = info->offset; at + 4 <= info->offset + info->size;) {
      const uint8_t form = read(at, uint8_t(0)), kind = read(at + 1, uint8_t(0));
      const uint16_t size = read(at + 2, uint16_t(0));
      if (form == 4 && size == 8 && (kind == 0x2f || kind == 0x11)) {
        const uint32_t symbol = read(at + 4, uint32_t(0)), value = read(at + 8, uint32_t(0));
        const uint32_t name = read(symbols->offset + uint64_t(symbol) * 24, uint32_t(0));
        if (text_at(sections_[symbols->link].header.offset + name) == entry) (kind == 0x2f ? use.registers : use.frame) = int(value);
      }
      at += 4 + (form == 4 ? size : 0);
    }
    return use;
  }

  // Covers the instructions and the constants they read, but no names: a renamed kernel keeps its digest.
  std::string digest() const {
    std::vector<std::string> parts;
    for (const Section& s : sections_)
      for (std::string_view kind : {".text.", ".nv.constant", ".nv.global.init"})
        if (s.name.starts_with(kind) && s.header.offset <= bytes_.size()) parts.push_back(checksum_of(bytes_.substr(s.header.offset, s.header.size)));
    if (parts.empty()) return "no instructions";
    std::sort(parts.begin(), parts.end());  // sections are ordered by name
    std::string all;
    for (const std::string& part : parts) all += part;
    return checksum_of(all).substr(0, 16);
  }

 private:
  struct Header {
    uint32_t name, type;
    uint64_t flags, address, offset, size;
    uint32_t link, info;
    uint64_t align, entry_size;
  };
  struct Section {
    Header header;
    std::string name;
  };
  template <class T>
  T read(uint64_t at, T value) const {
    if (at + sizeof value <= bytes_.size()) std::memcpy(&value, bytes_.data() + at, sizeof value);
    return value;
  }
  std::string text_at(uint64_t at) const {
    if (at >= bytes_.size()) return {};
    return std::string(bytes_.substr(at, bytes_.find('\0', at) - at));
  }

  std::string_view bytes_;
  std::vector<Section> sections_;
};

}  // namespace ridge::test
