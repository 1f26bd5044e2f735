// What a kernel takes of a multiprocessor, read from its machine code (an ELF file): registers of a thread, bytes of its frame (spilled
// registers and arrays that are no registers), static shared memory of a block.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace ridge::test {

struct KernelUse {
  int registers = -1, frame = -1;
  int64_t shared = 0;
};

inline KernelUse use_of(const std::string& cubin, const std::string& entry) {
  struct Section {
    uint32_t name, type;
    uint64_t flags, address, offset, size;
    uint32_t link, info;
    uint64_t align, entry_size;
  };
  auto read = [&](uint64_t at, auto value) {
    if (at + sizeof value <= cubin.size()) std::memcpy(&value, cubin.data() + at, sizeof value);
    return value;
  };
  auto text_at = [&](uint64_t at) { return at < cubin.size() ? std::string(cubin.c_str() + at) : std::string(); };
  const uint64_t table = read(40, uint64_t(0));
  const uint16_t count = read(60, uint16_t(0)), names = read(62, uint16_t(0));
  std::vector<Section> sections;
  for (uint16_t i = 0; i < count; ++i) sections.push_back(read(table + i * sizeof(Section), Section{}));
  KernelUse use;
  if (sections.empty()) return use;
  auto name_of = [&](const Section& s) { return text_at(sections[names].offset + s.name); };
  const Section *symbols = nullptr, *info = nullptr;
  for (const Section& s : sections) {
    if (name_of(s) == ".nv.shared." + entry) use.shared = int64_t(s.size);
    if (name_of(s) == ".symtab") symbols = &s;
    if (name_of(s) == ".nv.info") info = &s;
  }
  if (!symbols || !info) return use;
  // Attributes: a byte of form, a byte of kind, two of size, then the value; those of a function begin with its symbol.
  for (uint64_t at = info->offset; at + 4 <= info->offset + info->size;) {
    const uint8_t form = read(at, uint8_t(0)), kind = read(at + 1, uint8_t(0));
    const uint16_t size = read(at + 2, uint16_t(0));
    if (form == 4 && size == 8 && (kind == 0x2f || kind == 0x11)) {
      const uint32_t symbol = read(at + 4, uint32_t(0)), value = read(at + 8, uint32_t(0));
      const uint32_t name = read(symbols->offset + uint64_t(symbol) * 24, uint32_t(0));
      if (text_at(sections[symbols->link].offset + name) == entry) (kind == 0x2f ? use.registers : use.frame) = int(value);
    }
    at += 4 + (form == 4 ? size : 0);
  }
  return use;
}

}  // namespace ridge::test
