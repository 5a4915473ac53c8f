# SPDX-License-Identifier: Apache-2.0
"""A placement over processes: who has which device, what they agree on, and what they send."""
