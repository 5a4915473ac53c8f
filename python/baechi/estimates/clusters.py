# SPDX-License-Identifier: Apache-2.0
"""A cluster in words, and those beside it that an estimate compares it with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from baechi._core import Cluster, InputError, device_presets
from baechi.near_name import did_you_mean
from baechi.pipeline import cluster_of

if TYPE_CHECKING:
    from baechi.pipeline import ClusterLike

HOST = "host"


def _bandwidth(link: str) -> float:
    """Return the GB/s of a link by its name, as documents of clusters have it."""
    document = json.loads(Cluster("2x1GiB", link=link).to_json())
    return float(document["links"][0]["bandwidth"].removesuffix("GB/s"))


class Setup:
    """Devices with a known speed each; plain ones ("gpu") are of the preset that is named."""

    def __init__(self, cluster: ClusterLike, preset: str) -> None:
        known = device_presets()
        if preset not in known:
            near = did_you_mean(preset, known)
            raise InputError(f"device {preset!r}{near}: known are {', '.join(known)}")
        self._document: dict[str, Any] = json.loads(cluster_of(cluster).to_json())
        kinds = {device.get("kind") for device in self._document["devices"]}
        if not kinds - {HOST}:
            raise InputError("cluster: there is a host and no card: such as 1x24GiB+host")
        for device in self._document["devices"]:
            device["kind"] = self._known(device.get("kind", "gpu"), preset)
        for link in self._document.get("links", []):
            if link.get("scope") == "kinds":
                for end in ("from", "to"):
                    link[end] = self._known(link[end], preset)
        self.cluster = Cluster.from_json(json.dumps(self._document))

    @staticmethod
    def _known(kind: str, preset: str) -> str:
        if kind == HOST or kind in device_presets():
            return kind
        if kind == "gpu":
            return preset
        raise InputError(
            f"no preset stands for devices of kind {kind!r}: name the kind one of "
            f"{', '.join(device_presets())}, or leave it out and give --device"
        )

    @property
    def presets(self) -> dict[str, str]:
        """The preset of every kind; a host, there or not, updates weights as a CPU does."""
        return {**{kind: kind for kind in self.kinds}, HOST: "cpu"}

    @property
    def kinds(self) -> list[str]:
        """The presets of the cards."""
        return sorted({device.kind for device in self.cluster.devices} - {HOST})

    @property
    def host(self) -> str | None:
        """The name of the host that keeps tensors."""
        return next((d.name for d in self.cluster.devices if d.kind == HOST), None)

    @property
    def cards(self) -> list[str]:
        """The names of the devices that compute."""
        return [d.name for d in self.cluster.devices if d.kind != HOST]

    def _changed(self, document: dict[str, Any]) -> Cluster:
        document.pop("name", None)
        return Cluster.from_json(json.dumps(document))

    def with_host(self) -> Cluster:
        """Return the cluster with a host of ample memory, linked as each card's kind is."""
        document = json.loads(json.dumps(self._document))
        document["communication"] = "duplex"
        document["devices"].append({"name": "host:0", "kind": HOST, "capacity": "1TiB"})
        for kind in self.kinds:
            alone = json.loads(cluster_of(f"1x{kind}+host").to_json())
            document["links"] += [x for x in alone["links"] if HOST in (x.get("from"), x.get("to"))]
        return self._changed(document)

    def one_more(self) -> Cluster:
        """Return the cluster with another card like its largest one."""
        document = json.loads(json.dumps(self._document))
        by_name = {d["name"]: d for d in document["devices"]}
        largest = max((d for d in self.cluster.devices if d.kind != HOST), key=lambda d: d.capacity)
        more = dict(by_name[largest.name], name="one more")
        document["devices"].insert(len(self.cards), more)
        return self._changed(document)

    def with_host_link(self, name: str) -> Cluster | None:
        """Return the cluster with a faster link to its host, if it is faster."""
        document = json.loads(json.dumps(self._document))
        faster, then = False, _bandwidth(name)
        for link in document["links"]:
            if HOST not in (link.get("from"), link.get("to")):
                continue
            now = str(link.get("bandwidth", "")).removesuffix("GB/s")
            if now.replace(".", "", 1).isdigit() and float(now) < then:
                link["bandwidth"], faster = f"{then}GB/s", True
        return self._changed(document) if faster else None
