"""Printer and parser: golden text, round trips of random trees, and parse errors with their position."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expr.strategies import M, N, indices
from tests.loops import programs
from tests.loops.programs import computations, conv, matmul_relu
from tests.loops.valid_programs import VALID_PROGRAMS

from tilewright.errors import ParseError
from tilewright.expr.dtype import DTYPES, boolean
from tilewright.expr.nodes import TRUE, Binary, Buffer, Load, MemoryScope, Symbol, Var, const
from tilewright.expr.operations import cast
from tilewright.loops.ir import NOTHING, Block, BlockIter, For, Func, If, IterKind, LoopKind, Stmt, Store, seq
from tilewright.loops.lowering import lower_to_loops
from tilewright.loops.parser import parse
from tilewright.loops.printer import show, show_stmt

UNRANGED = (Symbol("i"), Symbol("j"), Symbol("k"))
"""Sizes without a declared range."""

SIZES = st.sampled_from((N, const(1), const(7), N * 4 + 1, (N + 15) // 16, N % 3 - 2, Symbol("batch size", -2, None)))


def random_block(draw: st.DrawFn, number: int, loops: list[Var], buffers: list[Buffer]) -> Block:
    iters: list[BlockIter] = []
    for k in range(draw(st.integers(0, 3))):
        # Names of every kind: plain, reserved, with spaces and quotes.
        name = draw(st.sampled_from(("v", "for", "it's", "batch size", "ünïcode", "0"))) + f"{number}_{k}"
        binding = draw(st.sampled_from(loops)) * 2 + draw(SIZES) if loops else draw(indices(4, (*UNRANGED, N, M)))
        iters.append(BlockIter(Var(name), draw(SIZES), draw(st.sampled_from(IterKind)), binding))
    variables = [i.var for i in iters] or [const(0)]

    def store() -> Store:
        buffer = draw(st.sampled_from(buffers))
        index = tuple(draw(st.sampled_from(variables)) for _ in buffer.shape)
        source = draw(st.sampled_from(buffers))
        value = cast(buffer.dtype, Load(source, tuple(draw(st.sampled_from(variables)) for _ in source.shape)))
        return Store(buffer, index, value)

    where = draw(st.sampled_from((TRUE, Binary("lt", draw(SIZES), draw(SIZES)))))
    return Block(f"block {number}", tuple(iters), store(), store() if draw(st.booleans()) else None, where)


@st.composite
def functions(draw: st.DrawFn) -> Func:
    """Well-typed trees of any shape, without a meaning."""
    symbols = (N, M, Symbol("batch size", -2, None), Symbol("free", None, 7), *UNRANGED)
    buffers = [
        Buffer(name, tuple(draw(SIZES) for _ in range(draw(st.integers(0, 3)))), dtype, scope)
        for name, dtype, scope in (
            ("A", draw(st.sampled_from(list(DTYPES.values()))), MemoryScope.MEMORY),
            ("/model/out.1", draw(st.sampled_from(list(DTYPES.values()))), draw(st.sampled_from(MemoryScope))),
            ("init", boolean, draw(st.sampled_from(MemoryScope))),
        )
    ]
    count = 0

    def statement(depth: int, loops: list[Var]) -> Stmt:
        nonlocal count
        count += 1
        kind = draw(st.integers(0, 3)) if depth else 0
        if kind == 0:
            return random_block(draw, count, loops, buffers)
        if kind == 1:
            var = Var(f"l{count}")
            extent = draw(SIZES)
            return For(var, extent, draw(st.sampled_from(LoopKind)), statement(depth - 1, [*loops, var]))
        if kind == 2 and loops:
            condition, then = loops[0] < draw(SIZES), statement(depth - 1, loops)
            return If(condition, then, statement(depth - 1, loops) if draw(st.booleans()) else NOTHING)
        return seq(*(statement(depth - 1, loops) for _ in range(draw(st.integers(2, 3)))))

    return Func("f", (buffers[0],), symbols, tuple(buffers[1:]), statement(3, []))


@given(functions())
@settings(max_examples=25)
def test_round_trip_of_random_trees(func: Func) -> None:
    text = show(func)
    again = parse(text)
    assert again == func
    assert show(again) == text


@given(computations())
def test_round_trip_of_lowered_computations(case) -> None:
    c, inputs = case
    func = lower_to_loops("f", [c], [*inputs, c.output], [programs.N])
    assert parse(show(func)) == func


@pytest.mark.parametrize("text", VALID_PROGRAMS.values(), ids=VALID_PROGRAMS)
def test_round_trip_of_handwritten_programs(text: str) -> None:
    assert show(parse(text)) == text.lstrip()


@pytest.mark.parametrize("func", [matmul_relu(), conv()], ids=lambda f: f.name)
def test_equal_trees_share_their_expressions(func: Func) -> None:
    again = parse(show(func))
    assert again == func
    assert again.params[0].shape[0] is func.params[0].shape[0]


def test_every_construct_prints(golden) -> None:
    func = parse("""
