# cmake --install: the public headers, the library, the program, and the CMake package for find_package(ridge). The component "portable" is the self-contained
# folder: the program, and all tests in one binary, which depend only on libc and libm.
include(CMakePackageConfigHelpers)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/ridge)

install(TARGETS ridge ridge_commands EXPORT ridge_targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} OBJECTS DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS ridge_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/ridge DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT ridge_targets NAMESPACE ridge:: DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ridgeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
file(WRITE ${PROJECT_BINARY_DIR}/ridgeConfig.cmake
     "include(CMakeFindDependencyMacro)\nfind_dependency(Threads)\ninclude(\${CMAKE_CURRENT_LIST_DIR}/ridge_targets.cmake)\n"
     "foreach(archive ${RIDGE_ARCHIVES})\n"
     "  find_library(ridge_\${archive} lib\${archive}.a REQUIRED)\n"
     "  target_link_libraries(ridge::ridge INTERFACE \${ridge_\${archive}})\n"
     "endforeach()\n")
install(FILES ${PROJECT_BINARY_DIR}/ridgeConfig.cmake ${PROJECT_BINARY_DIR}/ridgeConfigVersion.cmake DESTINATION ${package_folder})

set(portable_targets ridge_cli)
if(RIDGE_TESTS)
  list(APPEND portable_targets all_tests)
endif()
install(TARGETS ${portable_targets} RUNTIME DESTINATION . COMPONENT portable EXCLUDE_FROM_ALL)
if(RIDGE_TESTS)
  install(PROGRAMS ${PROJECT_SOURCE_DIR}/tools/gpu_check DESTINATION . COMPONENT portable EXCLUDE_FROM_ALL)
endif()
if(RIDGE_PORTABLE)
  add_custom_target(portable_folder ALL
    COMMAND ${CMAKE_COMMAND} --install ${PROJECT_BINARY_DIR} --component portable --strip --prefix ${PROJECT_BINARY_DIR}/ridge
    DEPENDS ${portable_targets}
    COMMENT "Collecting the portable folder")
endif()
