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
    Known("", "PEAK", "sums of slopes count where the last one was made", always=False),
    Known("", "FAILS", "as its peaks are, it may run out of memory", "out of memory", always=False),
]
_NO_GRADIENT = [
    Known(
        "",
        "PEAK",
        "weights that get no gradient in the example have room for one and for its update, too",
        always=False,
    )
]
_REACHED = [
    Known(
        "random",
        "PEAK",
        "what a hook on a gradient computes and reads is not foreseen",
        always=False,
    )
]
_CACHE = [
    Known(
        "",
        "PEAK",
        "a returned cache of keys and values counts to the end of a step: scripts let go before",
        "only",
        always=False,
    )
]
_WITH_CACHE = """
gpt2 llama mistral qwen3 gemma2 gemma3 phi3 falcon bloom gpt-neox opt mixtral qwen2-moe
gpt-oss deepseek-v3 t5 whisper peft-lora peft-dora peft-ia3 peft-prefix
"""
KNOWN: dict[str, list[Known]] = {
    "energy-forces": _FORCES,
    "hamiltonian": _FORCES,
    "heat-equation": _FORCES,
    "wgan-gp": [
        Known(
            "planned",
            "FAILS",
            "its script adds a gradient penalty to the recorded step, which no plan knows",
            "out of memory",
            always=False,
        )
    ],
    "checkpointed": [
        Known("", "PEAK", "when a reentrant checkpoint lets go is foreseen too late", always=False),
        Known(
            "", "FAILS", "as its peaks are, it may run out of memory", "out of memory", always=False
        ),
    ],
    "rounded": _NO_GRADIENT,
    "equilibrium": _REACHED,
} | dict.fromkeys(_WITH_CACHE.split(), _CACHE)
