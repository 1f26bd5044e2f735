// NumPy's .npy files: one array, read strictly (versions 1 to 3) and written as version 1.0.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "ridge/dtype.h"
#include "ridge/shape.h"

namespace ridge {

struct NpyArray {
  DType dtype = DType::f32;
  Shape shape;
  std::vector<std::byte> data;  // C order, little-endian
};

// f2 f4 f8 i4 i8 u1 b1, little-endian, in C or Fortran order; bf16 is the two raw bytes '<V2', which NumPy has no type for.
// ErrorCode::io describes what is wrong with the file; ErrorCode::dtype lists the types that can be read.
NpyArray parse_npy(std::span<const std::byte> file, const std::string& name = "npy");
NpyArray read_npy(const std::string& path);

std::vector<std::byte> format_npy(DType dtype, const Shape& shape, std::span<const std::byte> data);
void write_npy(const std::string& path, const NpyArray& array);  // complete or absent: written to a temporary file, then renamed

}  // namespace ridge
