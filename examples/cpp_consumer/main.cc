// SPDX-License-Identifier: Apache-2.0
// A program outside baechi's own build that links the installed library.
#include <baechi/base/version.h>

#include <cstdio>
#include <string>

int main() { std::printf("built with baechi %s\n", std::string(baechi::version()).c_str()); }
