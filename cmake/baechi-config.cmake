# SPDX-License-Identifier: Apache-2.0
# find_package(baechi) defines the target baechi::baechi.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
include(${CMAKE_CURRENT_LIST_DIR}/baechi-targets.cmake)
