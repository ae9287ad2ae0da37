"""Evolution of programs: populations are scored, and the better a program, the more changed copies of it the next
generation has.

After Ansor (OSDI 2020, section 5.1; TVM 0.8): no crossover, mutations keep a program legal.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.cost.footprint import Numbers
from tilewright.optimize.search.program_space import ProgramId, ProgramSpace

Scorer = Callable[[Sequence[ProgramId]], Numbers]
"""Scores of programs, the higher the better; from 0 on."""


@dataclass(frozen=True, slots=True)
class EvolutionSettings:
    """Parameters of the evolution.

    Attributes:
        population: programs of a generation.
        generations: changed populations after the first one.
        mutation_rate: probability that a member of a generation is changed, not copied.
    """

    population: int = 512
    generations: int = 4
    mutation_rate: float = 0.85


def evolve(
    space: ProgramSpace,
    first: Sequence[ProgramId],
    score: Scorer,
    tried: Collection[ProgramId],
    rng: np.random.Generator,
    settings: EvolutionSettings,
) -> list[ProgramId]:
    """All programs met that were not tried, best first.

    Args:
        space: the programs.
        first: the first population; any number from one on.
        score: ranks programs.
        tried: programs that are not answered.
        rng: draws parents and mutations.
        settings: parameters.
    """
    scores: dict[ProgramId, float] = {}
    population = list(first)
    for generation in range(settings.generations + 1):
        fresh = [p for p in dict.fromkeys(population) if p not in scores]
        if fresh:
            scores.update(zip(fresh, score(fresh).tolist(), strict=True))
        if generation == settings.generations:
            break
        weights = np.maximum([scores[p] for p in population], 0.0)
        total = weights.sum()
        chances = weights / total if total > 0 else None
        chosen = rng.choice(len(population), settings.population, p=chances)
        is_changed = rng.random(settings.population) < settings.mutation_rate
        parents = [population[int(k)] for k in chosen]
        children = space.mutate([p for p, changed in zip(parents, is_changed, strict=True) if changed], rng)
        kept = [p for p, changed in zip(parents, is_changed, strict=True) if not changed]
        population = children + kept
    untried = [p for p in scores if p not in tried]
    return sorted(untried, key=lambda p: -scores[p])
