# SPDX-License-Identifier: Apache-2.0
"""Placements over several tasks of a tf.train.ClusterSpec: job and task stay in device names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.python.tensorflow import tasks_step


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """Return what a process found that is connected to two servers on loopback."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, tasks_step.__file__],
        env=environment,
        timeout=120,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout.splitlines()[-1])


def test_a_step_over_two_tasks_is_exact(found: dict[str, Any]) -> None:
    told, losses = found["losses"]
    assert told == losses
    assert found["same"]


def test_operations_and_variables_are_on_the_tasks_that_were_named(found: dict[str, Any]) -> None:
    assert found["landed"][0], found["landed"][1]
    assert found["devices"] == tasks_step.TASKS
    assert found["variables"] == tasks_step.TASKS
    assert found["asked"] == tasks_step.TASKS[1]


def test_a_device_without_a_task_is_of_this_process(found: dict[str, Any]) -> None:
    local = "/job:localhost/replica:0/task:0/device:CPU:0"
    assert found["here"] == sorted({local, tasks_step.TASKS[1]})  # and what asks for another


def test_what_is_not_there_is_refused(found: dict[str, Any]) -> None:
    assert "connected to other tasks, whose memory is unknown here" in found["auto"]
    assert "has no device '/job:worker/task:7/device:CPU:0', only CPU:0, /job:w" in found["seventh"]
