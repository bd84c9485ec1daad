"""The studio as a process: start, limits, concurrent requests, and Ctrl-C."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reverie.runs.lock import holder
from tests.studio.conftest import DIGITS, PATTERNS
from tests.studio.served import Served, served


def fetch(server: Served, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(method, path, body, {**server.headers, **headers})
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_a_missing_folder_and_a_used_port_are_errors(command: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    code, _, error = command("studio", tmp_path / "none", "--no-browser")
    assert code == 2 and "none" in error
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, _, error = command("studio", tmp_path, "--no-browser", "--port", taken.getsockname()[1])
        assert code == 2 and "--port" in error


def test_missing_libraries_are_named_with_the_install_command(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "reverie.studio.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, _, error = command("studio", tmp_path)
    assert code == 2 and "pip install 'reverie[studio]'" in error


@pytest.mark.slow
def test_attacks_on_the_socket_itself(folder: Path) -> None:
    with served(folder) as server:
        assert fetch(server, "GET", "/api/runs")[0] == 200
        assert fetch(server, "GET", "/api/runs", Cookie="")[0] == 401
        assert fetch(server, "GET", "/api/runs", Host=f"evil.example:{server.port}")[0] == 421
        upgrade = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Key": "x" * 24,
            "Sec-WebSocket-Version": "13",
        }
        assert fetch(server, "GET", "/api/runs", Origin="http://evil.example", **upgrade)[0] == 403
        assert fetch(server, "GET", "/api/runs", Origin="null", **upgrade)[0] == 403
        for path in (
            "/static/../app.py",
            "/static/..%2fapp.py",
            "/static/%2e%2e/app.py",
            "//etc/passwd",
            "/api/runs/..%2f..%2fetc",
        ):
            assert fetch(server, "GET", path)[0] in (400, 404)
        refuse_100_megabytes(server)
        serve_200_at_once(server)
        survive_a_stalled_client(server)
        assert server.stop() == 0


def refuse_100_megabytes(server: Served) -> None:
    before = server.resident()
    try:
        status, _ = fetch(server, "POST", "/api/jobs/upload", bytes(100 * 2**20))
    except OSError:  # cut off while it was being sent
        status = 413
    assert status == 413
    assert server.resident() - before < 60 * 2**20


def serve_200_at_once(server: Served) -> None:
    request = json.dumps({"run": DIGITS, "n": 1, "steps": 2, "autoguidance": 1}).encode()
    before = server.resident()

    def one(_: int) -> tuple[int, bytes]:
        return fetch(server, "POST", "/api/jobs/sample", request)

    with ThreadPoolExecutor(200) as pool:
        answers = list(pool.map(one, range(200)))
    bodies = [body for status, body in answers if status == 200]
    assert {status for status, _ in answers} == {200, 503} and all(b"event: done" in body for body in bodies)
    assert all(b"try again" in body or b"Service Unavailable" in body for status, body in answers if status == 503)
    assert server.resident() - before < 400 * 2**20  # the first job loads the run


def survive_a_stalled_client(server: Served) -> None:
    request = json.dumps({"run": PATTERNS, "n": 5000, "steps": 300}).encode()
    head = "".join(
        f"{k}: {v}\r\n"
        for k, v in {**server.headers, "Host": f"127.0.0.1:{server.port}", "Content-Length": len(request)}.items()
    )
    deaf = socket.create_connection(("127.0.0.1", server.port))
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.sendall(f"POST /api/jobs/sample HTTP/1.1\r\n{head}\r\n".encode() + request)
    time.sleep(1)
    small = json.dumps({"run": DIGITS, "n": 1, "steps": 2, "autoguidance": 1}).encode()
    status, body = fetch(server, "POST", "/api/jobs/sample", small)  # runs after the other job
    assert status == 200 and b"event: done" in body
    deaf.close()


@pytest.mark.slow
def test_a_training_survives_the_server(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    try:
        train_through_two_servers(tmp_path)
    finally:
        if process := holder(tmp_path / "runs" / "long"):
            os.kill(process, signal.SIGINT)


def train_through_two_servers(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        options = {"steps": 4000, "network": "mlp:hidden=16", "points": 500}
        body = json.dumps({"data": "spiral", "name": "long", "options": options}).encode()
        status, response = fetch(server, "POST", "/api/trainings", body)
        assert status == 200
        key = json.loads(response)["id"]
        run = tmp_path / "runs" / "long"
        wait(lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size > 0)
        server.stop()
    size = (run / "metrics.jsonl").stat().st_size
    wait(lambda: (run / "metrics.jsonl").stat().st_size > size)
    with served(tmp_path) as server:  # another server stops and resumes it
        assert json.loads(fetch(server, "GET", f"/api/runs/{key}")[1])["training"]
        assert fetch(server, "POST", f"/api/runs/{key}/stop", b"{}")[0] == 200
        wait(lambda: not json.loads(fetch(server, "GET", f"/api/runs/{key}")[1])["training"])
        done = json.loads(fetch(server, "GET", f"/api/runs/{key}")[1])
        assert 0 < done["fraction"] < 1
        assert fetch(server, "POST", f"/api/runs/{key}/resume", b'{"options": {}}')[0] == 200
        wait(lambda: json.loads(fetch(server, "GET", f"/api/runs/{key}")[1]).get("steps", 0) > done["steps"])
        assert fetch(server, "POST", f"/api/runs/{key}/stop", b"{}")[0] == 200
        wait(lambda: not json.loads(fetch(server, "GET", f"/api/runs/{key}")[1])["training"])


def wait(what: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "this took too long"
        time.sleep(0.3)


@pytest.mark.slow
def test_the_page_is_part_of_the_wheel(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    words = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", str(tmp_path), str(root)]
    subprocess.run(words, check=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    static = root / "src/reverie/studio/static"
    missing = [p for p in static.rglob("*") if p.is_file() and f"reverie/studio/static/{p.relative_to(static)}" not in names]
    assert not missing
