"""Fast Fourier transforms of any length: the Stockham form with radices 4, 3, 5, any other prime factor, and 2.

A block of signals is transformed at once, as real and imaginary parts [elements, signals of the block], so that the
innermost loops go over neighbouring elements. Each pass reads one pair of arrays and writes the other, in the order
that the next pass needs (Stockham's autosort form; Van Loan, Computational Frameworks for the Fast Fourier Transform).
Lengths with large prime factors are convolutions with a chirp (Bluestein's algorithm), for which the length of the
passes is a product of small ones.
"""

from tilewright.ops.routines.butterflies import any_radix, radix_2, radix_3, radix_4, radix_5
from tilewright.routine.intrinsics import element
from tilewright.routine.routine import Elements, routine


def next_radix(length: int) -> int:
    """The radix of the first pass of a length above 1.

    The last factor 2 or 4 is left for the last pass, which multiplies by no roots: so the element in the middle of a
    real signal's transform is computed from sums of its elements alone, and its imaginary part is exactly 0.
    """
    if length % 8 == 0 or length == 4:
        return 4
    if length == 2:
        return 2
    odd = length // 4 if length % 4 == 0 else length // 2 if length % 2 == 0 else length
    if odd % 3 == 0:
        return 3
    if odd % 5 == 0:
        return 5
    r = 7
    while odd % r != 0:
        r = r + 2 if (r + 2) * (r + 2) <= odd else odd
    return r


def run_pass(
    xr: Elements, xi: Elements, yr: Elements, yi: Elements, cosines: Elements, sines: Elements,
    r: int, rest: int, stride: int, turn: int, size: int,
) -> int:  # fmt: skip
    """One pass of radix r: x[r, rest, stride] to y[rest, r, stride], times the roots of its positions.

    `turn` is the distance of neighbouring roots of this pass in the tables of all `size` of them.
    """
    if r == 4:
        return radix_4(xr, xi, yr, yi, cosines, sines, rest, stride, turn)
    if r == 2:
        return radix_2(xr, xi, yr, yi, cosines, sines, rest, stride, turn)
    if r == 3:
        return radix_3(xr, xi, yr, yi, cosines, sines, rest, stride, turn)
    if r == 5:
        return radix_5(xr, xi, yr, yi, cosines, sines, rest, stride, turn)
    return any_radix(xr, xi, yr, yi, cosines, sines, r, rest, stride, turn, size)


def transform(
    re: Elements, im: Elements, re2: Elements, im2: Elements, cosines: Elements, sines: Elements, size: int, block: int
) -> int:
    """The transforms of re and im [size, block]; 0 where they are in place, 1 where they are in re2 and im2."""
    rest = size
    turn = 1
    where = 0
    while rest > 1:
        r = next_radix(rest)
        rest = rest // r
        if where == 0:
            run_pass(re, im, re2, im2, cosines, sines, r, rest, turn * block, turn, size)
        else:
            run_pass(re2, im2, re, im, cosines, sines, r, rest, turn * block, turn, size)
        turn = turn * r
        where = 1 - where
    return where


def load_signals(
    x: Elements, window: Elements, re: Elements, im: Elements, geometry: Elements, first: int, count: int, size: int,
    parts: int, is_inverse: int, is_real: int,
) -> int:  # fmt: skip
    """Signals first to first + count - 1 as re and im [size, count], filled up with zeros, exchanged if `is_inverse`.

    Those of spectra that are conjugate symmetric (`is_real`) are the first halves.
    """
    inner = geometry[0]
    step = geometry[3]
    used = geometry[4]
    windowed = len(window)
    for b in range(count):
        base = (first + b) // inner * geometry[1] + (first + b) % inner * geometry[2]
        start = base * parts
        stride = step * parts
        if parts == 2 and is_inverse == 0:
            for k in range(used):
                re[k * count + b] = x[start + k * stride]
                im[k * count + b] = x[start + k * stride + 1]
        elif parts == 2:
            for k in range(used):
                im[k * count + b] = x[start + k * stride]
                re[k * count + b] = x[start + k * stride + 1]
        elif is_inverse == 0:
            for k in range(used):
                re[k * count + b] = x[start + k * stride]
                im[k * count + b] = element(im, 0)
        else:
            for k in range(used):
                im[k * count + b] = x[start + k * stride]
                re[k * count + b] = element(re, 0)
    for at in range(used * count, size * count):
        re[at] = element(re, 0)
        im[at] = element(im, 0)
    if windowed > 1 or size == 1:
        for k in range(used):
            for b in range(count):
                re[k * count + b] = re[k * count + b] * window[k]
                im[k * count + b] = im[k * count + b] * window[k]
    if is_real != 0:
        mirror_spectra(re, im, used, size, count)
    return 0


