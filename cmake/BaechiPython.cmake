# SPDX-License-Identifier: Apache-2.0
# The extension baechi._core and the command, as the wheel installs them (component "python").
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module
             OPTIONAL_COMPONENTS Development.SABIModule)
execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
                OUTPUT_VARIABLE nanobind_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE
                COMMAND_ERROR_IS_FATAL ANY)
find_package(nanobind CONFIG REQUIRED)

file(GLOB sources CONFIGURE_DEPENDS python/bindings/*.cc)
nanobind_add_module(baechi_python STABLE_ABI NB_STATIC NB_SUPPRESS_WARNINGS NB_DOMAIN baechi
                    ${sources})
target_link_libraries(baechi_python PRIVATE baechi::baechi)
baechi_configure(baechi_python)
baechi_unite(baechi_python ${sources})
if(BAECHI_UNITY)
  get_target_property(runtime baechi_python LINK_LIBRARIES)
  list(FILTER runtime INCLUDE REGEX "^nanobind")
  set_target_properties(${runtime} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
endif()
set_target_properties(baechi_python PROPERTIES OUTPUT_NAME _core)
if(UNIX AND NOT APPLE)
  set(exports ${PROJECT_SOURCE_DIR}/python/bindings/exports.map)
  target_link_options(baechi_python PRIVATE -Wl,--version-script=${exports})
  set_target_properties(baechi_python PROPERTIES LINK_DEPENDS ${exports})
endif()

install(TARGETS baechi_python LIBRARY DESTINATION baechi COMPONENT python)
if(BAECHI_BUILD_CLI AND SKBUILD)
  install(TARGETS baechi_cli RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT python)
endif()
