"""The experiments of MCFuser's paper: every workload has a legal program, and the tables say what was measured."""

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.common.result_store import ResultStore
from benchmarks.paper_mcfuser import __main__ as command
from benchmarks.paper_mcfuser import experiments, tables
from benchmarks.paper_mcfuser.candidates import Candidates
from benchmarks.paper_mcfuser.workloads import PRUNED, WORKLOADS, Workload, func_of, task_of, unfused_models

from tilewright.machine.shipped import machine_named
from tilewright.optimize.chains.block_expression import grid_of
from tilewright.optimize.chains.chain_tree import chain_tree
from tilewright.optimize.chains.extract_chain import extract_chain
from tilewright.optimize.chains.place_statements import order_problem
from tilewright.optimize.chains.pruning import ChainSpace, Variant
from tilewright.optimize.chains.search import MODEL_ALONE, search
from tilewright.tile.lower_tree import lower_tree
from tilewright.verify.verifier import verify

SMALL = Workload("small", 2, 64, 48, 32, 16, is_attention=True)


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_has_a_legal_tiling_on_processors_and_gpus(name: str) -> None:
    chain = extract_chain(func_of(WORKLOADS[name]))
    for machine in ("sapphire-rapids", "zen5", "x86-64-v3", "h200"):
        for variant in Variant:
            best = search(ChainSpace.of(chain, machine_named(machine), variant), MODEL_ALONE).best
            assert best is not None
            assert order_problem(chain, best.model.block.body) is None
            assert grid_of(chain, best.tiling.expression)
            assert all(0 < t <= chain.axis(a).extent for a, t in best.tiling.tiles)


@pytest.mark.parametrize("name", ["G1", "G6", "G12", "S1", "S6", "S8"])
def test_the_first_tiling_with_a_tree_verifies(name: str) -> None:
    task, machine = task_of(WORKLOADS[name]), machine_named("sapphire-rapids").with_cores(2)
    best = search(ChainSpace.of(extract_chain(task.func), machine), MODEL_ALONE).best
    assert best is not None
    verify(lower_tree(chain_tree(task, best.tiling, machine), task.func).func)


def test_pruning_starts_with_the_numbers_of_the_paper() -> None:
    result = experiments.prune("h200", Variant.MCFUSER)
    assert result["waterfall"][0] == ["all", 109051904]
    assert result["expressions"] == [26, 3, 2]
    assert (PRUNED.m, PRUNED.n, PRUNED.k, PRUNED.h) == (1024, 1024, 512, 512)


def test_tilings_are_named_as_in_the_paper() -> None:
    candidates = Candidates(replace(SMALL, h=32))
    texts = [candidates.text(tiling) for tiling, _, _ in candidates.sample(100)]
    assert any(text.startswith("bmn(k,h), m ") for text in texts)


@pytest.mark.parametrize("is_attention", [True, False])
def test_unfused_parts_have_the_shapes_of_the_chain(is_attention: bool) -> None:
    w = replace(SMALL, is_attention=is_attention)
    shapes = {
        name: [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
        for name, model in unfused_models(w).items()
    }
    assert next(iter(shapes.values())) == [2, 64, 48]
    assert list(shapes.values())[-1] == [2, 64, 16]
    assert len(shapes) == (3 if is_attention else 2)


def test_candidates_are_measured_beside_their_estimates() -> None:
    result = experiments.compare_model(replace(SMALL, is_attention=False), 6)
    assert result["drawn"] == 6
    assert len(result["candidates"]) + result["refused"] == 6
    for row in result["candidates"]:
        assert row["ns"] > 0
        assert row["model"] > 0
        assert row["trees"] > 0
        assert row["again"] > 0


def test_kernels_run_beside_each_other() -> None:
    result = experiments.compare_kernels(SMALL)
    assert result["unfused"] == sum(result["parts"].values())
    assert {"scores0", "softmax0", "sums0"} <= result["parts"].keys()
    assert result["mcfuser"] > 0


def _candidate(ns: float, model: float) -> dict[str, object]:
    return {"tiling": "mn(k,h)", "ns": ns, "model": model, "trees": 1 / model, "estimated bytes": 100.0,
            "stack bytes": 110, "again": ns * 1.1}  # fmt: skip


def test_tables_of_results(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results.json")
    rows = [_candidate(100 + 10 * k, 1 + k) for k in range(10)]
    store.put("model", "G1", {"drawn": 12, "refused": 2, "candidates": rows, "source": "x"})
    kernels = {"mcfuser": 100.0, "chimera": None, "unfused": 150.0, "flops": 1000.0, "source": "x"}
    store.put("kernels", "G1", kernels)
    text = tables.markdown(store)
    assert "| G1 | 12 | 2 | 1.00 | 1.00 | -1.00 | 1.00 | 1.90 | 1.00 | 1.10 | 100% |" in text
    assert "| G1 | 0 | none | 0 | 1.50 |  | 10 |" in text
    assert "**1 of 1 results are of older sources**" in text


def test_unknown_parts_and_workloads_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["paper_mcfuser", "--parts", "pruning,speed", "--workloads", "G1,G13"])
    assert command.main() == 2
    assert capsys.readouterr().err == "unknown parts or workloads: speed, G13\n"
