"""Loop-IR programs that several test files compile."""

SMALL = """
func axpy(X: float32[N], Y: float32[N]; N: 1..1000):
    for o in parallel((N + 7) // 8):
        for l in vectorized(8):
            block Y(v: N = o * 8 + l) where o * 8 + l < N:
                Y[v] = Y[v] + X[v] * 2.0
"""


def tile(rows: int, lanes: int) -> str:
    """A register tile of a matrix product."""
    return f"""
func gemm(A: float32[{rows * 4}, 128], B: float32[128, {lanes * 2}], C: float32[{rows * 4}, {lanes * 2}]):
    alloc T: float32[{rows}, {lanes}] in register
    for io in parallel(4):
        for jo in serial(2):
            for i0 in unrolled({rows}):
                for j0 in vectorized({lanes}):
                    block start(a0: {rows} = i0, b0: {lanes} = j0):
                        T[a0, b0] = 0.0
            for k in serial(128):
                for i1 in unrolled({rows}):
                    for j1 in vectorized({lanes}):
                        block T(a: {rows} = i1, b: {lanes} = j1, m: {rows * 4} = io * {rows} + i1, n: {lanes * 2} = jo * {lanes} + j1, reduce r: 128 = k):
                            T[a, b] = T[a, b] + A[m, r] * B[r, n]
            for i2 in unrolled({rows}):
                for j2 in vectorized({lanes}):
                    block C(a2: {rows} = i2, b2: {lanes} = j2, m2: {rows * 4} = io * {rows} + i2, n2: {lanes * 2} = jo * {lanes} + j2):
                        C[m2, n2] = max(T[a2, b2], 0.0)
"""  # noqa: E501


PADDED = """
func conv(X: float32[64, 58, 14], W: float32[64, 3, 3, 32], Y: float32[56, 14, 32]):
    alloc T: float32[14, 32] in register
    for h in parallel(56):
        for i0 in unrolled(14):
            for j0 in vectorized(32):
                block start(a0: 14 = i0, b0: 32 = j0):
                    T[a0, b0] = 0.0
        for c in serial(64):
            for p in serial(3):
                for q in serial(3):
                    for i1 in unrolled(14):
                        for j1 in vectorized(32):
                            block T(a: 14 = i1, b: 32 = j1, y: 56 = h, reduce vc: 64 = c, reduce vp: 3 = p, reduce vq: 3 = q):
                                T[a, b] = T[a, b] + select(y + vp >= 1 and y + vp < 57 and a + vq >= 1 and a + vq < 15, X[vc, y + vp - 1, a + vq - 1], 0.0) * W[vc, vp, vq, b]
        for i2 in unrolled(14):
            for j2 in vectorized(32):
                block Y(a2: 14 = i2, b2: 32 = j2, y2: 56 = h):
                    Y[y2, a2, b2] = T[a2, b2]
"""  # noqa: E501
