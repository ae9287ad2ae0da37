"""Passes of fast Fourier transforms: r elements at a time are transformed and multiplied by roots of unity.

All of them read x[r, rest, stride] and write y[rest, r, stride], as real and imaginary parts; element p of `rest` and
result k belong to the root of p * k * turn.
"""

from tilewright.routine.routine import Elements

HALF_ROOT_3 = 0.8660254037844386467637
COS_72, COS_144 = 0.3090169943749474241023, -0.8090169943749474241023
SIN_72, SIN_144 = 0.9510565162951535721164, 0.5877852522924731291687


def radix_2(
    xr: Elements, xi: Elements, yr: Elements, yi: Elements, cosines: Elements, sines: Elements, rest: int, stride: int,
    turn: int,
) -> int:  # fmt: skip
    """Two elements at a time."""
    half = rest * stride
    for p in range(rest):
        c = cosines[p * turn]
        s = sines[p * turn]
        at = p * stride
        to = 2 * p * stride
        for q in range(stride):
            dr = xr[at + q] - xr[at + q + half]
            di = xi[at + q] - xi[at + q + half]
            yr[to + q] = xr[at + q] + xr[at + q + half]
            yi[to + q] = xi[at + q] + xi[at + q + half]
            yr[to + q + stride] = dr * c + di * s
            yi[to + q + stride] = di * c - dr * s
    return 0


def radix_3(
    xr: Elements, xi: Elements, yr: Elements, yi: Elements, cosines: Elements, sines: Elements, rest: int, stride: int,
    turn: int,
) -> int:  # fmt: skip
    """Three elements at a time."""
    third = rest * stride
    for p in range(rest):
        c1 = cosines[p * turn]
        s1 = sines[p * turn]
        c2 = cosines[2 * p * turn]
        s2 = sines[2 * p * turn]
        at = p * stride
        to = 3 * p * stride
        for q in range(stride):
            sr = xr[at + q + third] + xr[at + q + 2 * third]
            si = xi[at + q + third] + xi[at + q + 2 * third]
            dr = (xr[at + q + third] - xr[at + q + 2 * third]) * HALF_ROOT_3
            di = (xi[at + q + third] - xi[at + q + 2 * third]) * HALF_ROOT_3
            mr = xr[at + q] - sr * 0.5
            mi = xi[at + q] - si * 0.5
            ar = mr + di
            ai = mi - dr
            br = mr - di
            bi = mi + dr
            yr[to + q] = xr[at + q] + sr
            yi[to + q] = xi[at + q] + si
            yr[to + q + stride] = ar * c1 + ai * s1
            yi[to + q + stride] = ai * c1 - ar * s1
            yr[to + q + 2 * stride] = br * c2 + bi * s2
            yi[to + q + 2 * stride] = bi * c2 - br * s2
    return 0


def radix_4(
    xr: Elements, xi: Elements, yr: Elements, yi: Elements, cosines: Elements, sines: Elements, rest: int, stride: int,
    turn: int,
) -> int:  # fmt: skip
    """Four elements at a time."""
    part = rest * stride
    if stride == 1:
        # the first pass of one signal, whose neighbours are those of `rest`
        for p in range(rest):
            ar = xr[p] + xr[p + 2 * rest]
            ai = xi[p] + xi[p + 2 * rest]
            br = xr[p] - xr[p + 2 * rest]
            bi = xi[p] - xi[p + 2 * rest]
            cr = xr[p + rest] + xr[p + 3 * rest]
            ci = xi[p + rest] + xi[p + 3 * rest]
            dr = xr[p + rest] - xr[p + 3 * rest]
            di = xi[p + rest] - xi[p + 3 * rest]
            yr[4 * p] = ar + cr
            yi[4 * p] = ai + ci
            yr[4 * p + 1] = (br + di) * cosines[p] + (bi - dr) * sines[p]
            yi[4 * p + 1] = (bi - dr) * cosines[p] - (br + di) * sines[p]
            yr[4 * p + 2] = (ar - cr) * cosines[2 * p] + (ai - ci) * sines[2 * p]
            yi[4 * p + 2] = (ai - ci) * cosines[2 * p] - (ar - cr) * sines[2 * p]
            yr[4 * p + 3] = (br - di) * cosines[3 * p] + (bi + dr) * sines[3 * p]
            yi[4 * p + 3] = (bi + dr) * cosines[3 * p] - (br - di) * sines[3 * p]
        return 0
    for p in range(rest):
        c1 = cosines[p * turn]
        s1 = sines[p * turn]
        c2 = cosines[2 * p * turn]
        s2 = sines[2 * p * turn]
        c3 = cosines[3 * p * turn]
        s3 = sines[3 * p * turn]
        at = p * stride
        to = 4 * p * stride
        for q in range(stride):
            ar = xr[at + q] + xr[at + q + 2 * part]
            ai = xi[at + q] + xi[at + q + 2 * part]
            br = xr[at + q] - xr[at + q + 2 * part]
            bi = xi[at + q] - xi[at + q + 2 * part]
            cr = xr[at + q + part] + xr[at + q + 3 * part]
            ci = xi[at + q + part] + xi[at + q + 3 * part]
            dr = xr[at + q + part] - xr[at + q + 3 * part]
            di = xi[at + q + part] - xi[at + q + 3 * part]
            yr[to + q] = ar + cr
            yi[to + q] = ai + ci
            yr[to + q + stride] = (br + di) * c1 + (bi - dr) * s1
            yi[to + q + stride] = (bi - dr) * c1 - (br + di) * s1
            yr[to + q + 2 * stride] = (ar - cr) * c2 + (ai - ci) * s2
            yi[to + q + 2 * stride] = (ai - ci) * c2 - (ar - cr) * s2
            yr[to + q + 3 * stride] = (br - di) * c3 + (bi + dr) * s3
            yi[to + q + 3 * stride] = (bi + dr) * c3 - (br - di) * s3
    return 0


