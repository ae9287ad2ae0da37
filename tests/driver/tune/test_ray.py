"""Tunings on a Ray cluster of two nodes of this machine; skipped where Ray is not installed."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.driver.tune.test_pipeline import UNFUSED, two_products
from tests.optimize.computations import KERNELS
from tests.optimize.tasks import task_of

import tilewright
from tilewright.driver.tune.session import EndReason
from tilewright.errors import OptionError
from tilewright.machine import Target
from tilewright.measure.records.record import RecordKind
from tilewright.measure.records.store import open_store
from tilewright.measure.workers.cluster import ClusterWorkers
from tilewright.measure.workers.interface import MeasureRequest
from tilewright.measure.workers.ray_transport import RayTransport
from tilewright.measure.workers.transport import Verb
from tilewright.optimize.measurer import Candidate, Timing
from tilewright.schedule.step import Step

ray = pytest.importorskip("ray")

pytestmark = pytest.mark.filterwarnings("ignore")

SOURCE = str(Path(tilewright.__file__).parents[1])
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """For the temporary files of the machines; the names of Ray's sockets in it are limited to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="tw", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """A cluster of two nodes with a processor each; skipped where Ray's processes do not start within their time."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", SOURCE)
        patch.setenv("TMPDIR", str(folder))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        cluster = cluster_utils.Cluster()
        try:
            try:
                cluster.add_node(**NODE, include_dashboard=False)
                cluster.add_node(**NODE)
            except Exception as error:  # Ray raises a plain one
                pytest.skip(f"Ray does not start here: {error}")
            yield cluster.address
        finally:
            ray.shutdown()
            cluster.shutdown()


def test_a_small_model_is_tuned_on_two_nodes(address: str, folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "records.db"
    result = tilewright.tune(
        two_products(16), trials=6, search="evolution", records=store, workers="ray", address=address, **UNFUSED
    )
    assert (result.session.end, result.session.trials) == (EndReason.TRIALS, 6)
    assert all(not k.refusal for k in result.session.kernels if k.trials)
    with open_store(store) as records:
        assert records.count(RecordKind.TIMING) + records.count(RecordKind.FAILURE) >= 6
    assert list(folder.glob("tilewright-*")) == []


LISTENING = """
import psutil
from tilewright.measure.workers.ray_transport import RayTransport
before = set(psutil.pids())
transport = RayTransport(None)
addresses = set()
for process in psutil.process_iter():
    try:
        if process.pid not in before and "ray" in " ".join(process.cmdline()):
            addresses |= {c.laddr.ip for c in process.net_connections() if c.status == psutil.CONN_LISTEN}
    except psutil.Error:
        pass
print(transport.runners, *sorted(addresses))
transport.close()
"""


def test_without_an_address_nothing_listens_beyond_this_machine() -> None:
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run([sys.executable, "-c", LISTENING], capture_output=True, text=True, env=environment)
    runners, *addresses = done.stdout.split()
    assert runners == "1", done.stderr
    assert addresses
    assert {a.removeprefix("::ffff:") for a in addresses} == {"127.0.0.1"}


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1", "127.0.0.1:many"])
def test_an_address_without_a_cluster(address: str) -> None:
    with pytest.raises(OptionError, match=r"nothing answers at|expected HOST:PORT, got"):
        RayTransport(address)


class KilledActor(RayTransport):
    """Kills the process of an actor when so many jobs were sent."""

    jobs_before = 5

    def start(self, node: str, verb: Verb, job: int, text: str) -> None:
        super().start(node, verb, job, text)
        self.jobs_before -= 1
        if self.jobs_before == 0:
            commands = {p: " ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])}
            actor = next(p for p, command in commands.items() if command.startswith("ray::StationActor"))
            os.kill(actor.pid, signal.SIGKILL)


def test_a_process_that_is_killed_loses_nothing(address: str) -> None:
    """One of the two actors is killed while it has programs in hand."""
    task = task_of(KERNELS["matmul"], Target.host().name).canonical()
    steps = [(), (Step.of("unroll", "i1"),), (Step.of("unroll", "nowhere"),)]
    lines: list[str] = []
    with closing(KilledActor(address, lines.append)) as transport:
        assert transport.runners == 2
        workers = ClusterWorkers(transport, transport.runners)
        workers.submit(0, MeasureRequest(task, tuple(map(Candidate, steps * 3))))
        answer = workers.wait()
    assert any("is lost" in line for line in lines)
    results = [m.result for m in answer.measurements]
    assert [isinstance(r, Timing) for r in results] == [True, True, False] * 3, results
