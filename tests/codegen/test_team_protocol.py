"""Model checking of the protocol of `codegen/thread_team.py` and `codegen/work_stealing.py`: all interleavings of a few
threads and stages. Broken variants show that the search finds errors.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

OVER = -1


@dataclass(frozen=True, slots=True)
class Memory:
    """The team's memory, and the state of the rest of the world.

    Attributes:
        stage, fields, done, awaited, asleep, counts: as in the team; `fields` is the stage that the descriptor
        describes, a
            count is (number of its stage, taken).
        frame: the stage whose context is on the stack of thread 0; 0 while there is none.
        ran: (stage, piece) that were run.
        sleeping: per thread the word that it sleeps on, "" while it is awake.
    """

    stage: int
    fields: int
    done: int
    awaited: int
    asleep: int
    counts: tuple[tuple[int, int], ...]
    frame: int
    ran: frozenset[tuple[int, int]]
    sleeping: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Thread:
    """The program counter of a thread and its local state: the stage it works on, the descriptor it read, the share it
    visits, the number of shares it has visited, the count as it read it, what it has taken, and the pieces it has not
    reported yet."""

    at: str
    seen: int = 0
    fields: int = 0
    share: int = 0
    visited: int = 0
    word: tuple[int, int] = (0, 0)
    got: tuple[int, int] = (0, 0)
    uncounted: int = 0


Step = tuple[Thread, Memory]


@dataclass(frozen=True, slots=True)
class Model:
    """A number of pieces per stage, and of threads; `fault` is how the protocol is broken, if at all."""

    pieces: tuple[int, ...]
    threads: int
    fault: str = ""

    def size(self, stage: int, share: int) -> int:
        length, longer = divmod(self.pieces[stage - 1], self.threads)
        return length + (share < longer)

    def begin(self, stage: int, share: int) -> int:
        return sum(self.size(stage, s) for s in range(share))

    def start(self) -> tuple[tuple[Thread, ...], Memory]:
        counts = ((0, 0),) * self.threads
        memory = Memory(0, 0, 0, 0, 0, counts, 0, frozenset(), ("",) * self.threads)
        return (Thread("publish"), *[Thread("look")] * (self.threads - 1)), memory

    def steps(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        """The possible next steps of a thread."""
        if m.sleeping[me]:
            return
        yield from getattr(self, f"_{t.at}")(me, t, m)

    # thread 0

    def _publish(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        number = t.seen + 1
        if number > len(self.pieces):
            yield replace(t, at="wake", seen=OVER), replace(m, stage=OVER, frame=0)
            return
        yield replace(t, at="counts", seen=number, share=0), replace(m, frame=number)

    def _counts(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        counts = tuple((t.seen, 0) if k == t.share else c for k, c in enumerate(m.counts))
        after = "describe" if t.share + 1 == self.threads else "counts"
        yield replace(t, at=after, share=t.share + 1), replace(m, counts=counts)

    def _describe(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        yield replace(t, at="announce"), replace(m, fields=t.seen, done=0)

    def _announce(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        yield replace(t, at="wake"), replace(m, stage=t.seen)

    def _wake(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        awake = m if not m.asleep else self._woken(m, "stage")
        yield replace(t, at="end" if t.seen == OVER else "read"), awake

    def _await(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        if m.done == self.pieces[t.seen - 1]:
            yield replace(t, at="publish"), replace(m, frame=0)
        else:
            yield replace(t, at="doze"), m

    def _doze(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        yield replace(t, at="recheck"), replace(m, awaited=1)

    def _recheck(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        is_complete = m.done == self.pieces[t.seen - 1] and self.fault != "no second look at what is done"
        yield replace(t, at="awake" if is_complete else "sleep"), m

    def _sleep(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        yield replace(t, at="awake"), self._slept(m, me, "awaited", m.awaited == 1)

    def _awake(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        yield replace(t, at="await"), replace(m, awaited=0)

    # the other threads

    def _look(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        if m.stage == OVER:
            yield replace(t, at="end"), m
        elif m.stage != t.seen:
            yield replace(t, at="read", seen=m.stage), m
        else:
            yield replace(t, at="nap" if self.fault == "sleeps uncounted" else "count_in"), m

    def _count_in(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        yield replace(t, at="nap"), replace(m, asleep=m.asleep + 1)

    def _nap(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        after = "look" if self.fault == "sleeps uncounted" else "count_out"
        yield replace(t, at=after), self._slept(m, me, "stage", m.stage == t.seen)

    def _count_out(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        yield replace(t, at="look"), replace(m, asleep=m.asleep - 1)

    # work stealing, by all threads

    def _read(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        # a late thread may read the descriptor of a later stage than the one it saw
        yield replace(t, at="load", fields=m.fields, share=me, visited=0, uncounted=0), m

    def _left(self, t: Thread) -> int:
        """The apparent rest of a share; its size comes from the descriptor."""
        number, taken = t.word
        is_current = number == t.seen or self.fault == "counts without numbers"
        return self.size(t.fields, t.share) - taken if is_current else 0

    def _load(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        t = replace(t, word=m.counts[t.share])
        if self._left(t) > 0:
            yield replace(t, at="exchange"), m
        else:
            yield replace(t, at="report") if t.uncounted else self._next(me, t), m

    def _exchange(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        if m.counts[t.share] != t.word:
            yield from self._load(me, t, m)
            return
        number, taken = t.word
        until = taken + (self._left(t) + 1) // 2
        counts = tuple((number, until) if k == t.share else c for k, c in enumerate(m.counts))
        yield replace(t, at="run", got=(taken, until)), replace(m, counts=counts)

    def _run(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        assert t.fields == t.seen, "a descriptor of another stage"
        assert m.frame == t.seen, "the context is gone"
        begin = self.begin(t.seen, t.share)
        pieces = {(t.seen, begin + k) for k in range(*t.got)}
        assert not pieces & m.ran, "a piece ran twice"
        size = t.got[1] - t.got[0]
        yield replace(t, at="load", uncounted=t.uncounted + size), replace(m, ran=m.ran | pieces)

    def _report(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        iterations = m.done + t.uncounted
        last = iterations == self.pieces[t.fields - 1]
        t = replace(t, uncounted=0)
        yield replace(t, at="call") if last else self._next(me, t), replace(m, done=iterations)

    def _call(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        if not m.awaited:
            yield self._next(me, t), m
        elif self.fault == "wakes before it changes the word":
            yield self._next(me, t), self._woken(m, "awaited")
        else:
            yield replace(t, at="rouse"), replace(m, awaited=0)

    def _rouse(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        yield self._next(me, t), self._woken(m, "awaited")

    def _next(self, me: int, t: Thread) -> Thread:
        """The thread at the next share, or back where it came from, with its local state cleared."""
        t = replace(t, word=(0, 0), got=(0, 0))
        if t.visited + 1 < self.threads:
            return replace(t, at="load", visited=t.visited + 1, share=(t.share + 1) % self.threads)
        return replace(t, at="look" if me else "await", share=0, visited=0, fields=0)

    def _end(self, me: int, t: Thread, m: Memory) -> Iterator[Step]:
        yield from ()

    # the operating system

    def _slept(self, m: Memory, me: int, word: str, stands: bool) -> Memory:
        if not stands:
            return m
        return replace(m, sleeping=tuple(word if k == me else w for k, w in enumerate(m.sleeping)))

    def _woken(self, m: Memory, word: str) -> Memory:
        return replace(m, sleeping=tuple("" if w == word else w for w in m.sleeping))


def explore(model: Model) -> int:
    """Explores all interleavings and returns the number of states.

    Raises:
        AssertionError: an invariant is violated, or no thread can proceed before all have finished.
    """
    start = model.start()
    reached, open_ = {start}, [start]
    everything = frozenset((s + 1, k) for s, n in enumerate(model.pieces) for k in range(n))
    while open_:
        threads, memory = open_.pop()
        stuck = True
        for me, thread in enumerate(threads):
            for after, then in model.steps(me, thread, memory):
                stuck = False
                state = (*threads[:me], after, *threads[me + 1 :]), then
                if state not in reached:
                    reached.add(state)
                    open_.append(state)
        if stuck:
            assert all(t.at == "end" for t in threads), f"nobody goes on: {threads}, {memory}"
            assert memory.ran == everything
    return len(reached)


@pytest.mark.parametrize(
    ("pieces", "threads"),
    [((3, 2), 2), ((1, 4, 1), 2), ((2, 1, 1, 2), 2), ((0, 2), 2), ((2,), 3), ((1, 1), 3), ((3, 2), 3)],
)
def test_protocol_is_correct_in_every_interleaving(pieces: tuple[int, ...], threads: int) -> None:
    assert explore(Model(pieces, threads)) > 100


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("wakes before it changes the word", "nobody goes on"),
        ("no second look at what is done", "nobody goes on"),
        ("sleeps uncounted", "nobody goes on"),
        ("counts without numbers", "a descriptor of another stage|the context is gone|ran twice"),
    ],
)
def test_broken_protocols_are_found(fault: str, what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        explore(Model((2, 2), 2, fault))
