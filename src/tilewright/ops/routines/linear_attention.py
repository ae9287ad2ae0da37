"""The recurrence of linear attention."""

from tilewright.routine.routine import Elements, routine


@routine()
def linear_attention_steps(
    query: Elements, key: Elements, value: Elements, factors: Elements, rates: Elements, past: Elements, out: Elements,
    state: Elements, written: Elements, batches: int, steps: int, heads: int, group: int, depth: int, size: int,
    corrects: int,
) -> int:  # fmt: skip
    """Reads and writes of a state, a matrix per head, step by step.

    In each step the rows of the state are multiplied by their factors, and key * written is added, where `written` is
    the value, or, where it `corrects`, its difference from what the state has for the key, times a rate. The query is
    multiplied by the state.

    Args:
        query: [batches, steps, heads * group, depth].
        key: [batches, steps, heads, depth].
        value: [batches, steps, heads, size].
        factors: [batches, steps, heads, depth].
        rates: [batches, steps, heads].
        past: [batches, heads, depth, size].
        out: [batches, steps, heads * group, size].
        state: the last state.
        written: space for a value.
        batches: number of sequences.
        steps: number of steps.
        heads: of keys and values.
        group: heads of queries for each of them.
        depth: of queries and keys.
        size: of values.
        corrects: whether the state's own value is subtracted.
    """
    for k in range(len(past)):
        state[k] = past[k]
    for b in range(batches):
        for t in range(steps):
            for h in range(heads):
                row = (b * steps + t) * heads + h
                base = (b * heads + h) * depth * size
                for m in range(size):
                    written[m] = 0
                for k in range(depth):
                    for m in range(size):
                        state[base + k * size + m] = state[base + k * size + m] * factors[row * depth + k]
                        written[m] = written[m] + state[base + k * size + m] * key[row * depth + k]
                for m in range(size):
                    if corrects != 0:
                        written[m] = rates[row] * (value[row * size + m] - written[m])
                    else:
                        written[m] = value[row * size + m]
                for k in range(depth):
                    for m in range(size):
                        state[base + k * size + m] = state[base + k * size + m] + key[row * depth + k] * written[m]
                for g in range(group):
                    read = row * group + g
                    for m in range(size):
                        out[read * size + m] = 0
                    for k in range(depth):
                        for m in range(size):
                            product = query[read * depth + k] * state[base + k * size + m]
                            out[read * size + m] = out[read * size + m] + product
    return 0
