# SPDX-License-Identifier: Apache-2.0
# How every target of ours is compiled: C++20 without extensions, hidden symbols, all warnings,
# and floating point that gives the same bits on every compiler (-ffp-contract=off).
set(BAECHI_HIDDEN_SYMBOLS CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF)

set(instrumentation "")
if(BAECHI_SANITIZE)
  list(APPEND instrumentation -fsanitize=${BAECHI_SANITIZE} -fno-sanitize-recover=all
       -fno-omit-frame-pointer)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # its flow analysis sees ghosts in instrumented code
    list(APPEND instrumentation -Wno-maybe-uninitialized)
  endif()
endif()
if(BAECHI_COVERAGE)
  list(APPEND instrumentation --coverage)
endif()
set(BAECHI_INSTRUMENTATION ${instrumentation})

function(baechi_configure target)
  set_target_properties(${target} PROPERTIES ${BAECHI_HIDDEN_SYMBOLS})
  if(MSVC)
    target_compile_options(${target} PRIVATE /W4 /permissive- /utf-8 /fp:precise /EHsc)
    return()
  endif()
  target_compile_options(${target} PRIVATE
    -ffp-contract=off -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion
    -Wold-style-cast
    # GCC 12 warns about "literal" + std::to_string(n) inside the standard library itself.
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
    $<$<BOOL:${BAECHI_WERROR}>:-Werror>
    $<$<AND:$<BOOL:${BAECHI_FUZZ}>,$<NOT:$<STREQUAL:${target},baechi_tests>>>:-fsanitize=fuzzer-no-link>
    ${BAECHI_INSTRUMENTATION})
  target_link_options(${target} PRIVATE ${BAECHI_INSTRUMENTATION})
endfunction()

# An executable over the library; without sources there is nothing to build and nothing is added.
function(baechi_add_executable target)
  if(NOT ARGN)
    message(STATUS "${target}: no sources, skipped")
    return()
  endif()
  add_executable(${target} ${ARGN})
  target_include_directories(${target} SYSTEM PRIVATE ${PROJECT_SOURCE_DIR}/third_party)
  target_link_libraries(${target} PRIVATE baechi::baechi)
  baechi_configure(${target})
endfunction()

# With BAECHI_TEST_SUITE set, removes from the lists the test files that have no case in that suite.
function(baechi_keep_test_suite)
  if(NOT BAECHI_TEST_SUITE)
    return()
  endif()
  foreach(list IN LISTS ARGN)
    foreach(source IN LISTS ${list})
      file(STRINGS ${source} named LIMIT_COUNT 1
           REGEX "(test_suite|TEST_SUITE|TEST_SUITE_BEGIN)\\(\"${BAECHI_TEST_SUITE}\"\\)")
      if(source MATCHES "_test\\.cc$" AND NOT named)
        list(REMOVE_ITEM ${list} ${source})
      endif()
    endforeach()
    set(${list} ${${list}} PARENT_SCOPE)
  endforeach()
endfunction()

# Removes from the list the headers that include third-party code: they are private to their folder
# and are not installed.
function(baechi_drop_private_headers list)
  foreach(header IN LISTS ${list})
    file(STRINGS ${header} third_party LIMIT_COUNT 1 REGEX "^#include <tsl/")
    if(third_party)
      list(REMOVE_ITEM ${list} ${header})
    endif()
  endforeach()
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()

# With BAECHI_UNITY, compiles a dozen files of a folder of src/baechi (with its rooms), of apps, of
# python/bindings or of tests/unit as one: reading the standard headers once for all of them takes
# half of a build's time away. Names in anonymous namespaces have to differ within a folder. The
# stage `tidy` of `./do test` has the compiler read files alone, so that a missing #include is found.
function(baechi_unite target)
  if(NOT BAECHI_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP
    UNITY_BUILD_RELOCATABLE ON)  # so that ccache knows another checkout's
  # Files see each other's names; where they are read one by one these warnings are on.
  target_compile_options(${target} PRIVATE
    -Wno-shadow $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  foreach(source IN LISTS ARGN)
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    string(REGEX REPLACE "(src/baechi/[^/]+)/.*" "\\1" folder ${folder})
    string(MAKE_C_IDENTIFIER ${folder} folder)
    math(EXPR part "${count_${folder}}+0" OUTPUT_FORMAT DECIMAL)
    math(EXPR count_${folder} "${part}+1")
    math(EXPR part "${part}/12")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder}_${part})
  endforeach()
endfunction()
