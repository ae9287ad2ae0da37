"""Shared by all tests: Hypothesis profiles, golden files, and code that is compiled once."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# tests that are not about them compile in one process, and never read what another revision has left
os.environ |= {"TILEWRIGHT_JOBS": "1", "TILEWRIGHT_CACHE": "off", "TILEWRIGHT_RECORDS": "off"}

TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden"

# `ci` draws the same examples in every run; `explore` (--hypothesis-profile=explore) looks further, with fresh seeds
settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files instead of comparing them")


def pytest_collection_finish() -> None:
    """The collected tests live to the end: without them, a full collection of garbage takes a tenth of its time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Compare a text with tests/golden/<path of the test file>/<test>.txt; call it once per test."""
    file = Path(str(request.path)).relative_to(TESTS).with_suffix("")
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in request.node.name).strip("_")
    path = GOLDEN / file / f"{name}.txt"
    command = f"python -m pytest 'tests/{file}.py::{request.node.name}' --update-golden"

    def compare(text: str) -> None:
        text = text.rstrip("\n") + "\n"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif not path.exists():
            pytest.fail(f"no golden file {path.relative_to(TESTS.parent)}; create it with: {command}")
        elif path.read_text() != text:
            assert text == path.read_text(), f"differs from the golden file; if that is meant: {command}"

    return compare


@pytest.fixture(scope="session", autouse=True)
def equal_texts_are_compiled_once() -> Iterator[None]:
    """LLVM compiles a text for a target once per process: many tests come to the same kernels.

    The texts are those of this run, so that what a change of the compiler does to one is seen. That LLVM gives the same
    code for one again is for tests that compare processes. `tests/codegen` compiles on its own.
    """
    objects: dict[tuple[bytes, Any], bytes] = {}

    def once(compile_object: Callable[[str, Any], bytes]) -> Callable[[str, Any], bytes]:
        def look_up(text: str, target: Any) -> bytes:
            key = sha256(text.encode()).digest(), target
            if key not in objects:
                objects[key] = compile_object(text, target)
            return objects[key]

        return look_up

    # where the collected tests import them
    names = ("compilation", "kernel_build.build_kernel", "kernel_build.native_kernel")
    users = [sys.modules.get(f"tilewright.driver.{name}") for name in names]
    with pytest.MonkeyPatch.context() as patch:
        for user in filter(None, users):
            patch.setattr(user, "compile_object", once(user.compile_object))
        yield


@pytest.fixture
def registries() -> Iterator[None]:
    """Operators that a test registers are gone after it: while there are any, no model is kept in the cache."""
    from tilewright.custom_operators import PYTHON_OPERATORS, REGISTERED_DEFINITIONS
    from tilewright.ops.library import OPERATORS

    before = dict(OPERATORS), dict(PYTHON_OPERATORS), set(REGISTERED_DEFINITIONS)
    yield
    for registry, content in zip((OPERATORS, PYTHON_OPERATORS), before[:2], strict=True):
        registry.clear()
        registry.update(content)
    REGISTERED_DEFINITIONS.clear()
    REGISTERED_DEFINITIONS.update(before[2])


@pytest.fixture(scope="session")
def code_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of machine code of this run, empty at its begin; the processes of the run share it."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "machine_code"


@pytest.fixture(scope="module")
def reuse_code(code_folder: Path) -> Iterator[None]:
    """Lets `tilewright.compile` of a module's tests take kernels from what earlier tests have compiled.

    For tests of what is around kernels: commands, sessions, graphs that come to the same kernels. A test that replaces
    a part of the compiler must not store what comes of it, so it turns the cache off.
    """
    from tilewright.driver import compile_model  # here because the environment is set first

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE", "on")
        patch.setenv("TILEWRIGHT_CACHE_DIR", str(code_folder))
        look_up = compile_model.look_up

        def look_up_elsewhere(model: Any, options: Any, resources: Any) -> Any:
            """Not in the shared folder: whole compilations of another test would hide what a test replaces."""
            is_shared = resources.cache is not None and resources.cache.folder.parent == code_folder
            return (None, None) if is_shared else look_up(model, options, resources)

        patch.setattr(compile_model, "look_up", look_up_elsewhere)
        yield