# comments and free line breaks inside brackets
func everything(A: float32[N, 4], 'input.1/x': bfloat16[N],
                S: int64[]; N: 1..9, M: ..7, K):
    alloc T: bool[4] in register
    alloc U: uint8[N * 4 + 1] in memory
    for i in parallel(N):
        for j in vectorized(4):
            block T(v: 4 = j) where i < N and j < 3:
                T[v] = isnan(A[i, v]) or A[i, v] == float32('-inf')
        for k in unrolled(4):
            block 'x/y'(w: N = i, reduce r: 4 = k):
                init 'input.1/x'[w] = bfloat16(0.0)
                'input.1/x'[w] = max('input.1/x'[w], select(T[r], cast(bfloat16, A[w, r]), bfloat16(-0.0)))
    block S():
        S[] = 3   # a scalar
""")
    golden(show(func))
    assert parse(show(func)) == func


def test_statements_print_without_a_header() -> None:
    assert show_stmt(matmul_relu().body).splitlines()[0] == "for i in serial(M):"


def test_long_headers_break() -> None:
    params = tuple(Buffer(f"parameter_number_{k}", (N, const(1024)), DTYPES["float32"]) for k in range(6))
    body = Block("b", (), Store(params[0], (const(0), const(0)), const(0.0, DTYPES["float32"])))
    func = Func("f", params, (N,), (), body)
    text = show(func)
    assert max(map(len, text.splitlines())) < 120
    assert parse(text) == func


HEAD = "func f(A: float32[8]; N: 1..4):\n"
LOOP = HEAD + "    for i in serial(8):\n"
BLOCK = LOOP + "        block A(v: 8 = i):\n"


@pytest.mark.parametrize(("text", "message"), [
    ("", "line 1, column 1: expected 'func', got the end of the text"),
    ("def f():", "line 1, column 1: expected 'func', got 'def'"),
    ("func f[]:", "line 1, column 7: expected '(' after the function's name, got '['"),
    ("func f(A float32[8]):", "line 1, column 10: expected ':' after the name of parameter 'A', got 'float32'"),
    ("func f(A: float33[8]):", "line 1, column 11: expected an element type (float16, "),
    ("func f(A: float32):", "line 1, column 18: expected '[' before the shape, got ')'"),
    ("func f(A: float32[N]):", "line 1, column 19: unknown variable 'N'"),
    ("func f(A: float32[8], A: int32[8]):", "line 1, column 23: buffer 'A' is declared twice"),
    ("func f(A: float32[8] in cache):", "line 1, column 25: expected a memory scope (memory, stack, register)"),
    ("func f(; N: 1, M):", "line 1, column 14: expected '..' in a symbol's range, got ','"),
    ("func f(A: float32[8])\n", "line 1, column 22: expected ':' after the function's header, got the end of the line"),
    (HEAD, "line 2, column 1: expected indented lines after the function's header, got the end of the text"),
    (HEAD + "for i in serial(8):\n", "line 2, column 1: expected indented lines after the function's header"),
    (HEAD + "    while i:\n", "line 2, column 5: expected 'for', 'block' or 'if', got 'while'"),
    (HEAD + "    if 0 < 1:\n        block A(v: 8 = 0):\n            A[v] = 1.0\n    else:\n",
     "line 6, column 1: expected indented lines after 'else'"),
    (HEAD + "    for i serial(8):\n", "line 2, column 11: expected 'in' after the loop variable, got 'serial'"),
    (HEAD + "    for i in range(8):\n",
     "line 2, column 14: expected a kind of loop (serial, parallel, vectorized, unrolled, vthread, block_x, "
     "block_y, block_z, thread_x, thread_y, thread_z), got 'range'"),
    (HEAD + "    for for in serial(8):\n", "line 2, column 9: expected the name of a loop variable, got 'for'"),
    (LOOP, "line 3, column 1: expected indented lines after the loop's header"),
    (LOOP + "        block A(v = i):\n", "line 3, column 19: expected ':' after an iteration variable, got '='"),
    (LOOP + "        block A(v: 8):\n", "line 3, column 21: expected '=' after the extent of an iteration variable"),
    (BLOCK + "            A[v] + 1.0\n", "line 4, column 18: expected '=' after the element that is stored, got '+'"),
    (BLOCK + "            A[v] = B[v]\n", "line 4, column 20: unknown buffer 'B'"),
    (BLOCK + "            C[v] = 1.0\n", "line 4, column 13: unknown buffer 'C'"),
    (BLOCK + "            A[v] = A[w]\n", "line 4, column 22: unknown variable 'w'"),
    (BLOCK + "            A[v] = 1.0 2.0\n", "line 4, column 24: expected the end of the line, got '2.0'"),
    (BLOCK + "            A[v] = 1.0\n            A[v] = 2.0\n",
     "line 5, column 13: expected nothing more in a block, got 'A'"),
    (BLOCK + "            A[v] = 1.0\n         block B():\n",
     "line 5, column 10: indentation of 9 columns matches no line above"),
    (BLOCK + "            A[v] = 1.0\nfunc g():\n", "line 5, column 1: expected the end of the text, got 'func'"),
    (BLOCK + "            A[v] = 1.0 $\n", "line 4, column 24: unexpected character '$'"),
])  # fmt: skip
def test_errors_name_the_place(text: str, message: str) -> None:
    with pytest.raises(ParseError) as error:
        parse(text)
    assert str(error.value).startswith(f"[parse] {message}")
