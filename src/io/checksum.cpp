#include "io/checksum.h"

#include <fmt/core.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ridge {
namespace {

std::string hex_of(XXH128_hash_t hash) { return fmt::format("{:016x}{:016x}", hash.high64, hash.low64); }

}  // namespace

struct Checksum::State {
  XXH3_state_t hash;
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->hash); }
Checksum::~Checksum() = default;

void Checksum::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->hash, bytes.data(), bytes.size());
  bytes_ += int64_t(bytes.size());
}

std::string Checksum::hex() const { return hex_of(XXH3_128bits_digest(&state_->hash)); }

std::string checksum_of(std::string_view text) { return hex_of(XXH3_128bits(text.data(), text.size())); }

}  // namespace ridge
