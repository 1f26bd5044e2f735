// Animated GIFs of pictures in colour. A frame holds only what changed since the one before it, so games take little room.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ridge {

class GifWriter {
 public:
  // Frames are height × width × 3 bytes. `samples`: some of them, one after the other; up to 255 colours are chosen by how often they occur in these, and all
  // others become the nearest of those.
  GifWriter(int width, int height, std::span<const uint8_t> samples);
  ~GifWriter();
  GifWriter(const GifWriter&) = delete;

  void add(std::span<const uint8_t> frame, int hundredths);  // shown for so many hundredths of a second
  std::string finish();                                      // the bytes of the file; plays for ever

 private:
  struct File;
  struct Change {  // a rectangle of the picture
    int left = 0, top = 0, width = 0, height = 0, hundredths = 0;
    std::vector<uint8_t> pixels;
  };
  uint8_t index_of(const uint8_t* rgb);
  void write(const Change& change);

  int width_, height_;
  std::vector<std::array<uint8_t, 3>> colours_;
  std::vector<int16_t> nearest_;  // of every colour in steps of 8; -1: not yet known
  std::vector<uint8_t> shown_, next_;
  Change last_;  // written when the next change shows how long it lasts
  std::unique_ptr<File> file_;
};

}  // namespace ridge
