"""Sources of the compiler that change while processes run it: none takes what another version has made."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
from onnx import helper
from tests.driver import models

import tilewright

COMPILE = """
import hashlib
import tilewright

def code(**options):
    artifact = tilewright.compile("m.onnx", optimizer="rule", target="x86-64-v3", **options)
    artifact.save("saved.tw")
    return hashlib.sha256(tilewright.load("saved.tw").artifact.code).hexdigest()[:12]
"""

EDITED = """
print(code(jobs=1), code(jobs=1, cache=False, records=False), code(jobs=1))
"""

EDITS = """
import subprocess, sys
from pathlib import Path
import tilewright.driver.compile
from tilewright.driver.kernel_build import kernel_builds
from tilewright.errors import SourcesChangedError
from tilewright.measure.worker_process import WorkerProcess
from tilewright.optimize import contraction

kernel_builds.MIN_TASKS = 1
file = Path(contraction.__file__)
file.write_text(file.read_text().replace("max_unblocked=31", "max_unblocked=4000"))
own = code(jobs=2)
kept = [p for p in Path("cache").rglob("*") if p.is_file()]
edited = subprocess.run([sys.executable, "edited.py"], capture_output=True, text=True, check=True).stdout.split()
again = code(jobs=2)
try:
    WorkerProcess()
except SourcesChangedError:
    print(*edited, own, again, len(kept))
"""


def test_two_versions_share_no_code(tmp_path):
    """One process has imported the compiler before an edit, another one after it; both have the same caches."""
    shutil.copytree(Path(tilewright.__file__).parent, tmp_path / "tilewright", ignore=lambda *_: ["__pycache__"])
    weight = {"w": models.array(1, 512, 48)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = models.model(nodes, [models.value("x", [64, 512])], [models.value("y", [64, 48])], weight)
    onnx.save(model, tmp_path / "m.onnx")
    (tmp_path / "edited.py").write_text(COMPILE + EDITED)
    (tmp_path / "edits.py").write_text(COMPILE + EDITS)
    environ = {
        **os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1", "TILEWRIGHT_CACHE": "on",
        "TILEWRIGHT_CACHE_DIR": str(tmp_path / "cache"), "TILEWRIGHT_RECORDS": str(tmp_path / "records.db"),
    }  # fmt: skip
    command = [sys.executable, "edits.py"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environ)
    assert result.returncode == 0, result.stderr
    *edited, own, again, kept = result.stdout.split()
    assert len(set(edited)) == 1
    assert own == again != edited[0]
    assert kept == "0"
