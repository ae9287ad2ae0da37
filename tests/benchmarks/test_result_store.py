"""Results of benchmarks: processes that add to one file at the same time, and locks that end with their process."""

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common.result_store import ResultStore, file_lock

ROOT = Path(__file__).parents[2]


def test_what_another_process_has_added_is_kept(tmp_path: Path) -> None:
    first, second = (ResultStore(tmp_path / "r.json") for _ in range(2))
    first.put("part", "a", {"source": "x", "value": 1})
    second.put("part", "b", {"source": "x", "value": 2})
    first.put("other", "c", {"source": "x", "value": 3})
    assert first.data == ResultStore(tmp_path / "r.json").data
    assert {name: r["value"] for name, r in first.all("part").items()} == {"a": 1, "b": 2}
    assert second.get("part", "a") == {"source": "x", "value": 1}


def test_a_lock_keeps_others_away_until_its_process_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    holds = "import sys, time; from pathlib import Path; from benchmarks.common.result_store import file_lock\n"
    holds += "with file_lock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    takes = "import sys; from pathlib import Path; from benchmarks.common.result_store import file_lock\n"
    takes += "with file_lock(Path(sys.argv[1])): pass"
    command = [sys.executable, "-c"]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    with subprocess.Popen([*command, holds, str(path)], stdout=subprocess.PIPE, env=environment) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with subprocess.Popen([*command, takes, str(path)], env=environment) as taker:
            time.sleep(1.0)
            assert taker.poll() is None
            holder.kill()
            assert taker.wait(60) == 0
    with file_lock(path):
        assert not path.exists()
