# SPDX-License-Identifier: Apache-2.0
"""The compiled half of the simulated devices: built at first use, loaded once, called by ctypes."""

from __future__ import annotations

import atexit
import ctypes
from pathlib import Path

import torch

from baechi.torch.native import build

MAX_DEVICES = 16
HOST = MAX_DEVICES  # the host's row and column in the tables of links
UNLIMITED = 2**63 - 1
MEASURED = -1  # in the place of what a call or a copy costs the host

_Row = ctypes.c_int64 * (MAX_DEVICES + 1)
_RealRow = ctypes.c_double * (MAX_DEVICES + 1)


class NativeSettings(ctypes.Structure):
    """The layout of ``BaechiSimSettings`` in control.cc."""

    _fields_ = [
        ("devices", ctypes.c_int32),
        ("asynchronous", ctypes.c_int32),
        ("virtual_clock", ctypes.c_int32),
        ("poison", ctypes.c_int32),
        ("communication", ctypes.c_int32),
        ("checked", ctypes.c_int32),
        ("operator_ns", ctypes.c_int64),
        ("operator_ns_per_byte", ctypes.c_double),
        ("host_call_ns", ctypes.c_int64),
        ("host_send_ns", ctypes.c_int64),
        ("pinned_capacity", ctypes.c_int64),
        ("longest_delay_ns", ctypes.c_int64),
        ("delay_seed", ctypes.c_uint64),
        ("capacity", ctypes.c_int64 * MAX_DEVICES),
        ("latency_ns", _Row * (MAX_DEVICES + 1)),
        ("ns_per_byte", _RealRow * (MAX_DEVICES + 1)),
    ]


def _load() -> ctypes.CDLL:
    sources = sorted((Path(__file__).parent / "csrc").glob("*.cc"))
    path = str(build("sim", sources))
    torch.ops.load_library(path)
    library = ctypes.CDLL(path)
    library.baechi_sim_last_error.restype = ctypes.c_char_p
    library.baechi_sim_forked.restype = ctypes.c_bool
    library.baechi_sim_work.restype = ctypes.c_bool
    library.baechi_sim_work.argtypes = [ctypes.c_int, ctypes.c_int64]
    library.baechi_sim_seed.argtypes = [ctypes.c_int, ctypes.c_uint64]
    library.baechi_sim_kernel_time.restype = ctypes.c_int64
    library.baechi_sim_take_mismatches.restype = ctypes.c_char_p
    library.baechi_sim_num_checked.restype = ctypes.c_int64
    library.baechi_sim_virtual_now.restype = ctypes.c_int64
    library.baechi_sim_virtual_host.restype = ctypes.c_int64
    atexit.register(library.baechi_sim_stop)  # before PyTorch's own globals are destroyed
    return library


library = _load()


def check(worked: bool) -> None:
    """Raise what a function of the library reported."""
    if not worked:
        raise RuntimeError(library.baechi_sim_last_error().decode())
