"""The examples run at a small size, are right, and show what they say they do."""

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    """An example as a module."""
    spec = spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_overlapped_tiling(capsys: pytest.CaptureFixture[str]) -> None:
    assert example("alt_overlapped_tiling").main(size=8, channels=32, batch=2, threads=2) < 1e-5
    shown = capsys.readouterr().out
    assert "Inp: [N, 32, 10, 10] -> unfold(3, 4, 2) -> unfold(2, 6, 4) -> reorder((0, 2, 4, 1, 3, 5)) -> " in shown
    assert "Inp[v_n, v_h_o, v_w_o, v_i, v_h_i + v_rh, v_rw + v_w_i] * Ker[v_o_o, v_i, v_rh, v_rw, v_o_i]" in shown
    assert "in tiles:   error " in shown


def test_propagation(capsys: pytest.CaptureFixture[str]) -> None:
    assert example("alt_propagation").main(channels=4, size=8, batch=2, threads=2) < 1e-5
    before, _, rest = capsys.readouterr().out.partition("fusing them is refused: ")
    refused, _, after = rest.partition("Fig. 7: ")
    assert "alloc Conv: float32[N, 2, 8, 4, 4]" in before
    assert "index h % 4 is not monotonic in loop 'h'" in refused
    assert "alloc Conv: float32[4] in register" in after
    assert after.count("in parallel(N)") == 1
    assert after.count(" in serial(N)") == 0


@pytest.mark.parametrize(("queries", "keys", "depth"), [(20, 33, 16), (1, 1, 32), (1, 0, 5), (64, 70, 16)])
def test_flash_attention(capsys: pytest.CaptureFixture[str], queries: int, keys: int, depth: int) -> None:
    assert example("flash_attention").main(queries, keys + 1, depth, threads=2) < 1e-5
    shown = capsys.readouterr().out
    assert "s.rolling_update('O', 'c_o')" in shown
    assert "queries  keys  error of ours" in shown


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("flash_attention", ["--keys", "0"], "--queries and --keys must lie in 1..65536, --depth must be at least 1"),
        ("gemm", ["--size", "0"], "--size and --threads must be at least 1, --seconds more than 0"),
        ("alt_propagation", ["--size", "6"], "--size must be a positive multiple of 4, --channels and --batch at"),
        ("alt_overlapped_tiling", ["--size", "4"], "--size must be a multiple of 4 from 8 on, --channels one of 16"),
    ],
)
def test_impossible_sizes_are_one_line(name: str, arguments: list[str], message: str) -> None:
    run = subprocess.run([sys.executable, EXAMPLES / f"{name}.py", *arguments], capture_output=True, text=True)
    assert run.returncode == 2
    assert f"{name}.py: error: {message}" in run.stderr
    assert "Traceback" not in run.stderr


def test_flash_attention_for_other_registers() -> None:
    flash = example("flash_attention")
    for lanes in (4, 8):
        flash.flash_schedule(flash.attention(16), lanes).check({"N": 13, "T": 40}, threads=2)


@pytest.mark.parametrize("step", ["product", "vectors", "registers", "packed", "prefetched", "parallel"])
def test_every_step_of_the_matrix_product_is_right(step: str) -> None:
    s = example("gemm").STEPS[step](61)
    assert s.check(threads=2).error < 1e-5
    assert ("in parallel(" in s.show()) == (step == "parallel")


def test_matrix_product(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    gemm = example("gemm")
    arguments = ["gemm.py", "--size", "150", "--threads", "1", "2", "--seconds", "0.001"]
    monkeypatch.setattr(sys, "argv", arguments)
    gemm.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["step", *gemm.STEPS, "parallel"]
    assert all(len(line.split()) == 8 and float(line.split()[6]) > 0 for line in lines[1:])


def test_the_tile_alone_adds_up_the_same_product_again_and_again() -> None:
    checked = example("gemm").resident_tile(steps=5, times=3).check()
    assert checked.error < 1e-5
