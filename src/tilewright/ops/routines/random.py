"""Routines that draw: the counter-based generator Philox4x32-10, and choices by drawn numbers.

Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from tilewright.routine.intrinsics import entropy
from tilewright.routine.routine import Elements, routine

MASK = 2**32 - 1
MULTIPLIER_0, MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
KEY_STEP_0, KEY_STEP_1 = 0x9E3779B9, 0xBB67AE85


def philox(words: Elements, counter: int, key: int) -> int:
    """Writes the four 32-bit words of a counter, whose upper 64 bits are 0, under a key of 64 bits."""
    a = counter & MASK
    b = (counter >> 32) & MASK
    c = 0
    d = 0
    key_0 = key & MASK
    key_1 = (key >> 32) & MASK
    for _ in range(10):
        low = MULTIPLIER_0 * a
        high = MULTIPLIER_1 * c
        # the products of 32-bit words have 64 bits, which may be those of a negative number
        a = ((high >> 32) & MASK) ^ b ^ key_0
        b = high & MASK
        c = ((low >> 32) & MASK) ^ d ^ key_1
        d = low & MASK
        key_0 = (key_0 + KEY_STEP_0) & MASK
        key_1 = (key_1 + KEY_STEP_1) & MASK
    words[0] = a
    words[1] = b
    words[2] = c
    words[3] = d
    return 0


@routine()
def random_words(out: Elements, words: Elements, size: int, key: int, has_key: int) -> int:
    """`size` random words of 32 bits: those of counters 0, 1, ... under a key, or one that differs in each call."""
    if has_key == 0:
        key = entropy()
    for i in range(size):
        if i % 4 == 0:
            philox(words, i // 4, key)
        out[i] = words[i % 4]
    return 0


@routine("the weights of a row are all zero, or no numbers")
def choose_by_weight(weights: Elements, numbers: Elements, out: Elements, rows: int, classes: int, samples: int) -> int:
    """For each of numbers[rows, samples], which are 0 to 1, the class of its row at that part of the sum of weights."""
    for row in range(rows):
        total = 0.0
        last = -1
        for k in range(classes):
            weight = float(weights[row * classes + k])
            total = total + weight
            if weight > 0:
                last = k
        if samples > 0 and not (total > 0 and total < 1e308):
            return 1
        for s in range(samples):
            rest = float(numbers[row * samples + s]) * total
            chosen = last
            for k in range(classes):
                rest = rest - float(weights[row * classes + k])
                if rest < 0:
                    chosen = k
                    break
            out[row * samples + s] = chosen
    return 0
