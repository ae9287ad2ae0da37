"""Random states of search spaces."""

import numpy as np

from tilewright.optimize.construct.local_search import neighbours
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.optimize.construct.tile_lattice import Indices


def random_states(space: SearchSpace, rng: np.random.Generator, steps: int = 4, count: int = 20) -> Indices:
    """At most so many states that can be lowered, so many edges away from the initial one [state, axis]."""
    states = space.initial_state()[None]
    for _ in range(steps):
        targets, exists = neighbours(space, states)
        states = np.unique(targets[exists], axis=0) if exists.any() else states
        states = rng.permutation(states[space.are_lowerable(space.sizes(states))])[:count]
    return states
