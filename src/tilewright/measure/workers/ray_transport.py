"""Machines of a Ray cluster: one actor per node holds the whole node, and is sent JSON text (extra `ray`).

Ray starts the actors and carries the text; nothing else of this package goes through it. Without an address a cluster
of this machine alone is started, on the loopback interface and without a dashboard.
"""

import importlib
import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tilewright.errors import MeasureError, OptionError
from tilewright.measure.workers.station import LocalStation, code_version, host_type
from tilewright.measure.workers.transport import Answered, Event, Joined, Lost, Node, Verb

BUILDER_RESOURCE = "tilewright_builder"
"""Custom resource of nodes that only build."""

START_SECONDS = 90.0
"""Longest time in which an actor starts; where another tuning holds the node it does not."""

CONNECT_SECONDS = 5.0
"""Longest time in which the head node of a cluster answers."""

JOB_SECONDS = 240.0
"""Time after which a machine that does not answer is lost; builds and runs have shorter limits of their own."""

POLL_SECONDS, LOOK_SECONDS = 1.0, 10.0
"""How often deadlines are checked, and how often new nodes are looked for."""

CLOSE_SECONDS = 10.0
"""Longest time in which machines end their processes and remove their files."""

MAX_RESTARTS = 2
"""How often an actor is started again whose process died on a node that is alive."""

LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""With "0" when Ray is imported, its processes listen on the loopback interface alone, on Linux as well."""


class StationActor(LocalStation):
    """A station in a process of a node."""

    def __init__(self) -> None:
        # Ray limits its processes' threads to what they asked for; here the node is theirs
        os.environ.pop("OMP_NUM_THREADS", None)
        super().__init__()


@dataclass(slots=True, eq=False)
class _ActorOfNode:
    """An actor with its node; the node is known once the actor has described it."""

    name: str
    is_builder: bool
    actor: Any
    restarts: int
    description: Any
    deadline: float


@dataclass(frozen=True, slots=True)
class _SentJob:
    """A job that is not answered."""

    node: str
    job: int
    deadline: float


def load_ray(address: str | None) -> Any:
    """The module, set so that a cluster of this machine alone is not reached from others.

    Args:
        address: of a running cluster; None for one of this machine alone.

    Raises:
        OptionError: it is not installed.
    """
    # no figures of use are sent anywhere
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        os.environ.setdefault(LOOPBACK_VARIABLE, "0")
    try:
        return importlib.import_module("ray")
    except ImportError:
        hint = "install it on every machine: pip install ray"
        raise OptionError("Ray is not installed", where="workers", hint=hint) from None


def _check_loopback() -> None:
    """Checks that a cluster that Ray starts now would listen on the loopback interface alone.

    Raises:
        OptionError: Ray was imported before, in another way.
    """
    if getattr(importlib.import_module("ray._private.ray_constants"), "ENABLE_RAY_CLUSTER", True):
        hint = f"set {LOOPBACK_VARIABLE}=0 before Ray is imported, or give the address of a cluster"
        raise OptionError("Ray would listen on all interfaces of this machine", where="address", hint=hint)


def _check_reachable(address: str) -> None:
    """Checks that something answers at the address of a cluster; Ray would try for minutes.

    Raises:
        OptionError: it is no HOST:PORT, or nothing answers.
    """
    host, _, port = address.rpartition(":")
    hint = "the head node prints it: ray start --head"
    if not host or not port.isdecimal():
        raise OptionError(f"expected HOST:PORT, got {address!r}", where="address", hint=hint)
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise OptionError(f"nothing answers at {address}: {error}", where="address", hint=hint) from error


class RayTransport:
    """The nodes of a Ray cluster that are of this machine's type, as a transport.

    Args:
        address: of a running cluster, such as "10.0.0.1:6379"; None for one of this machine alone.
        tell: called with a line about every node that is not used, or is lost.

    Raises:
        OptionError: Ray is not installed, or there is no cluster at the address.
        MeasureError: no node is of this machine's type, with this version.
    """

    def __init__(self, address: str | None, tell: Callable[[str], object] = lambda line: None) -> None:
        self._ray, self._tell = load_ray(address), tell
        self._host_type, self._code_version = host_type(), code_version()
        self._is_owner = not self._ray.is_initialized()
        if self._is_owner:
            self._connect(address)
        self._nodes: dict[str, _ActorOfNode] = {}
        self._joining: dict[str, _ActorOfNode] = {}
        self._seen: set[str] = set()
        self._sent: dict[Any, _SentJob] = {}
        self._events: list[Event] = []
        self._reasons: list[str] = []
        self._next_look = 0.0
        try:
            self._look_for_nodes()
            while self._joining:
                self._poll(START_SECONDS)
            if not self.runners:
                reasons = "; ".join(self._reasons) or "it has no node with a processor"
                hint = "start nodes of this type with this version, whose processors nobody else holds"
                raise MeasureError(f"no machine is of type {self._host_type!r}: {reasons}", where="cluster", hint=hint)
        except BaseException:
            self.close()
            raise

    @property
    def runners(self) -> int:
        """Number of machines that run candidates."""
        return sum(not n.is_builder for n in self._nodes.values())

    def start(self, node: str, verb: Verb, job: int, text: str) -> None:
        """Sends a job to a machine."""
        known = self._nodes.get(node)
        if known is None:
            return  # the event that it is lost is on its way
        method = known.actor.build if verb is Verb.BUILD else known.actor.run
        self._sent[method.remote(text)] = _SentJob(node, job, time.monotonic() + JOB_SECONDS)

    def wait(self) -> Event | None:
        """The next event; None where nothing is on its way."""
        while not self._events:
            if not self._sent and not self._joining:
                self._look_for_nodes()
                if not self._joining:
                    return None
            self._poll(POLL_SECONDS)
        return self._events.pop(0)

    def give_up(self, node: str, reason: str) -> None:
        """Ends the actor of a machine, which is lost then."""
        if node in self._nodes:
            self._lose(node, reason, restart=False)

    def close(self) -> None:
        """Ends the actors, and the connection where this transport made it."""
        with suppress(Exception):  # of one that has gone, or is busy for longer
            closed = [n.actor.close.remote() for n in self._nodes.values()]
            self._ray.get(closed, timeout=CLOSE_SECONDS)
        for node in (*self._nodes.values(), *self._joining.values()):
            self._kill(node)
        self._nodes.clear()
        self._joining.clear()
        if self._is_owner:
            self._ray.shutdown()

    def _connect(self, address: str | None) -> None:
        if address is not None:
            _check_reachable(address)
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            if address is None:
                _check_loopback()
                self._ray.init(address="local", include_dashboard=False, **quiet)
            else:
                self._ray.init(address=address, **quiet)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            hint = "the head node prints it: ray start --head"
            raise OptionError(f"there is no cluster: {error}", where="address", hint=hint) from error

    def _look_for_nodes(self) -> None:
        """Starts actors on nodes that are new."""
        self._next_look = time.monotonic() + LOOK_SECONDS
        for node in self._ray.nodes():
            resources = node["Resources"]
            if node["Alive"] and node["NodeID"] not in self._seen and resources.get("CPU", 0) >= 1:
                self._seen.add(node["NodeID"])
                self._start_actor(node["NodeID"], int(resources["CPU"]), BUILDER_RESOURCE in resources, 0)

    def _start_actor(self, name: str, processors: int, is_builder: bool, restarts: int) -> None:
        """Starts an actor that takes all processors of a node, so that no other one shares it."""
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        place = strategies.NodeAffinitySchedulingStrategy(node_id=name, soft=False)
        remote = self._ray.remote(StationActor).options(
            num_cpus=processors, scheduling_strategy=place, max_concurrency=max(2, processors), max_restarts=0,
            max_task_retries=0,
        )  # fmt: skip
        actor = remote.remote()
        deadline = time.monotonic() + START_SECONDS
        self._joining[name] = _ActorOfNode(name, is_builder, actor, restarts, actor.describe.remote(), deadline)

    def _poll(self, seconds: float) -> None:
        """Waits for some of what is on its way, and makes events of it."""
        descriptions = {n.description: n for n in self._joining.values()}
        waiting = [*self._sent, *descriptions]
        ready, _ = self._ray.wait(waiting, num_returns=1, timeout=seconds)
        for ref in ready:
            try:
                text = str(self._ray.get(ref))
            except Exception as error:  # what Ray raises where a process or a node has gone has no common base
                text, reason = "", f"{type(error).__name__}"
            else:
                reason = ""
            if ref in descriptions:
                self._join(descriptions[ref], text, reason)
            elif (sent := self._sent.pop(ref, None)) is not None:
                self._take_reply(sent, text, reason)
        self._check_time()

    def _join(self, node: _ActorOfNode, text: str, reason: str) -> None:
        """Takes a machine that has described itself, if it fits."""
        del self._joining[node.name]
        described = json.loads(text) if text else {}
        if text and described["version"] != self._code_version:
            reason = f"it has version {described['version']}, here is {self._code_version}"
        elif text and not node.is_builder and described["type"] != self._host_type:
            reason = f"it is of type {described['type']!r}"
        if reason:
            self._refuse(node, reason)
            return
        self._nodes[node.name] = node
        self._events.append(Joined(Node(node.name, int(described["cores"]), not node.is_builder)))

    def _take_reply(self, sent: _SentJob, text: str, reason: str) -> None:
        if sent.node not in self._nodes:
            return
        if text:
            self._events.append(Answered(sent.job, text))
        else:
            self._lose(sent.node, reason, restart=True)

    def _check_time(self) -> None:
        """Gives machines up that take too long, and looks for new ones."""
        now = time.monotonic()
        for sent in [s for s in self._sent.values() if s.deadline < now]:
            if sent.node in self._nodes:
                self._lose(sent.node, f"it gave no answer for {JOB_SECONDS:g} s", restart=False)
        for node in [n for n in self._joining.values() if n.deadline < now]:
            del self._joining[node.name]
            self._refuse(node, f"no actor started in {START_SECONDS:g} s; its processors may be in use")
        if now > self._next_look:
            self._look_for_nodes()

    def _lose(self, name: str, reason: str, restart: bool) -> None:
        """Gives a machine up; an actor whose process died is started again, a few times."""
        node = self._nodes.pop(name)
        self._sent = {ref: s for ref, s in self._sent.items() if s.node != name}
        self._tell(f"machine {name[:8]} is lost: {reason}")
        self._kill(node)
        self._events.append(Lost(name))
        alive = {n["NodeID"]: n["Resources"] for n in self._ray.nodes() if n["Alive"]}
        if restart and node.restarts < MAX_RESTARTS and alive.get(name, {}).get("CPU", 0) >= 1:
            self._start_actor(name, int(alive[name]["CPU"]), node.is_builder, node.restarts + 1)

    def _refuse(self, node: _ActorOfNode, reason: str) -> None:
        self._reasons.append(f"machine {node.name[:8]}: {reason}")
        self._tell(f"machine {node.name[:8]} is not used: {reason}")
        self._kill(node)

    def _kill(self, node: _ActorOfNode) -> None:
        with suppress(Exception):  # of one that has gone already
            self._ray.kill(node.actor)
