"""A matrix product of which every size may be 0, as written and scheduled in several ways."""

from tilewright.loops.parser import parse
from tilewright.schedule.annotate import parallel
from tilewright.schedule.loop_transforms import fuse, peel, reorder, split, split_parts
from tilewright.schedule.reduction import decompose_reduction
from tilewright.schedule.tails import Tail
from tilewright.schedule.tile import tile

MATMUL = parse("""
func matmul(A: float32[M, K], B: float32[K, 5], C: float32[M, 5]; M: 0..64, K: 0..64):
    for i in serial(M):
        for j in serial(5):
            for k in serial(K):
                block C(v_i: M = i, v_j: 5 = j, reduce v_k: K = k):
                    init C[v_i, v_j] = 0.5
                    C[v_i, v_j] = C[v_i, v_j] + A[v_i, v_k] * B[v_k, v_j]
""")

SCHEDULED_MATMULS = {
    "as it is": lambda: MATMUL,
    "reduction outside": lambda: reorder(MATMUL, ("k", "i", "j")),
    "reduction between": lambda: reorder(MATMUL, ("i", "k", "j")),
    "guarded tiles": lambda: tile(MATMUL, ("i", "j", "k"), (4, 2, 3)),
    "tiles with remainders": lambda: tile(MATMUL, ("i", "j", "k"), (4, 2, 3), None, Tail.REMAINDER),
    "masked": lambda: split(MATMUL, "j", 4, None, Tail.MASK),
    "parts": lambda: split_parts(MATMUL, "k", 4),
    "fused": lambda: fuse(MATMUL, "i", "j"),
    "cut": lambda: peel(MATMUL, "k", MATMUL.symbols[1] // 2),
    "parallel": lambda: parallel(reorder(MATMUL, ("j", "i")), "j"),
    "decomposed": lambda: decompose_reduction(MATMUL, "C", "k"),
    "decomposed tiles": lambda: decompose_reduction(tile(MATMUL, ("i", "k"), (4, 3)), "C", "k_o"),
}
