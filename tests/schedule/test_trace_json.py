"""Traces as JSON and Python text: round trips, and all problems of invalid files reported together."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.schedule.functions import CHAIN
from tests.schedule.schedules import chain_schedule, gemm, gemm_schedule

from tilewright.errors import TraceError
from tilewright.expr.define import symbol
from tilewright.layout.layout import Layout
from tilewright.schedule import trace_json
from tilewright.schedule.arguments import parameters
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import PRIMITIVES, Step, Trace, replay, to_python

SCHEMA = Path(__file__).parents[2] / "docs" / "trace.schema.json"


def every_kind() -> Trace:
    """Steps with arguments of every kind; not all of them are legal together."""
    m = symbol("M", 1, 64)
    layout = Layout.of((m, 9)).pad_to(1, 4).split(1, (None, 4)).reorder((1, 0, 2))
    return (
        Step.of("split", "i", 4, tail="remainder"),
        Step.of("peel", "i", m // 4 * 4),
        Step.of("reorder", ("a b", "j")),
        Step.of("tile", ("i", "j"), (8, 16)),
        Step.of("cache_write", "T", scope="stack"),
        Step.of("cache_read", "T", "A", None, "memory", layout),
        Step.of("transform_layout", "T", layout),
    )


@pytest.mark.parametrize(
    "trace", [(), chain_schedule().trace, gemm_schedule().trace, every_kind()], ids=["none", "chain", "gemm", "all"]
)
def test_round_trip(trace: Trace, tmp_path: Path) -> None:
    text = trace_json.dumps(trace)
    assert trace_json.loads(text) == trace
    assert trace_json.loads(text.encode()) == trace
    assert json.loads(text) == trace_json.encode(trace)
    trace_json.dump(trace, tmp_path / "t.json")
    assert trace_json.load(tmp_path / "t.json") == trace
    assert trace_json.dumps(trace_json.loads(text)) == text


def test_decoded_trace_replays() -> None:
    s = chain_schedule()
    assert replay(CHAIN, trace_json.loads(trace_json.dumps(s.trace))) == s.func


def test_python_text_can_be_pasted() -> None:
    for before in (chain_schedule(), gemm_schedule()):
        after = Schedule(before.origin)
        exec(before.to_python(), {"s": after})
        assert after.trace == before.trace
        assert after.func == before.func


def test_texts(golden: Callable[[str], None]) -> None:
    trace = every_kind()
    golden(trace_json.dumps(trace) + "\n" + to_python(trace, "schedule"))


def test_the_schema_is_published(request: pytest.FixtureRequest) -> None:
    text = json.dumps(trace_json.schema(), indent=2) + "\n"
    if request.config.getoption("--update-golden"):
        SCHEMA.write_text(text)
    command = "python -m pytest tests/schedule/test_trace_json.py -k published --update-golden"
    assert SCHEMA.read_text() == text, f"docs/trace.schema.json is not that of the primitives; write it with: {command}"


def test_the_schema_describes_what_is_written() -> None:
    for trace in (chain_schedule().trace, gemm_schedule().trace, every_kind()):
        for step in trace_json.encode(trace)["steps"]:
            assert _fits(step, trace_json.schema()["$defs"][step["primitive"]])


def _fits(value: Any, schema: dict[str, Any]) -> bool:
    """A validator of the used subset of JSON Schema."""
    if "$ref" in schema:
        return _fits(value, trace_json.schema()["$defs"][schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return any(_fits(value, s) for s in schema["anyOf"])
    if "const" in schema:
        return value == schema["const"]
    if "enum" in schema:
        return value in schema["enum"]
    kinds = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict, "null": type(None)}
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(type(value) is kinds[n] for n in names):
        return False
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return all(_fits(v, schema["items"]) for v in value)
    if isinstance(value, dict) and "properties" in schema:
        properties = schema["properties"]
        return set(schema["required"]) <= set(value) <= set(properties) and all(
            _fits(v, properties[n]) for n, v in value.items()
        )
    return True


def head(steps: str) -> str:
    return f'{{"format": "tilewright-trace", "version": 1, "steps": {steps}}}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "[trace] trace: it is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("[" * 100_000, "[trace] trace: it is not JSON: it is nested too deeply"),
        ("[1, 2]", "[trace] trace: expected an object, got list"),
        ('{"format": "x"}', "[trace] format: expected 'tilewright-trace', got 'x'"),
        ('{"format": "tilewright-trace", "version": 2, "steps": []}',
         "[trace] trace, version: expected 1, got 2; it was written by a newer version"),
        ('{"format": "tilewright-trace", "version": true, "steps": []}', "trace, version: expected 1, got True"),
        ('{"format": "tilewright-trace", "version": 1}', "[trace] trace, steps: expected a list, got None"),
        (head('[], "more": 1'), "[trace] trace, 'more': there is no such field; there are format, version, steps"),
        (head('[], "steps": []'), "[trace] trace: it is not JSON: the field 'steps' appears twice"),
        (head("[NaN]"), "[trace] trace: it is not JSON: NaN is no JSON number"),
        (head("[3]"), "[trace] trace, step 1: expected an object with `primitive` and `args`, got 3"),
        (head('[{"primitive": "split", "args": [3]}]'), "step 1 (split), args: expected an object, got [3]"),
        (head('[{"primitive": 7}]'), "[trace] trace, step 1: there is no primitive 7; there are bind, "),
        (head('[{"primitive": "fues", "args": {}}]'), "did you mean 'fuse'?"),
        (head('[{"primitive": "split", "args": {"loop": "i"}}]'),
         "[trace] trace, step 1 (split), argument 'factor': it is missing; split takes loop, factor, names, tail"),
        (head('[{"primitive": "split", "args": {"loop": "i", "factor": 1.5}}]'),
         "[trace] trace, step 1 (split), argument 'factor': expected an integer, got 1.5"),
        (head('[{"primitive": "split", "args": {"loop": "i", "factor": 1e400}}]'), "expected an integer, got inf"),
        (head('[{"primitive": "split", "args": {"loop": "i", "factor": 123456789012345678}}]'),
         "expected an integer of at most 281474976710656, got 123456789012345678"),
        (head('[{"primitive": "peel", "args": {"loop": "i", "at": "' + "(" * 4000 + '"}}]'),
         "expected an expression (it is nested too deeply), got '((("),
        (head('[{"primitive": "peel", "args": {"loop": "i", "at": "A[0]"}}]'),
         "expected an expression (unknown buffer 'A'), got 'A[0]'"),
    ],
)  # fmt: skip
def test_invalid_texts(text: str, message: str) -> None:
    with pytest.raises(TraceError) as e:
        trace_json.loads(text)
    assert message in str(e.value)


def test_all_problems_are_listed() -> None:
    text = head('[{"primitive": "spilt"}, {"primitive": "split", "args": {"loop": 3, "tail": "gard", "x": 1}}, 5]')
    with pytest.raises(TraceError) as e:
        trace_json.loads(text, "file 'a.json'")
    second = [f"step 2 (split), argument '{name}'" for name in ("x", "loop", "factor", "tail")]
    assert [p.where for p in e.value.problems] == ["step 1", *second, "step 3"]
    assert str(e.value).startswith("[trace] file 'a.json': 6 problems\n  [trace] step 1: there is no primitive 'spilt'")


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"^\[trace\] file '.*none\.json': can't be read: No such file or directory$"):
        trace_json.load(tmp_path / "none.json")
    with pytest.raises(TraceError, match=r"can't be read: Is a directory$"):
        trace_json.load(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00garbage")
    with pytest.raises(TraceError, match="it is not JSON: "):
        trace_json.load(tmp_path / "binary")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def test_all_problems_of_a_trace_are_reported_together() -> None:
    text = '{"format": "x", "version": 2, "more": 1, "steps": [{"primitive": "splt"}, {"primitive": "parallel"}]}'
    with pytest.raises(TraceError) as error:
        trace_json.loads(text)
    for part in ("format: expected", "version: expected 1", "'more': there is no", "step 1: ", "step 2 (parallel)"):
        assert part in str(error.value)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """A step of a known primitive with arbitrary arguments."""
    name = draw(st.sampled_from(sorted(PRIMITIVES)))
    args = {p: draw(JSON) for p in parameters(PRIMITIVES[name]) if draw(st.booleans())}
    return {"primitive": name, "args": args}


@given(st.lists(damaged(), max_size=3) | JSON)
def test_any_values_decode_to_a_trace_or_a_trace_error(steps: Any) -> None:
    data = {"format": "tilewright-trace", "version": 1, "steps": steps}
    try:
        trace = trace_json.decode(data)
    except TraceError:
        return
    assert trace_json.decode(trace_json.encode(trace)) == trace


def test_decoded_trace_replays_on_other_sizes(tmp_path: Path) -> None:
    trace_json.dump(gemm_schedule().trace, tmp_path / "gemm.json")
    larger = gemm(1024, 1024, 1024)
    assert replay(larger, trace_json.load(tmp_path / "gemm.json")) == replay(larger, gemm_schedule().trace)
