// The compiler's columns of the op table: how the fuser treats each op, and how few files an op takes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "compile/pipeline.h"
#include "compile/program.h"
#include "graph/builder.h"
#include "graph/ops/table.h"
#include "support/source_dir.h"

namespace ridge {
namespace {

TEST(OpClasses, MatchTheFuser) {
  for (int i = 0; i < int(Op::count); ++i) {
    const Op op = Op(i);
    if (!row(op).samples || row(op).fusion == Fusion::no_kernel || op == Op::conv) continue;  // without a backend, convolutions are decomposed
    int seen = 0;
    row(op).samples([&](const Sample& sample) {
      if (++seen > 3) return;
      Graph g;
      std::vector<NodeId> inputs, outputs;
      for (const Sample::Operand& o : sample.in)
        if (row(op).max_in < 0 || int(inputs.size()) < row(op).max_in) inputs.push_back(g.input(o.type, "x"));  // logic samples also serve unary ops
      const NodeId node = g.add(op, inputs, sample.attrs);
      for (int k = 0; k < int(g[node].types.size()); ++k) outputs.push_back(g[node].types.size() == 1 ? node : Builder(g).get(node, k));
      PipelineOptions options;
      options.passes = "-simplify";
      const Program p = compile_graph(g, inputs, outputs, options);
      for (const ProgramKernel& kernel : p.kernels) {
        if (kernel.group.node && p.graph[kernel.group.node].op == op) {
          const bool product = kernel.group.kind == Group::Kind::matmul;
          EXPECT_EQ(row(op).fusion, product ? Fusion::product : op == Op::pad ? Fusion::view : Fusion::alone) << name(op);
        }
        for (const GroupSpec& spec : kernel.group.specs)
          for (NodeId id : spec.members) EXPECT_TRUE(p.graph[id].op != op || row(op).fusion == Fusion::tile || row(op).fusion == Fusion::view) << name(op);
      }
    });
  }
}

TEST(OpClasses, AreConsistent) {
  for (int i = 0; i < int(Op::count); ++i) {
    const OpRow& r = row(Op(i));
    EXPECT_TRUE(!r.has(OpRow::elementwise | OpRow::reduction) || r.fusion == Fusion::tile) << name(r.op);
    EXPECT_TRUE(r.effort == Effort::full || r.has(OpRow::elementwise)) << name(r.op);
    EXPECT_TRUE(!r.has(OpRow::logic) || r.has(OpRow::truth)) << name(r.op);
    EXPECT_TRUE(!r.has(OpRow::macro) || r.fusion == Fusion::alone) << name(r.op);
    EXPECT_EQ(r.lift == nullptr, r.has(OpRow::in_loop)) << name(r.op);
    EXPECT_EQ(is_strided_view(r.op), is_view(r.op) && r.max_in == 1 && r.op != Op::pad) << name(r.op);
  }
}

// As a word, or as the end of one (infer_cumsum).
bool mentions(const std::string& text, const std::string& op) {
  auto is_letter = [&](size_t at) { return at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) != 0); };
  for (size_t at = text.find(op); at != std::string::npos; at = text.find(op, at + 1))
    if (!is_letter(at - 1) && !is_letter(at + op.size()) && text[at + op.size()] != '_') return true;
  return false;
}

// Files of src that name the op. Tensor functions, which an op does not need, are in `eager`.
std::vector<std::string> files_with(const std::string& op) {
  std::vector<std::string> found;
  const std::filesystem::path src = std::filesystem::path(source_dir()) / "src";
  for (const char* room : {"graph", "autograd", "compile", "backend", "runtime", "step"})
    for (const auto& entry : std::filesystem::recursive_directory_iterator(src / room)) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path());
      std::ostringstream text;
      text << file.rdbuf();
      if (mentions(text.str(), op)) found.push_back(entry.path().lexically_relative(src).string());
    }
  std::sort(found.begin(), found.end());
  return found;
}

TEST(OpClasses, KeepAnOpInFewFiles) {
  const auto list = [](const std::vector<std::string>& files) {
    std::string text;
    for (const std::string& file : files) text += file + "\n";
    return text;
  };
  const std::vector<std::string> elementwise = files_with("softplus"), alone = files_with("cumsum");
  EXPECT_LE(elementwise.size(), 5u) << list(elementwise);
  EXPECT_LE(alone.size(), 12u) << list(alone);
}

}  // namespace
}  // namespace ridge
