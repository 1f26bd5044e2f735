#include "tasks/ppo/gif.h"

#include <gif_lib.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"

namespace ridge {
namespace {

constexpr size_t kMostColours = 255;
constexpr uint8_t kUnchanged = 255;  // the transparent colour
constexpr int kLongest = 65535;      // hundredths of a second

size_t bucket_of(const uint8_t* rgb) { return size_t(rgb[0] >> 3) << 10 | size_t(rgb[1] >> 3) << 5 | size_t(rgb[2] >> 3); }
constexpr size_t kBuckets = 1 << 15;

int append_to(GifFileType* gif, const GifByteType* bytes, int count) {
  static_cast<std::string*>(gif->UserData)->append(reinterpret_cast<const char*>(bytes), size_t(count));
  return count;
}

// The mean colours of the fullest buckets.
std::vector<std::array<uint8_t, 3>> frequent_colours(std::span<const uint8_t> pixels) {
  struct Bucket {
    int64_t count = 0, sum[3] = {};
  };
  std::vector<Bucket> buckets(kBuckets);
  for (size_t i = 0; i + 2 < pixels.size(); i += 3) {
    Bucket& b = buckets[bucket_of(&pixels[i])];
    ++b.count;
    for (size_t k = 0; k < 3; ++k) b.sum[k] += pixels[i + k];
  }
  std::stable_sort(buckets.begin(), buckets.end(), [](const Bucket& a, const Bucket& b) { return a.count > b.count; });
  std::vector<std::array<uint8_t, 3>> colours;
  for (const Bucket& b : buckets) {
    if (b.count == 0 || colours.size() == kMostColours) break;
    std::array<uint8_t, 3> c;
    for (size_t k = 0; k < 3; ++k) c[k] = uint8_t((b.sum[k] + b.count / 2) / b.count);
    colours.push_back(c);
  }
  if (colours.empty()) colours.push_back({});
  return colours;
}

}  // namespace

struct GifWriter::File {
  std::string bytes;
  GifFileType* gif = nullptr;

  ~File() {
    if (gif) EGifCloseFile(gif, nullptr);
  }
  void check(int result) const {
    if (result != GIF_OK) fail(ErrorCode::internal, "[gif] a picture could not be encoded: {}", GifErrorString(gif->Error));
  }
};

GifWriter::GifWriter(int width, int height, std::span<const uint8_t> samples)
    : width_(width), height_(height), colours_(frequent_colours(samples)), nearest_(kBuckets, -1), file_(std::make_unique<File>()) {
  if (width < 1 || height < 1 || width > kLongest || height > kLongest)
    fail(ErrorCode::value, "[gif] a picture of {} x {} pixels is not possible: 1 to {} each", width, height, kLongest);
  shown_.resize(size_t(width) * size_t(height)), next_.resize(shown_.size());
  GifColorType map[256] = {};
  for (size_t i = 0; i < colours_.size(); ++i) map[i] = {colours_[i][0], colours_[i][1], colours_[i][2]};
  int error = 0;
  file_->gif = EGifOpen(&file_->bytes, append_to, &error);
  if (!file_->gif) fail(ErrorCode::internal, "[gif] no file could be made: {}", GifErrorString(error));
  EGifSetGifVersion(file_->gif, true);
  const std::unique_ptr<ColorMapObject, void (*)(ColorMapObject*)> colours(GifMakeMapObject(256, map), GifFreeMapObject);
  file_->check(EGifPutScreenDesc(file_->gif, width, height, 8, 0, colours.get()));
  const unsigned char for_ever[] = {1, 0, 0};
  file_->check(EGifPutExtensionLeader(file_->gif, APPLICATION_EXT_FUNC_CODE));
  file_->check(EGifPutExtensionBlock(file_->gif, 11, "NETSCAPE2.0"));
  file_->check(EGifPutExtensionBlock(file_->gif, sizeof for_ever, for_ever));
  file_->check(EGifPutExtensionTrailer(file_->gif));
}

GifWriter::~GifWriter() = default;

uint8_t GifWriter::index_of(const uint8_t* rgb) {
  int16_t& known = nearest_[bucket_of(rgb)];
  if (known < 0) {
    int best = INT32_MAX;
    for (size_t i = 0; i < colours_.size(); ++i) {
      int distance = 0;
      for (size_t k = 0; k < 3; ++k) distance += (int(colours_[i][k]) - int(rgb[k])) * (int(colours_[i][k]) - int(rgb[k]));
      if (distance < best) best = distance, known = int16_t(i);
    }
  }
  return uint8_t(known);
}

void GifWriter::add(std::span<const uint8_t> frame, int hundredths) {
  if (frame.size() != 3 * shown_.size())
    fail(ErrorCode::shape, "[gif] a frame of {} bytes is not one of {} x {} pixels in 3 colours", frame.size(), width_, height_);
  for (size_t i = 0; i < next_.size(); ++i) next_[i] = index_of(&frame[3 * i]);
  const bool first = last_.pixels.empty();
  int left = width_, right = -1, top = height_, bottom = -1;  // of what changed
  for (int y = 0; y < height_; ++y) {
    const uint8_t *before = &shown_[size_t(y) * size_t(width_)], *now = &next_[size_t(y) * size_t(width_)];
    if (!first && std::memcmp(before, now, size_t(width_)) == 0) continue;
    const auto from = first ? 0 : int(std::mismatch(now, now + width_, before).first - now);
    int to = width_ - 1;
    while (!first && now[to] == before[to]) --to;
    left = std::min(left, from), right = std::max(right, to), top = std::min(top, y), bottom = y;
  }
  if (right < 0 && last_.hundredths + hundredths <= kLongest) {
    last_.hundredths += hundredths;
    return;
  }
  if (right < 0) left = right = top = bottom = 0;  // a still picture of more than ten minutes
  if (!first) write(last_);
  last_ = {left, top, right - left + 1, bottom - top + 1, std::min(hundredths, kLongest), {}};
  for (int y = top; y <= bottom; ++y)
    for (int x = left; x <= right; ++x) {
      const size_t i = size_t(y) * size_t(width_) + size_t(x);
      last_.pixels.push_back(!first && shown_[i] == next_[i] ? kUnchanged : next_[i]);
    }
  std::swap(shown_, next_);
}

void GifWriter::write(const Change& c) {
  const unsigned char control[] = {1 << 2 | 1, uint8_t(c.hundredths & 255), uint8_t(c.hundredths >> 8), kUnchanged};  // left in place, with transparency
  file_->check(EGifPutExtension(file_->gif, GRAPHICS_EXT_FUNC_CODE, sizeof control, control));
  file_->check(EGifPutImageDesc(file_->gif, c.left, c.top, c.width, c.height, false, nullptr));
  std::vector<uint8_t> row(static_cast<size_t>(c.width));
  for (int y = 0; y < c.height; ++y) {
    std::memcpy(row.data(), c.pixels.data() + size_t(y) * row.size(), row.size());  // the library may change what it is given
    file_->check(EGifPutLine(file_->gif, row.data(), c.width));
  }
}

std::string GifWriter::finish() {
  if (!last_.pixels.empty()) write(last_);
  last_.pixels.clear();
  int error = 0;
  if (EGifCloseFile(std::exchange(file_->gif, nullptr), &error) != GIF_OK)
    fail(ErrorCode::internal, "[gif] the file could not be ended: {}", GifErrorString(error));
  return std::move(file_->bytes);
}

}  // namespace ridge
