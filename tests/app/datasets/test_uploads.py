"""Uploads are read in another process with limited memory and time; unusable files are refused with a message."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from httpx import Response
from starlette.testclient import TestClient

from app.datasets import reader
from tests.support.journey import check_json, learn_posterior, upload
from tests.support.polling import crowding


def parquet(columns: dict[str, object], **options: object) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, **options)
    return buffer.getvalue()


def assert_refused(response: Response, status: int, says: str) -> None:
    body = response.json()
    assert response.status_code == status, body
    assert says in body["detail"]
    assert [error["pointer"] for error in body["errors"]] == ["#/file"]


def peak_mb(act: Callable[[], None]) -> float:
    """Return the peak memory increase of this process during `act`."""
    Path("/proc/self/clear_refs").write_text("5")
    before = psutil.Process().memory_info().rss
    act()
    (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) / 1e3 - before / 1e6


LONG_TEXTS = {"text": ["x" * 90_000_000] * 4, "demand": [1.0, 2.0, 3.0, 4.0]}


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """A file of some ten kB with four texts of 90 MB."""
    content = parquet(LONG_TEXTS, compression="zstd", use_dictionary=False, write_statistics=False)
    assert len(content) < 100_000
    return content


@pytest.mark.slow
def test_a_small_file_of_huge_texts_is_refused_by_the_sizes_it_declares(client: TestClient, bomb: bytes) -> None:
    assert peak_mb(lambda: assert_refused(upload(client, bomb), 422, "BCO_MAX_CELLS")) < 50


@pytest.mark.slow
def test_a_file_with_false_sizes_stays_within_the_memory_limit(
    client: TestClient, bomb: bytes, settings: Callable[..., None]
) -> None:
    # The cell limit is high, so only the memory limit of the reader process applies.
    settings(max_cells=10**9, upload_mb=200)
    assert peak_mb(lambda: assert_refused(upload(client, bomb), 413, "BCO_UPLOAD_MB")) < 50
    assert upload(client, b"x,demand\n1,1\n2,2\n").status_code == 201


def test_reading_stops_at_its_time_limit(client: TestClient, settings: Callable[..., None]) -> None:
    rows = b"x,demand\n" + b"a,1\n" * 14_000_000
    settings(upload_seconds=0.05, max_rows=10**9, max_cells=10**9)
    began = time.monotonic()
    assert_refused(upload(client, rows), 413, "BCO_UPLOAD_SECONDS")
    assert time.monotonic() - began < 20
    settings(upload_seconds=60)
    assert upload(client, b"x,demand\n1,1\n2,2\n").status_code == 201


def test_of_many_bad_lines_only_the_first_is_reported(client: TestClient) -> None:
    content = b"x,demand\n1,1\n" + b"1\n" * 3_000_000
    took = time.monotonic()
    assert peak_mb(lambda: assert_refused(upload(client, content), 422, "line 3 has 1 values")) < 100
    assert time.monotonic() - took < 5 * crowding()


def test_a_reader_process_that_dies_is_replaced(client: TestClient) -> None:
    assert upload(client, b"x,demand\n1,1\n2,2\n").status_code == 201
    for process in reader.readers.idle:
        process.kill()
        process.wait()
    assert upload(client, b"x,demand\n1,1\n2,2\n").status_code == 201


def test_the_reader_process_imports_no_numerics_and_no_local_modules(tmp_path: Path) -> None:
    for name in ("json", "pyarrow"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working directory')")
    say = "import app.datasets.unpack, sys; print({'torch', 'fastapi', 'sqlalchemy'} & sys.modules.keys())"
    environment = os.environ | reader.readers.environment
    done = subprocess.run(
        [sys.executable, *reader.readers.command[1:-2], "-c", say], cwd=tmp_path, env=environment, capture_output=True
    )
    assert (done.stdout, done.returncode) == (b"set()\n", 0), done.stderr


# text

NOT_UTF8 = b"caf\xe9"


def test_parquet_values_that_are_not_utf8_are_refused(client: TestClient) -> None:
    text = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\4\0\0\0\5\0\0\0"), pa.py_buffer(NOT_UTF8 + b"x"))
    assert_refused(upload(client, parquet({"text": text, "demand": [1.0, 2.0]})), 422, "not UTF-8")
    plain = parquet({"text": text, "demand": [1.0, 2.0]}, use_dictionary=False)
    assert_refused(upload(client, plain), 422, "not UTF-8")


def test_parquet_names_that_are_not_utf8_are_refused(client: TestClient) -> None:
    content = parquet({"cafe": ["a", "b"], "demand": [1.0, 2.0]}, store_schema=False)
    assert upload(client, content).status_code == 201
    assert_refused(upload(client, content.replace(b"cafe", NOT_UTF8)), 422, "UTF-8")


@pytest.mark.parametrize("content", [b"x,demand,y\r1,2,3\r4,5,6\n", b"x,demand,\r\n", b'x,"demand\n"\n1,2\n3,4\n'])
def test_a_csv_header_with_other_line_ends_is_read_or_refused(client: TestClient, content: bytes) -> None:
    assert upload(client, content).status_code in (201, 422)


UNPLAIN = ["\x07", "\x1b[31m", "\x7f", "\x85", "\u202e", "\u2066", "\u200f", "\u2028"]


@pytest.mark.parametrize("mark", UNPLAIN)
def test_control_characters_in_names_and_categories_are_refused(client: TestClient, mark: str) -> None:
    odd = f"a{mark}b"
    for content in (f'"{odd}",demand\n1,1\n2,2\n', f'shop,demand\n"{odd}",1\nx,2\n'):
        assert_refused(upload(client, content.encode()), 422, "control or bidirectional")
    assert_refused(upload(client, parquet({"shop": [odd, "x"], "demand": [1.0, 2.0]})), 422, "control or bidirectional")
    for body in (
        {"name": odd, "outcomes": ["demand"], "rows": [{"x": 1, "demand": 1}, {"x": 2, "demand": 2}]},
        {"name": "n", "outcomes": ["demand"], "rows": [{odd: 1, "demand": 1}, {odd: 2, "demand": 2}]},
        {"name": "n", "outcomes": ["demand"], "rows": [{"x": odd, "demand": 1}, {"x": "b", "demand": 2}]},
    ):
        answer = check_json(client.post("/v1/datasets", json=body), 422)
        assert "control or bidirectional" in answer["detail"]


def test_joined_emoji_and_other_scripts_are_accepted(client: TestClient) -> None:
    content = "shop,demand\n👩\u200d🍳,1\nמאפייה,2\nخبز,3\n"
    categories = check_json(upload(client, content.encode()), 201)["columns"][0]["categories"]
    assert categories == sorted(["👩\u200d🍳", "מאפייה", "خبز"])


def test_batch_files_have_the_same_limits(client: TestClient, bomb: bytes) -> None:
    path = f"/v1/posteriors/{learn_posterior(client)['id']}/batch-prescriptions/upload"
    assert_refused(client.post(path, files={"file": ("contexts", bomb)}), 422, "BCO_MAX_CELLS")
    assert_refused(client.post(path, files={"file": ("contexts", b"a,b\n1,2\n1\n")}), 422, "line 3 has 1 values")