def radix_5(
    xr: Elements, xi: Elements, yr: Elements, yi: Elements, cosines: Elements, sines: Elements, rest: int, stride: int,
    turn: int,
) -> int:  # fmt: skip
    """Five elements at a time, whose sums and differences are transformed without twiddle factors first."""
    part = rest * stride
    for p in range(rest):
        at = p * stride
        to = 5 * p * stride
        for q in range(stride):
            ar = xr[at + q + part] + xr[at + q + 4 * part]
            ai = xi[at + q + part] + xi[at + q + 4 * part]
            br = xr[at + q + 2 * part] + xr[at + q + 3 * part]
            bi = xi[at + q + 2 * part] + xi[at + q + 3 * part]
            cr = xr[at + q + part] - xr[at + q + 4 * part]
            ci = xi[at + q + part] - xi[at + q + 4 * part]
            dr = xr[at + q + 2 * part] - xr[at + q + 3 * part]
            di = xi[at + q + 2 * part] - xi[at + q + 3 * part]
            er = xr[at + q] + ar * COS_72 + br * COS_144
            ei = xi[at + q] + ai * COS_72 + bi * COS_144
            fr = xr[at + q] + ar * COS_144 + br * COS_72
            fi = xi[at + q] + ai * COS_144 + bi * COS_72
            gr = cr * SIN_72 + dr * SIN_144
            gi = ci * SIN_72 + di * SIN_144
            hr = cr * SIN_144 - dr * SIN_72
            hi = ci * SIN_144 - di * SIN_72
            yr[to + q] = xr[at + q] + ar + br
            yi[to + q] = xi[at + q] + ai + bi
            yr[to + q + stride] = er + gi
            yi[to + q + stride] = ei - gr
            yr[to + q + 2 * stride] = fr + hi
            yi[to + q + 2 * stride] = fi - hr
            yr[to + q + 3 * stride] = fr - hi
            yi[to + q + 3 * stride] = fi + hr
            yr[to + q + 4 * stride] = er - gi
            yi[to + q + 4 * stride] = ei + gr
        for k in range(1, 5):
            c = cosines[p * k * turn]
            s = sines[p * k * turn]
            place = to + k * stride
            for q in range(stride):
                real = yr[place + q]
                imaginary = yi[place + q]
                yr[place + q] = real * c + imaginary * s
                yi[place + q] = imaginary * c - real * s
    return 0


def any_radix(
    xr: Elements, xi: Elements, yr: Elements, yi: Elements, cosines: Elements, sines: Elements, r: int, rest: int,
    stride: int, turn: int, size: int,
) -> int:  # fmt: skip
    """r elements at a time, by their definition; the tables have `size` roots."""
    for p in range(rest):
        for k in range(r):
            to = (r * p + k) * stride
            for j in range(r):
                at = (j * rest + p) * stride
                root = (p * turn + j * (size // r)) * k % size
                c = cosines[root]
                s = sines[root]
                if j == 0:
                    for q in range(stride):
                        yr[to + q] = xr[at + q] * c + xi[at + q] * s
                        yi[to + q] = xi[at + q] * c - xr[at + q] * s
                else:
                    for q in range(stride):
                        yr[to + q] = yr[to + q] + xr[at + q] * c + xi[at + q] * s
                        yi[to + q] = yi[to + q] + xi[at + q] * c - xr[at + q] * s
    return 0
