// Token files of other programs: nanoGPT's train.bin and val.bin with meta.pkl, llm.c's shards.
#pragma once
#include <string>
#include <vector>

#include "data/dataset.h"

namespace ridge {

bool has_nanogpt_files(const std::filesystem::path& folder);
Dataset open_nanogpt_files(const std::filesystem::path& folder, const DatasetOptions& options);

// Files named like llm.c's shards: in a folder, NAME_train.bin, NAME_train_000001.bin, NAME_val.bin and so on; or all that match a pattern such as
// data/tiny_*.bin; sorted. Empty: none.
std::vector<std::string> find_llmc_shards(const std::string& folder_or_pattern);
Dataset open_llmc_shards(const std::vector<std::string>& files, const DatasetOptions& options);

// A character vocabulary from nanoGPT's meta.pkl. ErrorCode::io: it is something else.
std::unique_ptr<Tokenizer> tokenizer_of_meta(const std::string& path);

}  // namespace ridge
