"""Reports of construction: as text, as data, and as a picture of states."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.driver import models

from tilewright.driver.build import Build
from tilewright.driver.compilation import Compilation
from tilewright.driver.compile import make_compilation
from tilewright.driver.options import CompileOptions
from tilewright.errors import OptionError, ScheduleError
from tilewright.machine.choice import choose_machine
from tilewright.optimize.construct import lower_programs
from tilewright.optimize.construct.gensor import Annealing
from tilewright.optimize.construct.optimizer import Gensor
from tilewright.optimize.construct.program_tree import KernelProgram
from tilewright.report.construction import constructions, data, node_names, picture, text
from tilewright.report.state_graph import StateGraph, graph_of_growth, graph_of_trajectory
from tilewright.schedule.schedule import Schedule
from tilewright.tile.program import TileProgram

SVG = "{http://www.w3.org/2000/svg}"


def gemm(m: int, k: int, n: int) -> onnx.ModelProto:
    """A matrix product with a constant factor."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")
    weight = {"w": np.ones((k, n), np.float32)}
    return models.model([node], [models.value("x", [m, k])], [models.value("y", [m, n])], weight)


def compiled(model: onnx.ModelProto, optimizer: str) -> Compilation:
    """Compiled for a machine that is the same everywhere."""
    return make_compilation(model, CompileOptions(target="x86-64-v3", optimizer=optimizer, machine="zen3"))


@pytest.fixture(scope="module")
def walked() -> Compilation:
    return compiled(gemm(16, 16, 16), "gensor")


def tiles(program: KernelProgram) -> TileProgram:
    """A program that is none of a chain."""
    assert isinstance(program, TileProgram)
    return program


def short(compilation: Compilation) -> Compilation:
    """The same with few and short walks."""
    chosen = choose_machine("zen3", compilation.target)
    optimizer = Gensor(chosen.for_target(compilation.target), Annealing(walks=2, start=4, end=-4))
    return replace(compilation, build=Build(optimizer, chosen))


def test_text_of_a_small_gemm(walked: Compilation, golden: Callable[[str], None]) -> None:
    golden(text(constructions(short(walked))))


def test_text_of_greedy_growth(golden: Callable[[str], None]) -> None:
    golden(text(constructions(compiled(gemm(16, 16, 16), "roller"))))


def test_what_is_shown_is_what_was_compiled(walked: Compilation) -> None:
    (construction,) = constructions(walked)
    (kernel,) = walked.kernels
    assert sum(p.is_lowered for p in construction.programs) == 1
    assert construction.programs[0].total == pytest.approx(
        construction.constructed.nanoseconds[0] if construction.constructed else 0.0
    )
    assert [p.total for p in construction.programs] == sorted(p.total for p in construction.programs)
    chosen = tiles(next(p.program for p in construction.programs if p.is_lowered))
    from tilewright.tile.lower import lower_program

    assert lower_program(chosen, kernel.origin, False).trace == kernel.programs[0].trace, (
        "threads never pay for 16 x 16 x 16"
    )


def test_data_is_json(walked: Compilation) -> None:
    (construction,) = constructions(walked)
    shown = json.loads(json.dumps(data(construction)))
    assert shown["nodes"] == ["mm (MatMul)"]
    assert [a["reduced"] for a in shown["axes"]] == [False, False, True]
    moves = shown["walk"]["moves"]
    assert len(moves) == 100
    assert all(sum(m["probabilities"].values()) == pytest.approx(1.0) for m in moves)
    assert all(m["action"] in m["probabilities"] for m in moves)
    best = shown["programs"][0]
    assert best["total_ns"] > 0
    assert set(best["memory_ns"]) == {"L2", "L3", "memory"}
    assert best["sizes"] in [shown["walk"]["final"], *(m["sizes"] for m in moves)]


def consistent(graph: StateGraph) -> None:
    """The chosen edges are one way from the first state to the best one."""
    (best,) = [k for k, s in enumerate(graph.states) if s.best]
    step = {e.source: e.target for e in graph.edges if e.chosen}
    here, way = 0, [0]
    while here != best:
        here = step[here]
        way.append(here)
    assert len(way) == len(set(way))
    assert {e.source for e in graph.edges if e.chosen} == set(way[:-1])
    assert graph.states[best].recorded


def test_states_of_a_walk(walked: Compilation) -> None:
    (construction,) = constructions(walked)
    walk = construction.trajectory
    assert walk is not None
    graph = graph_of_trajectory(walk, tiles(construction.programs[0].program))
    assert len({(s.level, s.sizes) for s in graph.states}) == len(graph.states)
    assert {(m.level, m.sizes) for m in walk.steps} <= {(s.level, s.sizes) for s in graph.states}
    # a move that stays is no edge
    changes = sum(a.sizes != b.sizes or a.level != b.level for a, b in zip(walk.steps, walk.steps[1:], strict=False))
    assert changes <= sum(e.count for e in graph.edges) <= changes + 1
    consistent(graph)


