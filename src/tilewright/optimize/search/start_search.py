"""Start of a search for the fastest program of a task, by the name of its variant."""

from collections.abc import Sequence

from tilewright.errors import OptionError
from tilewright.machine.model import Machine
from tilewright.optimize.measurer import Candidate, Measurement
from tilewright.optimize.search.constructed import ConstructedStarts, constructed_starts
from tilewright.optimize.search.evolution import EvolutionSettings
from tilewright.optimize.search.interface import SearchVariant
from tilewright.optimize.search.program_search import ProgramSearch
from tilewright.optimize.search.program_space import ProgramSpace
from tilewright.optimize.search.strategies import EvolutionStrategy, RandomStrategy, Strategy
from tilewright.optimize.task import Task


def start_search(
    task: Task,
    machine: Machine,
    variant: str = SearchVariant.EVOLUTION,
    seed: int = 0,
    starts: Sequence[Candidate] = (),
    history: Sequence[Measurement] = (),
    evolution: EvolutionSettings | None = None,
) -> ProgramSearch:
    """A search of a task.

    A task without a program space (`ProgramSpace.of`) is answered with the starts alone.

    Args:
        task: the kernel, in canonical form.
        machine: the machine that programs are for.
        variant: how candidates are chosen; one of `SearchVariant`.
        seed: of the random numbers.
        starts: programs that are asked for first.
        history: what is known of programs of the task; telling it later is the same.
        evolution: parameters of the evolution, where a variant evolves programs.

    Raises:
        OptionError: there is no such variant.
    """
    try:
        chosen = SearchVariant(variant)
    except ValueError as error:
        hint = f"use one of {', '.join(SearchVariant)}"
        raise OptionError(f"there is no search {variant!r}", where="search", hint=hint) from error
    space = ProgramSpace.of(task, machine)
    known = ConstructedStarts()
    if chosen is SearchVariant.SEARCH:
        known = constructed_starts(task, machine, space)
    strategy: Strategy | None = None
    if space is not None and chosen is SearchVariant.RANDOM_DRAWS:
        strategy = RandomStrategy(space)
    elif space is not None:
        strategy = EvolutionStrategy(space, known.population, evolution or EvolutionSettings())
    search = ProgramSearch(task, space, strategy, seed, known.programs, [*known.candidates, *starts])
    search.tell(history)
    return search
