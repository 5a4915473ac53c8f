# SPDX-License-Identifier: Apache-2.0
"""Places machine learning graphs on small clusters of memory-limited devices.

``import baechi`` loads the C++ core alone: no framework and no NumPy. The framework adapters
are the subpackages ``baechi.torch`` and ``baechi.tensorflow``, imported on their own.
"""

from baechi._core import version as _version

__all__ = ["__version__"]

__version__ = _version()
