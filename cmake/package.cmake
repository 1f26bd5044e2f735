# cmake --install: headers, library and the CMake package for find_package(ridge).
