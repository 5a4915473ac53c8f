// SPDX-License-Identifier: Apache-2.0
// 128-bit integers for exact intermediate products. __extension__: both gcc and clang have them.
#pragma once

namespace baechi {

__extension__ using WideInt = __int128;
__extension__ using WideUnsigned = unsigned __int128;

}  // namespace baechi
