"""Searches in lock step: each asks questions and waits, so that those of all are answered together.

A search is a generator, and reads as if it were alone:

    (nanoseconds,) = yield [Candidates(problem, sketch, sizes, machine)]

`in_lock_step` makes one search of several, and `run` answers. So the searches of a kernel from several starts, of
several sketches, and of many kernels have one batch per step. What a search finds does not depend on the others.
"""

from collections.abc import Generator, Hashable, Sequence
from typing import Protocol, Self, TypeVar

from tilewright.cost.footprint import Numbers

R = TypeVar("R")


class Question(Protocol):
    """What a search asks: for numbers, by array formulas, which cost as much for few numbers as for many."""

    @property
    def structure(self) -> Hashable:
        """What questions that are answered together have in common, beside their type."""
        ...

    def answer(self, alike: Sequence[Self]) -> list[Numbers]:
        """The answers to questions of one structure."""
        ...


SteppedSearch = Generator[Sequence[Question], list[Numbers], R]
"""Yields questions, is sent their answers, and returns what it has found."""


def in_lock_step(searches: Sequence[SteppedSearch[R]]) -> SteppedSearch[list[R]]:
    """One search of several, which ask at once and wait for each other; returns the results of all."""
    results: dict[int, R] = {}
    asked: dict[int, Sequence[Question]] = {}

    def advance(k: int, answers: list[Numbers] | None) -> None:
        try:
            asked[k] = next(searches[k]) if answers is None else searches[k].send(answers)
        except StopIteration as end:
            results[k] = end.value

    for k in range(len(searches)):
        advance(k, None)
    while asked:
        waiting, asked = asked, {}
        answers = iter((yield [question for questions in waiting.values() for question in questions]))
        for k, questions in waiting.items():
            advance(k, [next(answers) for _ in questions])
    return [results[k] for k in range(len(searches))]


def run(search: SteppedSearch[R]) -> R:
    """The result of a search."""
    try:
        questions = next(search)
        while True:
            questions = search.send(answers_to(questions))
    except StopIteration as end:
        return end.value


def answers_to(questions: Sequence[Question]) -> list[Numbers]:
    """The answers, those to questions of one type and structure at once."""
    groups: dict[Hashable, list[int]] = {}
    for k, question in enumerate(questions):
        groups.setdefault((type(question), question.structure), []).append(k)
    answers: dict[int, Numbers] = {}
    for members in groups.values():
        alike = [questions[k] for k in members]
        answers |= zip(members, alike[0].answer(alike), strict=True)
    return [answers[k] for k in range(len(questions))]
