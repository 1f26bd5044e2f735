#include "drivers/dynamic_library.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "support/temp_folder.h"
#include "support/variable.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

// Anyone who can write to the working folder could put code there.
TEST(DynamicLibrary, IsNotLoadedFromRelativePaths) {
  for (const char* path : {"", "./libm.so.6", "lib/libm.so.6", "../libm.so.6"}) {
    const DynamicLibrary library(path);
    EXPECT_FALSE(library) << path;
    EXPECT_NE(library.error(), "") << path;
  }
  EXPECT_TRUE(DynamicLibrary("libm.so.6"));
  EXPECT_NE(DynamicLibrary("/nowhere/libm.so.6").error().find("/nowhere"), std::string::npos);
}

TEST(DynamicLibrary, IsNotLoadedFromRelativeElementsOfTheLoaderPath) {
  const test::TempFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  test::write_text(folder / "libodd.so.1", "not a library");
  for (const char* list : {":/nowhere", "/nowhere:", ".", "/nowhere::/else", "/nowhere;.", "./"}) {
    const test::Variable path("LD_LIBRARY_PATH", list);
    const DynamicLibrary library("libodd.so.1");
    EXPECT_NE(library.error().find("of LD_LIBRARY_PATH"), std::string::npos) << list << ": " << library.error();
  }
  {  // a library's dependencies would also come from there, wherever the library itself is
    const test::Variable path("LD_LIBRARY_PATH", "/nowhere:");
    for (const char* other : {"libm.so.6", "/nowhere/libm.so.6"})
      EXPECT_EQ(DynamicLibrary(other).error(), "the loader may load libodd.so.1 from the relative folder '' of LD_LIBRARY_PATH; remove that element") << other;
  }
  for (const std::string& list : {std::string("/nowhere"), folder.path(), std::string("nowhere")}) {
    const test::Variable path("LD_LIBRARY_PATH", list);
    EXPECT_EQ(DynamicLibrary::why_relative("libodd.so.1"), "") << list;
    EXPECT_TRUE(DynamicLibrary("libm.so.6")) << list;
  }
  fs::remove(folder / "libodd.so.1");
  const test::Variable path("LD_LIBRARY_PATH", "/nowhere:");
  EXPECT_TRUE(DynamicLibrary("libm.so.6")) << "there is nothing that could be taken";
  fs::current_path(before);
}

}  // namespace
}  // namespace ridge
