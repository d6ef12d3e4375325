"""Generated code follows the protos, through the real compiler."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "gen_protos.py"
PROTO = """\
syntax = "proto3";
package farm.v1;
service Barn { rpc Open(Door) returns (Door); }
message Door { string name = 1; }
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one proto and its own copy of the script."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    write_proto(tmp_path, "farm", PROTO)
    return tmp_path


def write_proto(project: Path, name: str, text: str) -> None:
    folder = project / "protos" / name / "v1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.proto").write_text(text)


def generate(project: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(project / "scripts" / "gen_protos.py")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def use(project: Path, code: str) -> str:
    """Runs code with the generated packages importable."""
    run = f"import sys; sys.path.insert(0, {str(project / 'gen')!r}); {code}"
    return subprocess.check_output([sys.executable, "-c", run], text=True).strip()


def test_messages_and_stubs_can_be_imported_and_are_typed(project: Path) -> None:
    assert generate(project).returncode == 0
    code = "from farm.v1 import farm_pb2, farm_pb2_grpc as g; print(farm_pb2.Door(name='x').name, "
    assert use(project, code + "g.BarnStub.__name__)") == "x BarnStub"
    assert (project / "gen/farm/v1/farm_pb2.pyi").is_file()
    assert (project / "gen/farm/v1/farm_pb2_grpc.pyi").is_file()


def test_nothing_is_written_while_nothing_has_changed(project: Path) -> None:
    generate(project)
    before = {path: path.stat().st_mtime_ns for path in (project / "gen").rglob("*.py*")}
    again = generate(project)
    assert (again.returncode, again.stdout) == (0, "")
    assert {path: path.stat().st_mtime_ns for path in (project / "gen").rglob("*.py*")} == before


def test_a_changed_proto_is_generated_anew(project: Path) -> None:
    generate(project)
    write_proto(project, "farm", PROTO.replace("string name = 1;", "string colour = 2;"))
    generate(project)
    code = "from farm.v1 import farm_pb2; print(*farm_pb2.Door.DESCRIPTOR.fields_by_name)"
    assert use(project, code) == "colour"


def test_the_code_of_a_removed_proto_goes(project: Path) -> None:
    write_proto(project, "mill", PROTO.replace("farm", "mill"))
    generate(project)
    shutil.rmtree(project / "protos" / "mill")
    generate(project)
    assert sorted(path.name for path in (project / "gen").iterdir()) == [".lock", ".stamp", "farm"]


def test_a_deleted_output_comes_back(project: Path) -> None:
    generate(project)
    (project / "gen/farm/v1/farm_pb2.py").unlink()
    generate(project)
    assert (project / "gen/farm/v1/farm_pb2.py").is_file()


def test_a_proto_that_does_not_compile_fails_and_keeps_the_old_code(project: Path) -> None:
    generate(project)
    write_proto(project, "farm", PROTO.replace("string", "strung"))
    failed = generate(project)
    assert failed.returncode == 1
    assert "strung" in failed.stderr
    assert use(project, "from farm.v1 import farm_pb2; print(farm_pb2.Door.__name__)") == "Door"