def mirror_spectra(re: Elements, im: Elements, used: int, size: int, count: int) -> int:
    """The second halves of conjugate symmetric spectra, whose real and imaginary parts are exchanged."""
    middle = size // 2 if size % 2 == 0 else 0
    for b in range(count):
        re[b] = element(re, 0)
        re[middle * count + b] = element(re, 0)
        for k in range(1, used):
            re[(size - k) * count + b] = -re[k * count + b]
            im[(size - k) * count + b] = im[k * count + b]
    return 0


def store_signals(
    re: Elements, im: Elements, out: Elements, geometry: Elements, first: int, count: int, size: int, parts: int,
    is_inverse: int,
) -> int:  # fmt: skip
    """Writes transforms [size, count] to where `geometry` says; those of exchanged parts are exchanged and scaled."""
    inner = geometry[0]
    results = geometry[8]
    scale = element(out, 1) / size
    for b in range(count):
        base = (first + b) // inner * geometry[5] + (first + b) % inner * geometry[6]
        start = base * parts
        stride = geometry[7] * parts
        if is_inverse == 0:
            for k in range(results):
                out[start + k * stride] = re[k * count + b]
                out[start + k * stride + 1] = im[k * count + b]
        elif parts == 2:
            for k in range(results):
                out[start + k * stride] = im[k * count + b] * scale
                out[start + k * stride + 1] = re[k * count + b] * scale
        else:
            for k in range(results):
                out[start + k * stride] = im[k * count + b] * scale
    return 0


@routine()
def fourier_transforms(
    x: Elements, window: Elements, geometry: Elements, cosines: Elements, sines: Elements, out: Elements,
    re: Elements, im: Elements, re2: Elements, im2: Elements, signals: int, size: int, block: int, parts: int,
    is_inverse: int, is_real: int,
) -> int:  # fmt: skip
    """The transforms of signals of `size` elements.

    Args:
        x: the signals, with `parts` numbers per element.
        window: factors of the elements; of another length than `size`: none.
        geometry: signal s begins at element s // [0] * [1] + s % [0] * [2] of x, its elements are [3] apart, and there
            are [4] of them; [5] to [8] are the same of out, of which the first [8] results are written.
        cosines: of 2 pi k / size.
        sines: of the same.
        out: results, real parts only if `is_real`.
        re: the next four hold `block` signals.
        im: see re.
        re2: see re.
        im2: see re.
        signals: their number.
        size: length of the transform.
        block: signals that are transformed at once.
        parts: 1 or 2.
        is_inverse: whether results are those of the inverse transform.
        is_real: whether x are the halves of conjugate symmetric spectra.
    """
    first = 0
    while first < signals:
        count = min(block, signals - first)
        load_signals(x, window, re, im, geometry, first, count, size, parts, is_inverse, is_real)
        if transform(re, im, re2, im2, cosines, sines, size, count) == 0:
            store_signals(re, im, out, geometry, first, count, size, 2 - is_real, is_inverse)
        else:
            store_signals(re2, im2, out, geometry, first, count, size, 2 - is_real, is_inverse)
        first = first + count
    return 0


