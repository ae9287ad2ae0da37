"""Start of a search for the fastest program of a task, by the name of its variant."""

from collections.abc import Sequence

from tilewright.cost.learned.ranking_model import load_xgboost
from tilewright.errors import OptionError, SearchWarning
from tilewright.machine.model import Machine
from tilewright.optimize.measurer import Candidate, Measurement
from tilewright.optimize.search.constructed_starts import ConstructedStarts, constructed_starts
from tilewright.optimize.search.evolution import EvolutionSettings
from tilewright.optimize.search.interface import SearchVariant
from tilewright.optimize.search.learned_strategy import LearnedStrategy
from tilewright.optimize.search.program_search import ProgramSearch
from tilewright.optimize.search.program_space import ProgramSpace
from tilewright.optimize.search.strategies import EvolutionStrategy, RandomStrategy, SearchStrategy
from tilewright.optimize.task import Task
from tilewright.user_warnings import warn_user


def start_search(
    task: Task,
    machine: Machine,
    variant: str = SearchVariant.SEARCH,
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
        OptionError: there is no such variant, or `ansor` is asked for and XGBoost is not installed. `search` then ranks
            by the analytical model, with a warning.
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
    strategy = None if space is None else _strategy(chosen, space, known, evolution or EvolutionSettings())
    search = ProgramSearch(task, space, strategy, seed, known.programs, [*known.candidates, *starts])
    search.tell(history)
    return search


def _strategy(
    variant: SearchVariant, space: ProgramSpace, known: ConstructedStarts, evolution: EvolutionSettings
) -> SearchStrategy:
    """The strategy of a variant.

    Raises:
        OptionError: `ansor` without XGBoost.
    """
    if variant is SearchVariant.RANDOM_DRAWS:
        return RandomStrategy(space)
    if variant is SearchVariant.EVOLUTION:
        return EvolutionStrategy(space, known.population, evolution)
    try:
        load_xgboost()
    except OptionError as error:
        if variant is SearchVariant.ANSOR:
            raise
        hint = f" ({error.hint})" if error.hint else ""
        warn_user(f"{error.what}; the analytical cost model ranks programs alone{hint}", SearchWarning)
        return EvolutionStrategy(space, known.population, evolution)
    return LearnedStrategy(space, known.population, evolution)
