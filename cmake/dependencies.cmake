# Libraries of the engine, as headers: nothing to carry along in the portable folder. fmt's code is compiled by src/base/format.cpp.
find_package(Threads REQUIRED)
find_path(fmt_headers fmt/core.h REQUIRED)
find_path(spdlog_headers spdlog/spdlog.h REQUIRED)
find_path(json_headers nlohmann/json.hpp REQUIRED)
find_path(highway_headers hwy/highway.h REQUIRED)

add_library(ridge_deps INTERFACE)
target_include_directories(ridge_deps SYSTEM INTERFACE ${fmt_headers} ${spdlog_headers} ${json_headers} ${highway_headers})
target_compile_definitions(ridge_deps INTERFACE SPDLOG_FMT_EXTERNAL)
target_link_libraries(ridge_deps INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
