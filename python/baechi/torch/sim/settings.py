# SPDX-License-Identifier: Apache-2.0
"""How many simulated devices there are, how large and how fast they are, and how they run."""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    library.baechi_sim_host_work.argtypes = [ctypes.c_int64]
    library.baechi_sim_take_mismatches.restype = ctypes.c_char_p
    for name in ("virtual_now", "virtual_host", "pinned", "pinned_peak"):
        getattr(library, f"baechi_sim_{name}").restype = ctypes.c_int64
    atexit.register(library.baechi_sim_stop)  # before PyTorch's own globals are destroyed
    return library


library = _load()


_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
COMMUNICATION = ("parallel", "sequential", "duplex")
_NANOSECONDS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


@dataclass(frozen=True)
class Link:
    """What a copy over a link takes: ``latency + bytes / bandwidth``, in seconds and bytes/s."""

    latency: float | str = 0.0
    bandwidth: float | str | None = None  # None: infinite

    def latency_ns(self) -> int:
        """Return the latency in nanoseconds."""
        return nanoseconds(self.latency)

    def ns_per_byte(self) -> float:
        """Return the inverse of the bandwidth."""
        if self.bandwidth is None:
            return 0.0
        rate = self.bandwidth
        if isinstance(rate, str):
            rate = byte_count(rate.removesuffix("/s"))
        if rate <= 0:
            raise ValueError(f"a link's bandwidth must be positive, not {self.bandwidth!r}")
        return 1e9 / rate


@dataclass(frozen=True)
class Settings:
    """The simulated machine; ``configure`` explains the fields."""

    devices: int = 4
    memory: int | str | Sequence[int | str | None] | None = None
    asynchronous: bool = True
    clock: str = "real"
    link: Link = field(default_factory=Link)
    links: Mapping[tuple[int | str, int | str], Link] = field(default_factory=dict)
    communication: str = "parallel"
    operator_time: float | str = 0.0
    memory_bandwidth: float | str | None = None
    host_call: float | str = 0.0
    host_send: float | str = 0.0
    pinned: int | str | None = None
    poison: bool = False
    checked: bool = False
    longest_delay: float | str = 0.0
    seed: int = 0

    def native(self) -> NativeSettings:
        """Return the settings as the library wants them; ValueError says what is wrong."""
        if not 1 <= self.devices <= MAX_DEVICES:
            raise ValueError(f"there can be 1 to {MAX_DEVICES} devices, not {self.devices}")
        if self.clock not in ("real", "virtual"):
            raise ValueError(f"clock is 'real' or 'virtual', not {self.clock!r}")
        if self.communication not in COMMUNICATION:
            raise ValueError(
                f"communication is one of {', '.join(COMMUNICATION)}, not {self.communication!r}"
            )
        result = NativeSettings(
            devices=self.devices,
            asynchronous=self.asynchronous,
            virtual_clock=self.clock == "virtual",
            poison=self.poison,
            checked=self.checked,
            communication=COMMUNICATION.index(self.communication),
            operator_ns=nanoseconds(self.operator_time),
            operator_ns_per_byte=Link(bandwidth=self.memory_bandwidth).ns_per_byte(),
            host_call_ns=_host_time(self.host_call),
            host_send_ns=_host_time(self.host_send),
            pinned_capacity=_limit("pinned", self.pinned),
            longest_delay_ns=nanoseconds(self.longest_delay),
            delay_seed=self.seed,
        )
        for device, limit in enumerate(self._limits()):
            result.capacity[device] = _limit("memory", limit)
        for source in range(MAX_DEVICES + 1):
            for target in range(MAX_DEVICES + 1):
                link = self.link if source != target else Link()
                _set_link(result, source, target, link)
        for (source_name, target_name), link in self.links.items():
            _set_link(result, self._end(source_name), self._end(target_name), link)
        return result

    def _limits(self) -> list[int | str | None]:
        if self.memory is None or isinstance(self.memory, int | str):
            return [self.memory] * MAX_DEVICES
        if len(self.memory) != self.devices:
            raise ValueError(f"{len(self.memory)} memory sizes for {self.devices} devices")
        return [*self.memory, *[None] * (MAX_DEVICES - self.devices)]

    def _end(self, name: int | str) -> int:
        if name in ("host", "cpu"):
            return HOST
        if isinstance(name, int) and 0 <= name < self.devices:
            return name
        raise ValueError(f"a link's ends are device numbers or 'host', not {name!r}")


def _limit(name: str, limit: int | str | None) -> int:
    try:
        return UNLIMITED if limit is None else byte_count(limit)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _host_time(duration: float | str) -> int:
    return MEASURED if duration == "measured" else nanoseconds(duration)


