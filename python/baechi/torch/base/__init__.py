# SPDX-License-Identifier: Apache-2.0
"""What all rooms stand on: PyTorch by its private names, devices, nested tensors."""
