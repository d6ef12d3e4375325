import json
from pathlib import Path

import pytest

from bench.lib.machine import cpu_facts
from bench.lib.report import Bench, Target, arguments


def test_a_goal_is_a_bound():
    assert Target("share", 0.5, ">= 0.5").ok
    assert not Target("share", 0.49, ">= 0.5").ok
    assert Target("lag", 1.0, "<= 2").ok
    with pytest.raises(ValueError, match="a goal is"):
        _ = Target("share", 0.5, "0.5").ok


def test_the_last_line_of_stdout_is_the_object(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "new" / "run.json"
    bench = Bench("demo", arguments("demo", "x").parse_args(["--quick", "--json", str(kept)]))
    bench.say("working")
    bench.table("figures", ("name", "value"), [["speed", "1"]])
    bench.finish({"speed": 1.0}, [Target("speed", 1.0, ">= 2")])
    out, err = capfd.readouterr()
    last = json.loads(out.splitlines()[-1])
    assert last == json.loads(kept.read_text())
    assert set(last) == {"name", "machine", "figures", "targets"}
    assert last["targets"] == [{"name": "speed", "value": 1.0, "goal": ">= 2", "ok": False}]
    assert 0.0 <= last["machine"]["others_cpu"] <= 1.0
    assert "working" in err and "working" not in out


def test_the_cpu_is_named_with_the_vector_units_that_matter():
    text = (
        "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu sse2 avx2 fma\n\nprocessor\t: 1\n"
    )
    assert cpu_facts(text) == {"cpu": "Some CPU", "vector": ["avx2", "fma"]}
