# Libraries of the engine. Header-only forms where they exist, so that the portable build carries no extra file.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)

add_library(ridge_deps INTERFACE)
target_link_libraries(ridge_deps INTERFACE fmt::fmt-header-only spdlog::spdlog_header_only nlohmann_json::nlohmann_json Threads::Threads ${CMAKE_DL_LIBS})
