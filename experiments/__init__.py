# SPDX-License-Identifier: Apache-2.0
"""The paper's tables and figures, regenerated: ``python -m experiments NAME...`` or ``all``."""
