# SPDX-License-Identifier: Apache-2.0
# `cmake --install` makes find_package(baechi) and `pkg-config baechi` work: static library, headers,
# command, licences.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/baechi)
install(TARGETS baechi EXPORT baechi-targets COMPONENT development
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT baechi-targets NAMESPACE baechi:: DESTINATION ${package_dir} COMPONENT development)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/baechi-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES cmake/baechi-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/baechi-config-version.cmake
        DESTINATION ${package_dir} COMPONENT development)
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}/${pc_dir}
           OUTPUT_VARIABLE BAECHI_PC_PREFIX)
configure_file(cmake/baechi.pc.in baechi.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/baechi.pc DESTINATION ${pc_dir} COMPONENT development)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT development)
install(DIRECTORY third_party/licenses DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT development)

if(BAECHI_BUILD_CLI AND NOT SKBUILD)
  install(TARGETS baechi_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
endif()
