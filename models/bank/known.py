# SPDX-License-Identifier: Apache-2.0
"""What is known to fail, and why: neither hidden nor in the way of finding more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """Trials of a model that do not come out right."""

    where: str  # a part of the trials' names
    result: str  # WRONG, FAILS, PEAK
    why: str
    said: str = ""  # a part of the line that the user sees
    always: bool = True  # else by chance, or only for some models

    def covers(self, trial: str, result: str, said: str = "") -> bool:
        """Tell whether this is what came of a trial."""
        return self.where in trial and self.result == result and self.said in said


_FORCES = [
    Known("", "PEAK", "what a gradient of a gradient keeps is not foreseen", always=False),
]
_HELD = [
    Known(
        "",
        "PEAK",
        "temporaries of masked and quantised writes, and of counts, are not foreseen",
        always=False,
    )
]
_SENT_FOR_THE_LOSS = [
    Known(
        "",
        "PEAK",
        "the output is also sent to where the plan has the loss, which runs outside of the model",
        always=False,
    )
]
_PARTS = [
    Known(
        "",
        "FAILS",
        "a part that is called alone gets what is elsewhere",
        "two devices",
        always=False,
    )
]

KNOWN: dict[str, list[Known]] = {
    "energy-forces": _FORCES,
    "hamiltonian": _FORCES,
    "masked-writes": _HELD,
    "vq-vae": _HELD,
    "moco": _HELD,
    "counted-positions": [*_SENT_FOR_THE_LOSS, *_HELD],
    "einsum-attention": _SENT_FOR_THE_LOSS,
    "lora-by-hand": _SENT_FOR_THE_LOSS,
    "wgan-gp": _PARTS,
    "ppo": _PARTS,
    "checkpointed": [
        Known(
            "", "PEAK", "when a checkpoint lets go is foreseen too late or too early", always=False
        )
    ],
    "old-spectral-norm": [
        Known(
            "tier 1",
            "FAILS",
            "a weight that a hook computes is no parameter, and stays where it was made",
            "two devices",
        )
    ],
    "peft-dora": [
        Known(
            "",
            "FAILS",
            "not understood yet: also on one device",
            "cannot be recorded",
            always=False,
        )
    ],
    "segformer": [
        Known(
            "",
            "FAILS",
            "not understood yet: also on one device",
            "cannot be multiplied",
            always=False,
        )
    ],
    "ctc": [
        Known(
            "",
            "FAILS",
            "simulated devices take no lengths of `ctc_loss` that are on the host",
            "ctc_loss",
        )
    ],
    "dit": [
        Known(
            "",
            "FAILS",
            "a part that its parent calls and the model, too",
            "duplicate operator name",
            always=False,
        )
    ],
}
