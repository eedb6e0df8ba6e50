"""The client is standalone: importing and using it needs httpx, but nothing of the service."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import bco_client

ROOT = Path(bco_client.__file__).parent

PROGRAM = """
import json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError("No module named " + name, name=name)

sys.meta_path.insert(0, Blocked())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.partition(".")[0] in {blocked!r} else found(name, *rest)

import bco_client, httpx

job = {{"id": "j", "name": "n", "created_at": "2026-01-01T00:00:00Z", "kind": "learn", "state": "succeeded",
        "progress": 1.0, "message": "done"}}
seen = []

def answer(request):
    request.read()
    seen.append(request)
    if request.url.path.endswith("/result"):
        assert request.url.params["format"] == "csv"
        return httpx.Response(200, content=b"status,gap,reason\\noptimal,0.5,\\nrefused,,no such day\\n")
    if request.url.path.endswith("/upload"):
        made = {{"id": "d", "name": "n", "created_at": "2026-01-01T00:00:00Z", "rows": 1}}
        return httpx.Response(201, json=made)
    return httpx.Response(200, json=job)

with bco_client.Client("http://service", transport=httpx.MockTransport(answer)) as client:
    assert client.jobs.wait("j").state == "succeeded"
    assert client.jobs.result("j") == [{{"status": "optimal", "gap": 0.5, "reason": None}},
                                       {{"status": "refused", "gap": None, "reason": "no such day"}}]
    client.datasets.create([{{"x": 1, "y": True}}] * 30_000, "n", outcomes="y")
assert b"x,y\\n1,1\\n" in seen[-1].content
loaded = {{name.partition(".")[0] for name in sys.modules}}
assert not loaded & {blocked!r}, loaded & {blocked!r}
print("fine")
"""


def test_the_client_imports_nothing_of_the_service() -> None:
    for path in ROOT.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            packages = {name.partition(".")[0] for name in names}
            assert not packages & {"app", "bco_core", "benchmarks", "docs", "migrations"}, path
            # At module level, only httpx and its own dependency may be imported; table packages are imported when used.
            if node in tree.body:
                assert packages <= sys.stdlib_module_names | {"anyio", "bco_client", "httpx"}, path


def test_the_client_works_with_httpx_alone() -> None:
    blocked = {"app", "bco_core", "numpy", "pandas", "polars", "pyarrow", "rich", "pydantic", "torch"}
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM.format(blocked=blocked)],
        cwd=ROOT.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout == "fine\n", ended.stderr
    # Without rich, progress is printed as plain lines.
    assert ended.stderr == "learn succeeded 100% done\n"


def test_the_package_is_marked_as_typed() -> None:
    assert (ROOT / "py.typed").exists()


def test_the_wheel_holds_only_the_client_and_requires_only_httpx(tmp_path: Path) -> None:
    copy = shutil.copytree(ROOT, tmp_path / "bco_client", ignore=shutil.ignore_patterns("__pycache__"))
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path))
    pip = [sys.executable, "-m", "pip", "wheel", *options, str(copy)]
    ended = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        packaged = {name for name in content.namelist() if not name.startswith("bco_client-")}
        (metadata_path,) = (name for name in content.namelist() if name.endswith("/METADATA"))
        metadata = content.read(metadata_path).decode()
    here = {path.relative_to(ROOT.parent).as_posix() for path in ROOT.rglob("*.py")}
    assert packaged == here | {"bco_client/py.typed"}
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert required == ["Requires-Dist: anyio", "Requires-Dist: httpx"]
    with (ROOT.parent / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    assert f"\nVersion: {version}\n" in metadata
