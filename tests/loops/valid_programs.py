"""Programs as text that the verifier accepts."""

VALID_PROGRAMS = {
    "tiled with a guard": """
func f(A: float32[N], B: float32[N]; N: 1..99):
    for io in parallel((N + 15) // 16):
        for ii in vectorized(16):
            block B(v: N = io * 16 + ii) where io * 16 + ii < N:
                B[v] = A[v] + 1.0
""",
    "fused and split again": """
func f(A: float32[N, M], B: float32[N, M]; N: 1..99, M: 1..9):
    for fo in parallel((M * N + 7) // 8):
        for fi in vectorized(8):
            block B(v: N = (fi + fo * 8) // M, w: M = (fi + fo * 8) % M) where fi + fo * 8 < M * N:
                B[v, w] = A[v, w]
""",
    "three fused loops": """
func f(A: float32[N, M, 5], B: float32[N, M, 5]; N: 1..99, M: 1..9):
    for f in parallel(M * N * 5):
        block B(v: N = f // 5 // M, w: M = f // 5 % M, x: 5 = f % 5):
            B[v, w, x] = A[v, w, x]
""",
    "register tile, decomposed, several blocks in a parallel loop": """
func mm(A: float32[N, K], B: float32[K, 32], C: float32[N, 32]; N: 1..99, K: 1..99):
    alloc T: float32[4, 32] in register
    for io in parallel(N // 4):
        for a in unrolled(4):
            for j in vectorized(32):
                block T_init(x: N = io * 4 + a, y: 32 = j):
                    T[x - io * 4, y] = 0.0
        for k in serial(K):
            for a1 in unrolled(4):
                for j1 in vectorized(32):
                    block T(x1: N = io * 4 + a1, y1: 32 = j1, reduce z1: K = k):
                        T[x1 - io * 4, y1] = T[x1 - io * 4, y1] + A[x1, z1] * B[z1, y1]
        for a2 in unrolled(4):
            for j2 in vectorized(32):
                block C(x2: N = io * 4 + a2, y2: 32 = j2):
                    C[x2, y2] = T[x2 - io * 4, y2]
    for i in serial(N % 4):
        for j3 in vectorized(32):
            block C_tail(x3: N = N // 4 * 4 + i, y3: 32 = j3):
                C[x3, y3] = 0.0
""",
    "reduction across lanes": """
func total(A: float32[64], S: float32[]):
    block S_init():
        S[] = 0.0
    for ko in serial(4):
        for ki in vectorized(16):
            block S(reduce k: 64 = ko * 16 + ki):
                S[] = S[] + A[k]
""",
    "gather with clamped indices": """
func g(I: int64[N], E: float32[100, 8], O: float32[N, 8]; N: 1..9):
    for i in parallel(N):
        for j in vectorized(8):
            block O(v: N = i, w: 8 = j):
                O[v, w] = E[min(max(I[v], 0), 99), w]
""",
    "peeled reduction": """
func p(A: float32[N, 10], S: float32[N]; N: 1..9):
    for i in parallel(N):
        block S_init(v: N = i):
            S[v] = 0.0
        for k in serial(8):
            block S(v1: N = i, reduce w1: 10 = k):
                S[v1] = S[v1] + A[v1, w1]
        for k2 in serial(2):
            block S_2(v2: N = i, reduce w2: 10 = k2 + 8):
                S[v2] = S[v2] + A[v2, w2]
""",
    "producer and consumer in one parallel iteration": """
func pc(A: float32[N, 8], B: float32[N, 8]; N: 1..9):
    alloc T: float32[N, 8]
    for i in parallel(N):
        for j in vectorized(8):
            block T(a: N = i, b: 8 = j):
                T[a, b] = A[a, b]
        for k in vectorized(8):
            block B(c: N = i, d: 8 = k):
                B[c, d] = T[c, 7 - d]
""",
    "overlapping tiles of a producer": """
func o(A: float32[66], B: float32[64]):
    alloc T: float32[18] in stack
    for io in parallel(4):
        for x in serial(18):
            block T(v: 66 = io * 16 + x):
                T[v - io * 16] = A[v] * 2.0
        for ii in vectorized(16):
            block B(w: 64 = io * 16 + ii):
                B[w] = T[w - io * 16] + T[w - io * 16 + 2]
""",
    "guard of a part and of the whole": """
func s(A: float32[N], B: float32[N]; N: 1..500):
    for p in parallel((N + 63) // 64):
        for q in serial(4):
            for r in vectorized(16):
                block B(v: N = p * 64 + q * 16 + r) where p * 4 + q < (N + 15) // 16 and p * 64 + q * 16 + r < N:
                    B[v] = A[v]
""",
    "tail of a loop of one partial tile": """\
func f(A: float32[R, 17], B: float32[R, 17]; R: 1..300):
    for o in parallel(R // 128):
        for t in serial(1):
            for a in serial(9):
                for b in serial(13):
                    for c in vectorized(32):
                        block B(v: R = o * 128 + a * 13 + b, w: 17 = t * 32 + c) where t * 32 + c < 17:
                            B[v, w] = A[v, w]
            for b_2 in serial(11):
                for c_2 in vectorized(32):
                    block B_2(v_2: R = o * 128 + 117 + b_2, w_2: 17 = t * 32 + c_2) where t * 32 + c_2 < 17:
                        B[v_2, w_2] = A[v_2, w_2]
    for r in parallel(R % 128):
        for t_3 in serial(1):
            for c_3 in vectorized(32):
                block B_3(v_3: R = R // 128 * 128 + r, w_3: 17 = t_3 * 32 + c_3) where t_3 * 32 + c_3 < 17:
                    B[v_3, w_3] = A[v_3, w_3]
""",
}
