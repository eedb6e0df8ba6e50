"""Broken, huge or malicious model files are refused with a message and leave no files."""

from __future__ import annotations

import gzip
import os
import signal
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from app.model_files import service
from tests.support.journey import check_json
from tests.support.model_files import DESCRIPTION, LP, MPS, STO, TIM, send


@pytest.fixture(autouse=True)
def _imports_still_work(client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After each test, the next import works and no file is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    check_json(send(client, MPS), 201)
    assert list(tmp_path.iterdir()) == []


def assert_refused(client: TestClient, file: str | bytes, says: str, status: int = 422) -> None:
    answer = send(client, file)
    assert answer.status_code == status, answer.text
    assert says in answer.json()["detail"], answer.text
    assert answer.json()["errors"][0]["pointer"] == "#/file"


MANY_ROWS = "NAME\nROWS\n N cost\n" + "".join(f" L r{i}\n" for i in range(1_000_000)) + "COLUMNS\n x cost 1\nENDATA\n"

BROKEN: dict[str, tuple[str | bytes, str]] = {
    "nothing": (b"", "neither MPS"),
    "binary": (bytes(range(256)) * 100, "not text"),
    "zeros": (b"\x00" * 1000, "control character"),
    "gzip": (gzip.compress(MPS.encode()), "compressed"),
    "a bomb": (gzip.compress(b"0" * 100_000_000), "compressed"),
    "zlib": (zlib.compress(MPS.encode()), "compressed"),
    "zlib in text": (b"x\x01" + MPS.encode(), "compressed"),
    "another text": ("name,cost\nx,1\n", "neither MPS"),
    "truncated": (MPS[: len(MPS) // 2], "cut off"),
    "truncated LP": (LP.replace("End\n", ""), "cut off"),
    "a million empty rows": (MANY_ROWS, "1000000 rows; at most 20000"),
    "two rows of one name": (MPS.replace(" L room", " L room\n L room"), "HiGHS cannot"),
    "two LP rows of one name": (LP.replace("room:", "meet:"), "two rows are called 'meet'"),
    "two columns of one name": (MPS.replace("RHS\n RHS", " order room 3\nRHS\n RHS", 1), "same name"),
    "an entry twice": (MPS.replace(" order room 1", " order room 1 meet 4"), "duplicate"),
    "an unknown row": (MPS.replace("meet 10", "met 10"), "not defined"),
    "NaN": (MPS.replace("meet 10", "meet nan"), "line 11: a value"),
    "NaN in a row": (MPS.replace("order cost 5 meet 1", "order cost 5 meet nan"), "line 7: a value"),
    "an infinite cost": (MPS.replace("cost 5", "cost inf"), "the cost of 'order'"),
    "a huge number": (MPS.replace("meet 10", "meet 1e15"), "row 'meet'"),
    "no number": (MPS.replace("cost 5", "cost five"), "line 7: a value"),
    "special ordered sets": (MPS.replace("ENDATA", "SOS\n S1 SOS s 1\nENDATA"), "line 12: the model has special"),
    "LP sets": (LP.replace("End", "SOS\n s: S1:: order:1 express:2\nEnd"), "special ordered sets"),
    "a quadratic objective": (MPS.replace("ENDATA", "QUADOBJ\n order order 1\nENDATA"), "quadratic parts"),
    "a quadratic LP": (LP.replace("8 express", "8 express + [ order^2 ] / 2"), "quadratic parts"),
    "semicontinuous": (MPS.replace("ENDATA", "BOUNDS\n SC BND order 4\nENDATA"), "semicontinuous"),
    "semicontinuous LP": (LP.replace("End", "Semi-continuous\n order\nEnd"), "semicontinuous"),
    "a very long line": (MPS.replace("ENDATA", "* " + "x" * 200_000 + "\nENDATA"), "more than 100000 characters"),
    "a very long name": (MPS.replace("order", "o" * 300), "more than 200 characters"),
    "an infinite bound of the wrong sign": (MPS.replace("ENDATA", "BOUNDS\n LO BND order inf\nENDATA"), "HiGHS cannot"),
    "a fraction for a whole number": (MPS.replace("ENDATA", "BOUNDS\n UI BND order 4.5\nENDATA"), "not integer"),
    "a bound that is no number": (MPS.replace("ENDATA", "BOUNDS\n UP BND order x\nENDATA"), "line 13: a value"),
    "no columns": ("NAME\nROWS\n N cost\n L r\nCOLUMNS\nRHS\nENDATA\n", "no column"),
    "infeasible": (MPS.replace("room 40", "room -1"), "row"),
}


@pytest.mark.parametrize(("file", "says"), BROKEN.values(), ids=BROKEN.keys())
def test_an_unusable_model_file_is_refused_with_a_message(client: TestClient, file: str | bytes, says: str) -> None:
    if says == "no column":
        answer = send(client, file)
        assert answer.status_code == 422
        assert says in answer.json()["detail"]
        return
    assert_refused(client, file, says)


@pytest.mark.parametrize("name", ["../../../tmp/x", "/etc/passwd", "a`id`", "$(id)", "file:///etc/passwd", "%s%n"])
def test_names_that_look_like_paths_are_kept_as_names(client: TestClient, name: str) -> None:
    text = MPS.replace("NAME bakery", f"NAME {name}").replace("order", name)
    made = check_json(send(client, text, DESCRIPTION | {"decisions": [name]}), 201)
    assert made["decisions"] == [name]
    text = client.get(f"/v1/problems/{made['id']}/mps").text
    description = check_json(client.get(f"/v1/problems/{made['id']}/mps", params={"part": "description"}))
    assert check_json(send(client, text, description), 201)["spec"] == made["spec"]


def test_a_file_over_the_size_limit_is_refused_before_it_is_read(client: TestClient) -> None:
    answer = send(client, b"\xfe" * 40_000_000)
    assert answer.status_code == 413
    assert "32 MB" in answer.json()["detail"]


def test_millions_of_lines_of_garbage_are_refused(client: TestClient) -> None:
    assert_refused(client, b"x y z 1 2 3\n" * 2_000_000, "neither MPS")


def test_a_file_that_takes_too_much_memory_is_refused(client: TestClient, settings: Callable[..., None]) -> None:
    settings(upload_mb=20)
    assert_refused(client, MANY_ROWS, "BCO_UPLOAD_MB", 413)


def test_a_file_that_takes_too_long_is_refused(client: TestClient, settings: Callable[..., None]) -> None:
    settings(upload_seconds=0.05)
    assert_refused(client, MANY_ROWS, "BCO_UPLOAD_SECONDS", 413)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_reader_process_that_dies_fails_only_its_own_request(
    client: TestClient, settings: Callable[..., None], number: int
) -> None:
    check_json(send(client, MPS), 201)
    (process,) = service.readers.idle
    # A stopped process hangs like one stuck on a file.
    os.kill(process.pid, signal.SIGSTOP)

    def kill_reader() -> None:
        time.sleep(0.3)
        os.kill(process.pid, number)
        os.kill(process.pid, signal.SIGCONT)

    ending = threading.Thread(target=kill_reader)
    ending.start()
    answer = send(client, MPS)
    ending.join()
    assert answer.status_code == (413 if number == signal.SIGKILL else 422), answer.text


@pytest.mark.slow
def test_scenario_files_are_limited_too(client: TestClient) -> None:
    many = "".join(f" RHS meet {i} LATER 0.000001\n" for i in range(1_000_000))
    parts = {"time": TIM, "scenarios": f"STOCH\nINDEP DISCRETE\n{many}ENDATA\n"}
    answer = send(client, MPS, {"name": "b"}, **parts)
    assert answer.status_code in (201, 413, 422), answer.text
    assert answer.status_code != 201 or answer.json()["notes"]
    answer = send(client, LP, {"name": "b"}, scenarios=STO)
    assert "belongs to a model in MPS" in answer.json()["detail"]
