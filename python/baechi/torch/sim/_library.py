# SPDX-License-Identifier: Apache-2.0
"""The compiled half of the simulated devices: built at first use, loaded once, called by ctypes."""

from __future__ import annotations

import atexit
import ctypes
from pathlib import Path

import torch

from baechi.torch.native import build

MAX_DEVICES = 16
HOST = MAX_DEVICES  # the host's row and column in the table of links
UNLIMITED = 2**63 - 1
MEASURED = -1  # in the place of what a call or a copy costs the host


class NativeLink(ctypes.Structure):
    """The layout of ``Link`` in settings.h."""

    _fields_ = [("latency_ns", ctypes.c_int64), ("ns_per_byte", ctypes.c_double)]


class NativeSettings(ctypes.Structure):
    """The layout of ``Settings`` in settings.h."""

    _fields_ = [
        ("devices", ctypes.c_int32),
        ("asynchronous", ctypes.c_bool),
        ("virtual_clock", ctypes.c_bool),
        ("poison", ctypes.c_bool),
        ("checked", ctypes.c_bool),
        ("communication", ctypes.c_int32),
        ("operator_ns", ctypes.c_int64),
        ("operator_ns_per_byte", ctypes.c_double),
        ("host_call_ns", ctypes.c_int64),
        ("host_send_ns", ctypes.c_int64),
        ("longest_delay_ns", ctypes.c_int64),
        ("delay_seed", ctypes.c_uint64),
        ("pinned_capacity", ctypes.c_int64),
        ("capacity", ctypes.c_int64 * MAX_DEVICES),
        ("links", NativeLink * (MAX_DEVICES + 1) * (MAX_DEVICES + 1)),
    ]


def _load() -> ctypes.CDLL:
    sources = sorted((Path(__file__).parent / "csrc").glob("*.cc"))
    path = str(build("sim", sources))
    torch.ops.load_library(path)
    library = ctypes.CDLL(path)
    library.baechi_sim_forked.restype = ctypes.c_bool
    library.baechi_sim_seed.argtypes = [ctypes.c_int, ctypes.c_uint64]
    library.baechi_sim_take_mismatches.restype = ctypes.c_char_p
    for name in ("virtual_now", "virtual_host"):
        getattr(library, f"baechi_sim_{name}").restype = ctypes.c_int64
    atexit.register(library.baechi_sim_stop)  # before PyTorch's own globals are destroyed
    return library


library = _load()