def _set_link(native: NativeSettings, source: int, target: int, link: Link) -> None:
    if not isinstance(link, Link):
        raise ValueError(f"a link is a sim.Link, such as sim.Link('5us', '10GB/s'), not {link!r}")
    native.links[source][target] = NativeLink(link.latency_ns(), link.ns_per_byte())


def byte_count(quantity: float | str) -> int:
    """Return a number of bytes; ``"1.5GiB"`` and ``"6GB"`` are understood."""
    return _quantity(quantity, _BYTES, "bytes with their unit, e.g. '2GiB'")


def nanoseconds(duration: float | str) -> int:
    """Return a duration in nanoseconds, from seconds or from text such as ``"50us"``."""
    if isinstance(duration, str):
        return _quantity(duration, _NANOSECONDS, "a duration, e.g. '50us'")
    return _quantity(duration * 1e9, _NANOSECONDS, "a duration in seconds")


def _quantity(value: float | str, units: Mapping[str, int], meaning: str) -> int:
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]+)\s*", value)
        if match is None or match[2] not in units:
            raise ValueError(f"{value!r} is not {meaning}")
        value = float(match[1]) * units[match[2]]
    if value < 0:
        raise ValueError(f"{value!r} is negative: not {meaning}")
    return round(value)


def settings_of(cluster: Any, **changes: Any) -> Settings:
    """Return the settings that make the simulated machine like a `baechi.Cluster`.

    Its devices become ``sim:0``, ``sim:1``, ... in their order, with their capacities and links.
    """
    names = [device.name for device in cluster.devices]
    links: dict[tuple[int | str, int | str], Link] = {}
    for i, source in enumerate(names):
        for j, target in enumerate(names):
            if i == j:
                continue
            latency = cluster.transfer_time(0, source, target)
            billion = cluster.transfer_time(10**9, source, target) - latency
            links[i, j] = Link(latency / 1e9, 1e18 / billion if billion else None)
    return Settings(
        devices=len(names),
        memory=[device.capacity for device in cluster.devices],
        links=links,
        communication=cluster.communication,
        **changes,
    )


_current = Settings()


def current() -> Settings:
    """Return the settings in force."""
    return _current


def configure(settings: Settings | None = None, /, **changes: Any) -> Settings:
    """Change the simulated machine; what is not named stays as it is. Returns what was before.

    Waits for all work first. Tensors survive, whatever the new memory limits are.

    - ``devices``: how many (1 to 16).
    - ``memory``: a limit for every device, or a list of one per device: bytes, text such as
      ``"2GiB"``, or None for no limit. Allocations beyond it raise ``torch.OutOfMemoryError``.
    - ``asynchronous``: True runs every stream in a thread of its own; False runs every operator
      before its call returns.
    - ``clock``: ``"real"`` makes copies and operators last as long as they should; ``"virtual"``
      only counts, and events measure what was counted.
    - ``link``: the `Link` of every pair; ``links``: those of single ordered pairs, with device
      numbers and ``"host"`` as ends.
    - ``communication``: ``"parallel"``, or ``"sequential"`` (a device takes part in one transfer
      at a time) or ``"duplex"`` (one in and one out). Transfers queue in the order of submission.
    - ``operator_time`` (seconds or ``"10us"``) and ``memory_bandwidth`` (bytes/s or
      ``"900GB/s"``): every operator takes at least the first plus what its inputs and outputs
      take at the second.
    - ``host_call`` and ``host_send``: what a call of an operator and a copy cost the host that asks
      for them, on the virtual clock; no operator starts before it was asked for. ``"measured"``:
      the processor time that the calling thread took since the call or copy before.
    - ``pinned``: a limit for pinned host memory; ``pin_memory()`` beyond it is a RuntimeError.
    - ``poison``: fill memory with 0xFF (NaN) when it is allocated and when it is freed.
    - ``checked``: compare what every kernel returns with what the operator's meta function says;
      `mismatches` has what differs.
    - ``longest_delay`` and ``seed``: race mode. Before each task a stream sleeps at random, up to
      so long.
    """
    global _current
    before = _current
    after = dataclasses.replace(settings or _current, **changes)
    library.baechi_sim_configure(ctypes.byref(after.native()))
    _current = after
    return before


def reset() -> None:
    """Go back to the defaults: four unlimited, infinitely fast devices; counters start anew."""
    configure(Settings())
    torch.accelerator.empty_cache()
    library.baechi_sim_reset_virtual_clock()
    library.baechi_sim_reset_pinned_peak()
    for device in range(MAX_DEVICES):
        torch.accelerator.reset_peak_memory_stats(device)
        torch.accelerator.reset_accumulated_memory_stats(device)


@contextmanager
def configured(**changes: Any) -> Iterator[Settings]:
    """``configure`` for the length of a ``with`` block."""
    before = configure(**changes)
    try:
        yield _current
    finally:
        configure(before)
