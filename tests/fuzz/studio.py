"""Random and damaged requests to the studio: none may fail inside, or access anything outside of the opened folder."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from reverie.cli.studio import form
from reverie.demos import DEMOS
from reverie.studio import trainings
from reverie.studio.app import JOBS, Studio
from reverie.studio.guard import Guard
from reverie.studio.library import path_id
from reverie.studio.requests import ResumeRequest, StartRequest
from tests.fuzz.damage import WORDS, reworded, scratched
from tests.fuzz.files import CSV, picture
from tests.studio.asgi import PORT, TOKEN, Answer, call

POINTS, IMAGES, TABLE = (path_id(name) for name in ("runs/points", "runs/images", "data.csv"))
SECRET = b"the secret beside the opened folder"
REQUESTS = 10  # of one case
TIMEOUT = 4.0  # seconds after which the client disconnects
PLACES = (
    POINTS, IMAGES, TABLE, "0" * 12, "../outside", "..%2foutside%2fsecret.csv", "%00", "%ff", "etc%2fpasswd", ".", "spiral",
    "a" * 5000, "step-0000001.png", "config.toml", "\u202e",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    0, 1, -1, 2, 2**31, 2**63, 1.5, -0.0, 1e308, True, None, "", "0", "x", [], {}, [[]], [None], {"a": {}},
    "../outside/secret.csv", "/etc/passwd", "~", "~root", "http://127.0.0.1:9/x", POINTS, IMAGES, TABLE, "all", "a:b=c",
    "ddim:eta=nan", "mlp:hidden=1e9", "linear:steps=0", *(word for word in WORDS if "\ud800" not in word),
)  # fmt: skip
HEADERS: tuple[dict[str, Any], ...] = (
    {"content-type": "text/plain"}, {"content-type": "application/json; charset=latin-1"}, {"content-type": None},
    {"cookie": None}, {"cookie": f"reverie-{PORT}={TOKEN}; {'x=y; ' * 400}"}, {"cookie": "=\x01;;"}, {"origin": "null"},
    {"host": "evil.example:1"}, {"content-length": "9" * 30}, {"content-length": "-1"}, {"sec-fetch-site": "\xff"},
    {"range": "bytes=0-1,5-"}, {"if-modified-since": "never"}, {"accept-encoding": "x" * 9000}, {"x-forwarded-host": "evil"},
)  # fmt: skip
ROUTES = (
    "/", "/static/{}", "/static/vendor/{}", "/api/studio", "/api/runs", "/api/data", "/api/data/{}", "/api/runs/{}",
    "/api/runs/{}/events", "/api/runs/{}/preview/{}", "/api/runs/{}/stop", "/api/runs/{}/resume", "/api/trainings",
    "/api/jobs/{}", "/{}", "/api/{}",
)  # fmt: skip
SENT = (
    "POST", "/api/jobs/upload", {"content-type": "application/json"},
    json.dumps({"run": IMAGES, "content": base64.b64encode(picture("png", "L")).decode()}).encode(),
)  # fmt: skip  # a picture to be steered
_opened: list[str] = []  # what this process opens, while a case runs
_listening = False


def _hear(event: str, words: tuple[Any, ...]) -> None:
    if _listening and event in ("open", "os.listdir", "os.scandir") and isinstance(words[0], str):
        _opened.append(words[0])


sys.addaudithook(_hear)


def place_folder(root: Path, chance: random.Random, runs: Callable[[str], dict[str, bytes]]) -> Path:
    """Write a folder to be opened, with runs of which one may refer to a secret beside the folder."""
    opened, outside = root / "opened", root / "outside"
    outside.mkdir()
    (outside / "secret.csv").write_bytes(CSV + b"1,2,%s\n" % SECRET)
    for kind in ("points", "images"):
        for name, content in runs(kind).items():
            path = opened / "runs" / kind / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    (opened / "data.csv").write_bytes(CSV)
    config = opened / "runs" / "points" / "config.toml"
    match chance.randrange(5):
        case 0 | 1:
            source = chance.choice((f"{outside}/secret.csv", f"{opened}/../outside/secret.csv", "http://127.0.0.1:9/a.tar"))
            config.write_text(config.read_text().replace('source = "patterns"', f'source = "{source}"'))
        case 2:
            config.write_bytes(reworded(config.read_bytes(), chance))
        case 3:
            (opened / "runs" / "linked").symlink_to(outside)
            (opened / "out.csv").symlink_to(outside / "secret.csv")
    return opened


def _likely(chance: random.Random, kept: dict[str, str]) -> dict[str, Any]:
    """Return what the page would send, by the names of fields.  kept: ids of what was sent or drawn before."""
    run, demo = chance.choice((POINTS, POINTS, IMAGES)), chance.choice(list(DEMOS))
    values = {c.name: chance.choice((c.default, *VALUES)) for c in DEMOS[demo].controls if chance.random() < 0.3}
    content = picture("png", "L")
    return {
        "run": run, "runs": [run] * chance.choice((1, 2)), "n": 16, "steps": 2, "data": TABLE,
        "demo": demo, "values": values, "image": kept.get("id", "0" * 16), "name": chance.choice(("new", "runs")),
        "samples": kept.get("samples", "0" * 16), "mask": "01" * 32, "begin": 1, "end": 2, "frames": 3, "format": "npy",
        "content": base64.b64encode(scratched(content, chance) if chance.random() < 0.3 else content).decode(),
        "views": ["identity", "rotate180"], "labels": ["6", "9"], "sampler": "ddim", "grid": "uniform", "strength": 0.5,
        "task": "upscale:factor=2", "guidance": 1.5, "guidance_interval": [0.1, 0.9], "autoguidance": 1.0, "first": 3,
        "label": chance.choice(("3", "all", "moons")), "seed": 1, "options": {"steps": 1, "points": 40},
    }  # fmt: skip


def _body(kind: type[BaseModel], chance: random.Random, kept: dict[str, str]) -> bytes:
    """Return what the page could send, with some of it replaced or damaged."""
    likely = _likely(chance, kept)
    always = {name for name, field in kind.model_fields.items() if field.is_required()} | {"run", "steps", "n"}
    made: Any = {
        name: likely[name] for name in kind.model_fields if name in likely and (name in always or chance.random() < 0.2)
    }
    if chance.random() < 0.4:
        made[chance.choice([*kind.model_fields, "path"])] = chance.choice(VALUES)
    content = json.dumps(made if chance.random() < 0.95 else chance.choice(VALUES)).encode()
    return (reworded if chance.random() < 0.7 else scratched)(content, chance) if chance.random() < 0.1 else content


def _request(chance: random.Random, kept: dict[str, str]) -> tuple[str, str, dict[str, Any], bytes | None]:
    if chance.random() < 0.6:
        verb = chance.choice([*JOBS, "evaluate", "demo", "demo"])  # which read the data of a run
        method, path, body = "POST", f"/api/jobs/{verb}", _body(JOBS[verb][0], chance, kept)
    else:
        route = chance.choice(ROUTES)
        path = route.format(*(chance.choice(PLACES) for _ in range(2)))
        acts = route.endswith(("stop", "resume", "trainings", "work/{}"))
        method = (
            chance.choice(("GET", "POST", "DELETE", "HEAD", "\xff")) if chance.random() < 0.1 else "POST" if acts else "GET"
        )
        body = _body(StartRequest if "trainings" in route else ResumeRequest, chance, kept) if acts else None
    query = chance.choice(("", "", "", "?token=x", "?code=", "?\xff=%"))
    kind = {"content-type": "application/json"} if body is not None else {}
    return method, path + query, {**kind, **(chance.choice(HEADERS) if chance.random() < 0.1 else {})}, body


async def _ask(guard: Guard, method: str, path: str, headers: dict[str, Any], body: bytes | None) -> Answer | None:
    left = asyncio.get_running_loop().time() + TIMEOUT
    over = lambda _: asyncio.get_running_loop().time() > left  # noqa: E731
    try:
        return await asyncio.wait_for(call(guard, method, path, headers, body, until=over), 2 * TIMEOUT)
    except TimeoutError:
        return None


def attack(root: Path, opened: Path, chance: random.Random) -> None:
    """Send requests to a studio on a folder; raise where one of them fails inside or leads out of it."""
    global _listening
    studio = Studio(opened, form())
    guard = Guard(studio.app(), port=PORT, token=TOKEN)
    _opened.clear()
    _listening = True
    kept: dict[str, str] = {}
    most, trainings.MAX_RUNNING = trainings.MAX_RUNNING, 0  # all of them wait, so that no process is started
    try:
        for k in range(REQUESTS):
            request = _request(chance, kept) if k else SENT
            answer = asyncio.run(_ask(guard, *request))
            if answer is None:
                continue
            shown = f"{request}: {answer.status} {answer.body[:500]!r}"
            assert answer.status < 500 or (answer.status == 503 and b"try again" in answer.body), shown
            assert SECRET not in answer.body and b"root:x:" not in answer.body and b"internal error" not in answer.body, shown
            if answer.body.startswith(b"event"):
                last = answer.events()[-1][1]
                kept |= {key: last[key] for key in ("id", "samples") if isinstance(last.get(key), str)}
            beside = [name for name in _opened if Path(name).resolve().is_relative_to(root / "outside")]
            assert not beside and "/etc/passwd" not in _opened, f"{shown}: opens {beside}"
    finally:
        _listening, trainings.MAX_RUNNING = False, most
        studio.queue.close()
        studio.queue.wait()
