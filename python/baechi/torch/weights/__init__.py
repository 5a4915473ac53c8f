# SPDX-License-Identifier: Apache-2.0
"""Where the weights of a placed model live, and what optimizers keep beside them."""
