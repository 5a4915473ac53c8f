# SPDX-License-Identifier: Apache-2.0
"""What a model takes on a few devices, from its config.json (``baechi.estimate``)."""
