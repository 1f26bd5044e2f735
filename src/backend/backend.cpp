#include "backend/backend.h"

#include "compile/program.h"

namespace ridge {

int64_t Code::launches() const { return int64_t(program().kernels.size()); }

void choose_products(Backend& backend, Precision precision, std::string_view matmul_precision) {
  const bool bf16 = matmul_precision == "medium" && facts_of(Precision::bf16, backend.arithmetic()).support == Support::native;
  const bool tf32 = precision == Precision::tf32 || matmul_precision == "high";
  backend.use_f32_products(bf16 ? Precision::bf16 : tf32 ? Precision::tf32 : Precision::fp32);
}

Precision product_format(const Backend& backend, Precision precision) {
  return precision == Precision::bf16 || precision == Precision::fp16 ? precision : backend.f32_products();
}

}  // namespace ridge
