# SPDX-License-Identifier: Apache-2.0
# Turns the files of src/baechi/report/html/ into a C++ source file, which html_parts.h declares.
# Included, it adds the build step to the target `baechi`; run with -P, it is that step.
set(scripts format model timeline pointer details sections main)

if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(folder ${PROJECT_SOURCE_DIR}/src/baechi/report/html)
  list(TRANSFORM scripts PREPEND ${folder}/ OUTPUT_VARIABLE script_files)
  list(TRANSFORM script_files APPEND .js)
  add_custom_command(
    OUTPUT ${PROJECT_BINARY_DIR}/generated/html_parts.cc
    COMMAND ${CMAKE_COMMAND} -D folder=${folder} -D output=${PROJECT_BINARY_DIR}/generated/html_parts.cc
            -P ${CMAKE_CURRENT_LIST_FILE}
    DEPENDS ${script_files} ${folder}/page.html ${folder}/style.css ${CMAKE_CURRENT_LIST_FILE}
    COMMENT "Embedding the report's page"
    VERBATIM)
  target_sources(baechi PRIVATE ${PROJECT_BINARY_DIR}/generated/html_parts.cc)
  return()
endif()

function(literal result file)
  file(READ ${folder}/${file} text)
  if(text MATCHES [[\)page"]])
    message(FATAL_ERROR "${file}: contains the end of the literal it goes into")
  endif()
  set(${result} "R\"page(${text})page\"" PARENT_SCOPE)
endfunction()

literal(page page.html)
literal(style style.css)
list(LENGTH scripts count)
set(parts "")
foreach(script IN LISTS scripts)
  literal(part ${script}.js)
  string(APPEND parts "    ${part},\n")
endforeach()
file(WRITE ${output} "// Generated from src/baechi/report/html/ by cmake/BaechiEmbed.cmake.
#include \"baechi/report/html/html_parts.h\"

namespace baechi::html {

const std::string_view kPage = ${page};
const std::string_view kStyle = ${style};
const std::array<std::string_view, ${count}> kScripts{
${parts}};

}  // namespace baechi::html
")
