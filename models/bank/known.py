# SPDX-License-Identifier: Apache-2.0
"""What is known to fail, and why: neither hidden nor in the way of finding more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """Trials of a model that do not come out right."""

    where: str  # a part of the trials' names
    result: str  # WRONG, FAILS
    why: str
    said: str = ""  # a part of the line that the user sees
    always: bool = True  # else by chance, or only for some models

    def covers(self, trial: str, result: str, said: str = "") -> bool:
        """Tell whether this is what came of a trial."""
        return self.where in trial and self.result == result and self.said in said


KNOWN: dict[str, list[Known]] = {
    "heat-equation": [
        Known(
            "",
            "FAILS",
            "PyTorch's backward inside torch.func cannot go over from device to device",
            "Cannot access storage of",
            always=False,
        )
    ],
    "checkpointed": [
        Known(
            "eagerly",
            "FAILS",
            "eagerly, a function with a backward of its own is given tensors of several devices, "
            "and returns gradients on one",
            "invalid gradient",
            always=False,
        )
    ],
    "rounded": [
        Known(
            "eagerly",
            "FAILS",
            "eagerly, a function with a backward of its own is given tensors of several devices, "
            "and returns gradients on one",
            "returned an invalid gradient",
            always=False,
        )
    ],
}

# What a run has found wrong before: it is among every sample.
FAILED_ONCE = ("equilibrium", "parametrised", "rounded", "running-norm", "vq-vae")
