# Language level, warnings, sanitizers and ccache: the only place that sets compiler flags, except for what the presets add to speed up compilation.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O3")  # assertions stay on: they guard indices, not inner loops

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths relative to the project's folder, so that a second checkout can reuse the first one's ccache entries.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${CCACHE_PROGRAM})
endif()

add_library(ridge_flags INTERFACE)
target_compile_options(ridge_flags INTERFACE -Wall -Wextra -Werror -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 falsely reports overlapping copies inside std::string's operator+ (GCC bug 105651).
  target_compile_options(ridge_flags INTERFACE -Wno-restrict)
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # A baseline that every machine of the last fifteen years supports; faster code is chosen at run time.
  target_compile_options(ridge_flags INTERFACE -march=x86-64-v2)
endif()
# libstdc++ and libgcc are linked statically, so that the binary runs on any Linux with a recent enough libc. Never -static: dlopen must work.
if(NOT RIDGE_SANITIZE)
  target_link_options(ridge_flags INTERFACE -static-libstdc++ -static-libgcc -Wl,--as-needed -Wl,--gc-sections)
  target_link_options(ridge_flags INTERFACE $<$<STREQUAL:${CMAKE_SYSTEM_PROCESSOR},x86_64>:-Wl,-z,pack-relative-relocs>)
else()
  target_link_options(ridge_flags INTERFACE -fsanitize=${RIDGE_SANITIZE})
endif()

# Instruments a target in a sanitized build, unless RIDGE_UNCHECKED names its room (or "tests"): those targets are compiled exactly as in a release build, so
# that ccache can reuse an earlier release build.
add_library(ridge_checks INTERFACE)
if(RIDGE_SANITIZE)
  # -w: GCC 12 raises false warnings in instrumented code, and the release build has every warning on.
  target_compile_options(ridge_checks INTERFACE -g1 -w -fsanitize=${RIDGE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  if(RIDGE_SKIPPED_CHECKS)
    target_compile_options(ridge_checks INTERFACE -fno-sanitize=${RIDGE_SKIPPED_CHECKS})
  endif()
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")  # one kernel tier instead of three: their memory and threading errors are the same
    target_compile_options(ridge_checks INTERFACE -march=x86-64-v3)
    target_compile_definitions(ridge_checks INTERFACE RIDGE_ONE_TIER)
  endif()
endif()
function(instrument target room)
  if(RIDGE_SANITIZE AND NOT room IN_LIST RIDGE_UNCHECKED)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:ridge_checks>)
    if(room STREQUAL "tests")
    elseif(room MATCHES "^(backend/cpu|base|measure|threads)$")  # vector code and loops over numbers need optimisation
      target_compile_options(${target} PRIVATE -O1)
    elseif(room IN_LIST cold_rooms)  # instrumented, they take long to optimise
      target_compile_options(${target} PRIVATE -O0)
    else()
      target_compile_options(${target} PRIVATE -Og)
    endif()
  endif()
endfunction()

# Parses large headers once for all targets with the same options: precompile(TARGET ROOM KIND HEADERS…), where KIND identifies a set of options.
function(precompile target room kind)
  if(RIDGE_ARM_KERNELS OR CMAKE_DISABLE_PRECOMPILE_HEADERS)
    return()
  endif()
  if(RIDGE_SANITIZE AND NOT room IN_LIST RIDGE_UNCHECKED)
    set(kind ${kind}_checked)
  endif()
  get_property(owner GLOBAL PROPERTY ridge_headers_of_${kind})
  if(owner)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  else()
    target_precompile_headers(${target} PRIVATE ${ARGN})
    set_property(GLOBAL PROPERTY ridge_headers_of_${kind} ${target})
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)  # inside std::string
    if(CCACHE_PROGRAM)  # ccache supports precompiled headers if they are hashed by content
      target_compile_options(${target} PRIVATE -fpch-preprocess)
      set_target_properties(${target} PROPERTIES CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros;${CMAKE_CXX_COMPILER_LAUNCHER}")
    endif()
  endif()
endfunction()

# Highway kernels are in files named *_simd.cpp. There GCC 12 raises false warnings about undefined vectors inside its own _mm512_* intrinsics; disabling them
# hides nothing that the other warnings would not catch.
function(silence_simd_false_alarms)
  foreach(source ${ARGN})
    if(source MATCHES "_simd\\.cpp$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-Wno-maybe-uninitialized;-Wno-uninitialized;-Wno-psabi;-Wno-ignored-attributes")
    endif()
  endforeach()
endfunction()

# Compiles several files of a folder together (a unity build): most of a file's compile time is headers and templates that its neighbours use too. Names in
# unnamed namespaces must be unique within a folder. Files with their own options are compiled separately, as is everything linked without its archives.
function(compile_together target)
  if(RIDGE_ARM_KERNELS)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)  # GCC mistakes the files for headers
  endif()
endfunction()