def multiply_by_conjugates(
    re: Elements, im: Elements, cosines: Elements, sines: Elements, size: int, count: int
) -> int:  # fmt: skip
    """re and im [size, count] times cosines - i * sines, of each element."""
    if count == 1:
        for k in range(size):
            real = re[k]
            imaginary = im[k]
            re[k] = real * cosines[k] + imaginary * sines[k]
            im[k] = imaginary * cosines[k] - real * sines[k]
        return 0
    for k in range(size):
        c = cosines[k]
        s = sines[k]
        for b in range(count):
            real = re[k * count + b]
            imaginary = im[k * count + b]
            re[k * count + b] = real * c + imaginary * s
            im[k * count + b] = imaginary * c - real * s
    return 0


def exchange(x: Elements, y: Elements, size: int) -> int:
    """Exchanges the first elements of two buffers."""
    for k in range(size):
        value = x[k]
        x[k] = y[k]
        y[k] = value
    return 0


def load_chirp(re: Elements, im: Elements, cosines: Elements, sines: Elements, size: int, length: int) -> int:
    """The chirp at positions -(size - 1) to size - 1, around a circle of `length`, divided by `length`."""
    scale = element(re, 1) / length
    for k in range(length):
        re[k] = element(re, 0)
        im[k] = element(im, 0)
    for k in range(size):
        re[k] = cosines[k] * scale
        im[k] = sines[k] * scale
    for k in range(1, size):
        re[length - k] = cosines[k] * scale
        im[length - k] = sines[k] * scale
    return 0


@routine()
def chirp_transforms(
    x: Elements, window: Elements, geometry: Elements, cosines: Elements, sines: Elements, chirp_cosines: Elements,
    chirp_sines: Elements, out: Elements, re: Elements, im: Elements, re2: Elements, im2: Elements, fr: Elements,
    fi: Elements, signals: int, size: int, length: int, block: int, parts: int, is_inverse: int, is_real: int,
) -> int:  # fmt: skip
    """As `fourier_transforms`, by convolutions of `length` elements, at least 2 * size - 1.

    Args:
        x: see there.
        window: see there.
        geometry: see there.
        cosines: of 2 pi k / length.
        sines: of the same.
        chirp_cosines: of pi k * k / size.
        chirp_sines: of the same.
        out: see there.
        re: the next four hold `block` signals of `length`.
        im: see re.
        re2: see re.
        im2: see re.
        fr: the transform of the chirp.
        fi: see fr; of the opposite sign.
        signals: see there.
        size: see there.
        length: of the convolutions.
        block: see there.
        parts: see there.
        is_inverse: see there.
        is_real: see there.
    """
    first = 0
    count = 1
    for turn in range(1 + 2 * ((signals + block - 1) // block)):
        if turn == 0:
            load_chirp(re, im, chirp_cosines, chirp_sines, size, length)
        elif turn % 2 == 1:
            first = turn // 2 * block
            count = min(block, signals - first)
            load_signals(x, window, re, im, geometry, first, count, size, parts, is_inverse, is_real)
            multiply_by_conjugates(re, im, chirp_cosines, chirp_sines, size, count)
            for at in range(size * count, length * count):
                re[at] = element(re, 0)
                im[at] = element(im, 0)
        else:
            multiply_by_conjugates(re, im, fr, fi, length, count)
            exchange(re, im, length * count)
        if transform(re, im, re2, im2, cosines, sines, length, count) == 1:
            for at in range(length * count):
                re[at] = re2[at]
                im[at] = im2[at]
        if turn == 0:
            for k in range(length):
                fr[k] = re[k]
                fi[k] = -im[k]
        elif turn % 2 == 0:
            exchange(re, im, size * count)
            multiply_by_conjugates(re, im, chirp_cosines, chirp_sines, size, count)
            store_signals(re, im, out, geometry, first, count, size, 2 - is_real, is_inverse)
    return 0
