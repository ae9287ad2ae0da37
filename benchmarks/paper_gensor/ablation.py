"""What parts of Gensor's construction contribute, by the cost model's own time: nothing is run.

    python -m benchmarks.paper_gensor.ablation [--operator NAME,...]

Per operator the predicted time of the best program, next to that of all parts together: greedy growth alone (Roller),
walks alone, descents from the start and the ends of greedy paths without walks; and on which levels walks spend steps.
"""

import argparse
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.paper_gensor.operators import SCALING_GEMMS, operator, operator_names
from tilewright.cost.analytical import mean_time
from tilewright.machine.calibration_store import machine_for
from tilewright.optimize.construct.gensor import Annealing, WalkBatch, run_walks
from tilewright.optimize.construct.local_search import search_locally
from tilewright.optimize.construct.lock_step import run
from tilewright.optimize.construct.optimizer import problem_for, search_spaces
from tilewright.optimize.construct.roller import grow
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.optimize.construct.tile_lattice import Indices
from tilewright.tile.program import Sketch

STEPS = "steps L2 / L1 / registers, %"


def best_time(space: SearchSpace, forms: Sequence[Sketch], states: Indices, with_local_search: bool) -> float:
    """Nanoseconds of the best program among states of a space, and where descents from them end."""
    times: list[float] = []
    for form in forms:
        value = mean_time(space.problem, form, space.sizes(states), space.machine)
        times.append(float(value.min()))
        times += [d.nanoseconds for d in run(search_locally(space, form, states, value))] if with_local_search else []
    return min(times)


def ablation_row(name: str) -> str | None:
    """A line of the table for an operator; None where no tile programs are walked through."""
    task = operator(name).task
    problem, machine = problem_for(task), machine_for(task.target)
    if problem is None:
        return None
    sketches, ways = search_spaces(problem, task, machine), ("all", "walks", "descents", "greedy")
    taken, spent, histories = dict.fromkeys(ways, np.inf), dict.fromkeys(ways, 0.0), list[WalkBatch]()
    for space, forms in sketches.items():
        for way in ways:
            begin = time.process_time()
            if way in ("all", "walks"):
                histories.append(run_walks(space, Annealing(), 0))
                states = histories[-1].recorded_states()
            else:
                states = np.unique(np.concatenate([space.initial_state()[None], grow(space).states]), axis=0)
            taken[way] = min(taken[way], best_time(space, forms, states, way in ("all", "descents")))
            spent[way] += time.process_time() - begin
    # an axis of 1 leaves walks nothing to do on some levels; the last entry is behind the last step
    levels = np.concatenate([h.levels[:-1] for h in histories], axis=1)
    shares = [f"{100.0 * np.mean(levels == k):.0f}" for k in (2, 1, 0)]
    whole = taken["all"]
    more = [f"{100.0 * (taken[way] / whole - 1.0):+.1f} %" for way in ways[1:]]
    cells = [name, *more, f"{spent['all']:.2f} s", f"{spent['descents']:.2f} s", " / ".join(shares)]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--operator", default=",".join(dict.fromkeys((SCALING_GEMMS[2], *operator_names()))), metavar="NAME,..."
    )
    options = parser.parse_args()
    head = ("operator", "walks alone", "descents without walks", "greedy alone", "all", "without walks", STEPS)
    print(f"| {' | '.join(head)} |")
    print("|---|---|---|---|---|---|---|")
    for name in options.operator.split(","):
        line = ablation_row(name)
        if line is not None:
            print(line, flush=True)


if __name__ == "__main__":
    main()