def test_states_of_greedy_growth() -> None:
    (construction,) = constructions(compiled(gemm(48, 16, 40), "roller"))
    assert construction.growth_path is not None
    assert construction.trajectory is None
    graph = graph_of_growth(construction.growth_path, tiles(construction.programs[0].program))
    consistent(graph)
    assert len(graph.edges) == len(construction.growth_path.steps) == len(graph.states) - 1


@pytest.mark.parametrize("optimizer", ["gensor", "roller"])
def test_the_picture_has_every_state_and_edge(optimizer: str) -> None:
    kernels = constructions(compiled(gemm(16, 16, 16), optimizer))
    best = tiles(kernels[0].programs[0].program)
    walk, path = kernels[0].trajectory, kernels[0].growth_path
    assert path is not None
    graph = graph_of_growth(path, best) if walk is None else graph_of_trajectory(walk, best)
    root = ElementTree.fromstring(picture(kernels))
    states = [g for g in root.iter(f"{SVG}g") if "state" in g.attrib["class"].split()]
    edges = [p for p in root.iter(f"{SVG}path") if "edge" in p.attrib.get("class", "").split()]
    assert len(states) == len(graph.states)
    assert len(edges) == len(graph.edges)
    assert sum("best" in g.attrib["class"] for g in states) == 1
    assert sum("recorded" in g.attrib["class"] for g in states) == sum(s.recorded for s in graph.states)
    assert sum("chosen" in p.attrib["class"] for p in edges) == sum(e.chosen for e in graph.edges)
    labels = ["".join(t.itertext()) for t in root.iter(f"{SVG}text") if t.attrib.get("class") == "label"]
    assert all(e.action in "".join(labels) for e in graph.edges)
    boxes = {(g[1].attrib["x"], g[1].attrib["y"]) for g in states}
    assert len(boxes) == len(states)


def test_names_in_pictures_are_escaped() -> None:
    model = gemm(16, 16, 16)
    model.graph.node[0].name = 'a<b & "c"'
    svg = ElementTree.fromstring(picture(constructions(compiled(model, "roller"))))
    assert 'a<b & "c"' in "".join(svg.itertext())


def test_kernels_by_node() -> None:
    compilation = compiled(models.convnet(), "roller")
    every = constructions(compilation)
    assert [c.kernel for c in every] == [k.name for k in compilation.kernels]
    assert all(c.problem is not None for c in every)
    left = replace(every[0], constructed=None, programs=())
    assert left.problem is None
    assert "scheduled by rule" in text([left])
    one = next(c for c in every if c.programs)
    node = node_names(one.nodes[0])[0]
    # the padding of a convolution is a kernel of its own
    expected = [c.kernel for c in every if any(node in node_names(label) for label in c.nodes)]
    assert one.kernel in expected
    assert [c.kernel for c in constructions(compilation, node=node)] == expected != [c.kernel for c in every]
    with pytest.raises(OptionError, match=r"--node: no kernel computes a node 'nothing'; there are "):
        constructions(compilation, node="nothing")
    with pytest.raises(OptionError, match=r"--svg: a picture shows one kernel, \d were constructed \(k\d_"):
        picture(every)


@pytest.mark.parametrize("legal", [0, 1])
def test_rejections_of_programs_are_reported(
    legal: int, walked: Compilation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lower, asked = lower_programs.lower_kernel_program, list[TileProgram]()

    def refuse(program: TileProgram, *rest: Any) -> Schedule:
        asked.append(program)
        if legal and len(asked) > 1:
            return lower(program, *rest)
        raise ScheduleError("it is not legal", where="split")

    monkeypatch.setattr(lower_programs, "lower_kernel_program", refuse)
    with caplog.at_level("DEBUG", "tilewright.construct"):
        (construction,) = constructions(walked)
    assert [p.is_lowered for p in construction.programs] == [False, bool(legal), False]
    shown = text([construction])
    assert shown.count("can't be lowered: [schedule] split: it is not legal") == (1 if legal else 3)
    assert ("not lowered: scheduled by rule" in shown) == (not legal)
    assert data(construction)["programs"][0]["refused"] == "[schedule] split: it is not legal"
    assert [r.levelname for r in caplog.records] == (["DEBUG"] if legal else ["DEBUG"] * 3 + ["INFO"])
    assert "the rule takes the kernel" in caplog.text or legal


def test_the_rule_constructs_nothing() -> None:
    with pytest.raises(OptionError, match="the optimizer 'rule' chooses by rule"):
        constructions(make_compilation(gemm(4, 4, 4), CompileOptions(optimizer="rule")))


def test_names_of_nodes() -> None:
    assert node_names("conv (1) (Conv) + relu1 (Relu)") == ("conv (1)", "relu1")
    assert node_names("") == ()
