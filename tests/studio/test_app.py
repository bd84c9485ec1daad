"""The HTTP interface of the studio: runs, jobs with their events, and refused requests."""

from __future__ import annotations

import asyncio
import base64
import io
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import reverie
from reverie import api
from reverie.runs.run import Run
from reverie.studio.app import JOBS, Studio
from reverie.studio.guard import Guard
from reverie.studio.library import path_id
from tests.studio.asgi import PORT, TOKEN, Answer, call
from tests.studio.conftest import DIGITS, HTML, PATTERNS

BAD_IDS = (
    "../runs", "..%2f..%2fetc", "%2e%2e/%2e%2e", "....//", "/etc/passwd", "%00", DIGITS.upper() + "/..",
    "runs/digits8", "0" * 12,
    "..%5c..%5c", "%252e%252e%252f",
)  # fmt: skip


def fetch(app: Guard, path: str, body: Any = None, method: str | None = None, **how: Any) -> Answer:
    return asyncio.run(call(app, method or ("GET" if body is None else "POST"), path, body=body, **how))


def done(answer: Answer) -> dict[str, Any]:
    name, data = answer.events()[-1]
    assert name == "done", data
    return data  # type: ignore[no-any-return]


def pixels(address: str) -> np.ndarray:
    kind, content = address.split(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


def test_runs_are_listed_by_ids_without_paths(app: Guard) -> None:
    rows = {row["name"]: row for row in fetch(app, "/api/runs").json()}
    assert set(rows) == {"runs/digits8", "runs/patterns"}
    digits = rows["runs/digits8"]
    assert digits["id"] == DIGITS and digits["family"] == "diffusion" and digits["kind"] == "images"
    assert digits["steps"] == 150 and not digits["training"] and digits["bytes"] > 1000


def test_a_run_lists_its_abilities(app: Guard) -> None:
    run = fetch(app, f"/api/runs/{DIGITS}").json()
    assert run["shape"] == [1, 8, 8] and run["labels"] == [str(k) for k in range(10)]
    assert "inpaint" in run["abilities"] and "sampler" in run["options"] and run["has_weights"]
    assert run["metrics"][-1]["i"] == 150 and run["previews"]
    shown = fetch(app, f"/api/runs/{DIGITS}/preview/{run['previews'][-1]}")
    assert shown.status == 200 and shown.headers["content-type"] == "image/png"


def test_all_names_come_from_the_tables(app: Guard) -> None:
    studio = fetch(app, "/api/studio").json()
    assert {kind: [e["name"] for e in entries] for kind, entries in studio["tables"].items()} == api.names()
    assert [demo["name"] for demo in studio["demos"]] == list(api.DEMOS)
    assert all("<math" in demo["formula"] for demo in studio["demos"])
    assert {"minutes", "steps", "family", "network"} <= {field["name"] for field in studio["form"]}
    assert not {"from", "codec", "data-dir", "overwrite"} & {field["name"] for field in studio["form"]}


def test_a_sampling_job_equals_run_sample(app: Guard, digits_run: Run) -> None:
    request = {"run": DIGITS, "n": 3, "label": "3", "guidance": 2.0, "steps": 6, "seed": 5, "autoguidance": 1.0}
    answer = fetch(app, "/api/jobs/sample", request)
    names = [name for name, _ in answer.events()]
    assert names[:2] == ["queued", "start"] and names.count("frame") >= 2
    last = done(answer)
    expected = digits_run.sample(3, label="3", guidance=2.0, steps=6, seed=5, autoguidance=1.0)
    assert np.array_equal(pixels(last["image"]), np.concatenate([np.asarray(i) for i in expected.images], 1))
    assert last["labels"] == ["3"] * 3
    start = dict(answer.events())["start"]
    assert "--label 3 --guidance 2 " in start["command"] and "guidance=2" in start["python"]
    times = [data["t"] for name, data in answer.events() if name == "frame"]
    assert times == sorted(times, reverse=True) and times[0] == 1


def test_the_python_code_generates_the_same_samples(app: Guard, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = fetch(app, "/api/jobs/sample", {"run": DIGITS, "n": 2, "steps": 3, "seed": 1, "label": "7"})
    found: dict[str, Any] = {}
    exec(dict(answer.events())["start"]["python"], found)
    expected = np.concatenate([np.asarray(image) for image in found["samples"].images], 1)
    assert np.array_equal(pixels(done(answer)["image"]), expected)


def test_points_are_sent_as_numbers(app: Guard, patterns_run: Run) -> None:
    last = done(fetch(app, "/api/jobs/sample", {"run": PATTERNS, "n": 50, "steps": 5}))
    x = np.frombuffer(base64.b64decode(last["points"]["float32"]), "<f4").reshape(last["points"]["shape"])
    assert np.allclose(x, patterns_run.sample(50, steps=5).x)


def test_other_families_are_sampled_and_refuse_unsupported_jobs(tmp_path: Path) -> None:
    run = reverie.train("patterns", tmp_path / "runs" / "normal", family="gaussian", points=400, progress=False)
    guard, key = Guard(Studio(tmp_path, []).app(), port=PORT, token=TOKEN), path_id("runs/normal")
    details = fetch(guard, f"/api/runs/{key}").json()
    assert details["family"] == "gaussian" and "inpaint" not in details["abilities"] and "sampler" not in details["options"]
    last = done(fetch(guard, "/api/jobs/sample", {"run": key, "n": 20, "label": "moons"}))
    x = np.frombuffer(base64.b64decode(last["points"]["float32"]), "<f4").reshape(20, 2)
    assert np.allclose(x, run.sample(20, label="moons").x)
    for kind, request in (("sample", {"run": key, "sampler": "ddim"}), ("demo", {"demo": "forward", "run": key})):
        event, data = fetch(guard, f"/api/jobs/{kind}", request).events()[-1]
        assert event == "failed" and "diffusion" in data["message"]


def test_a_disconnected_client_cancels_only_its_own_job(app: Guard, studio: Studio) -> None:
    async def run() -> Answer:
        long = {"run": PATTERNS, "n": 2000, "steps": 1000}
        left = asyncio.ensure_future(
            call(app, "POST", "/api/jobs/sample", body=long, until=lambda body: body.count(b"frame") > 1)
        )
        stays = asyncio.ensure_future(call(app, "POST", "/api/jobs/sample", body={"run": DIGITS, "n": 1, "steps": 2}))
        assert (await left).body.count(b"event: done") == 0
        return await stays

    assert done(asyncio.run(run()))["labels"]


def test_the_nearest_training_image_of_a_training_image_is_itself(app: Guard, studio: Studio, digits_run: Run) -> None:
    data = api.load_source_data(digits_run.config.data).split(digits_run.config.data.seed)[0]
    x = data.x[:3, 0].numpy() / np.float32(255)  # type: ignore[index]
    key = studio.open_runs.add_samples(DIGITS, x)
    found = done(fetch(app, "/api/jobs/nearest", {"samples": key}))
    assert max(found["distances"]) < 1e-3
    assert np.array_equal(pixels(found["image"]), np.concatenate(list(data.x[:3, 0].numpy()), 1))  # type: ignore[index]


def test_inpainting_keeps_unmasked_pixels(app: Guard, digits_run: Run) -> None:
    whole = np.asarray(digits_run.sample(1, steps=4).images[0])
    buffer = io.BytesIO()
    Image.fromarray(whole).save(buffer, "png")
    sent = done(fetch(app, "/api/jobs/upload", {"run": DIGITS, "content": base64.b64encode(buffer.getvalue()).decode()}))
    assert np.array_equal(pixels(sent["image"]), whole)
    mask = np.zeros((8, 8), int)
    mask[:, 4:] = 1
    request = {"run": DIGITS, "image": sent["id"], "mask": "".join(map(str, mask.ravel())), "n": 2, "steps": 4}
    found = done(fetch(app, "/api/jobs/inpaint", request))
    results = pixels(found["image"])
    assert np.array_equal(results[:, :4], whole[:, :4]) and np.array_equal(results[:, 8:12], whole[:, :4])
    assert not pixels(found["std"])[:, :4].any() and pixels(found["std"])[:, 4:].any()
    short = fetch(app, "/api/jobs/inpaint", {**request, "mask": "01"}).events()[-1]
    assert short[0] == "failed" and "mask" in short[1]["message"] and "8 x 8" in short[1]["message"]


def sent(app: Guard, image: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "png")
    return str(
        done(fetch(app, "/api/jobs/upload", {"run": DIGITS, "content": base64.b64encode(buffer.getvalue()).decode()}))["id"]
    )


def test_steering_jobs_equal_the_api(app: Guard, digits_run: Run) -> None:
    few: Any = {"steps": 3, "seed": 2}
    a, b = (np.asarray(image) for image in digits_run.sample(2, steps=4).images)
    first, second = sent(app, a), sent(app, b)
    found = done(fetch(app, "/api/jobs/edit", {"run": DIGITS, "image": first, "strength": 0.5, "n": 2, "label": "3", **few}))
    expected = reverie.edit(digits_run, a, 0.5, 2, label="3", **few).x[0]
    assert np.abs(pixels(found["image"]) / 255 - np.concatenate(list(expected), 1)).max() < 0.003
    request = {"run": DIGITS, "image": first, "task": "upscale:factor=2", "n": 1, **few}
    found = done(fetch(app, "/api/jobs/restore", request))
    assert found["metrics"]["psnr"] > 5 and pixels(found["degraded"]).shape == (4, 4)
    request = {"run": DIGITS, "begin": first, "end": second, "frames": 4, "steps": 20}
    path = pixels(done(fetch(app, "/api/jobs/interpolate", request))["image"])
    assert np.abs(path[:, :8].astype(int) - a).mean() < 25 and np.abs(path[:, 24:].astype(int) - b).mean() < 25
    request = {"run": DIGITS, "views": ["identity", "rotate180"], "labels": ["6", "9"], "n": 1, **few}
    views = done(fetch(app, "/api/jobs/illusion", request))["views"]
    upright, turned = (pixels(view["image"]) for view in views)
    assert np.array_equal(turned, upright[::-1, ::-1]) and [view["rotation"] for view in views] == [0, 180]
    assert np.array_equal(upright.ravel()[views[1]["source"]].reshape(8, 8), turned)


def test_a_sample_file_is_an_animation(app: Guard) -> None:
    found = done(fetch(app, "/api/jobs/sample-file", {"run": DIGITS, "n": 1, "first": 3, "steps": 3, "format": "gif"}))
    content = base64.b64decode(found["url"].split(",")[1])
    assert found["url"].startswith("data:image/gif;base64,") and Image.open(io.BytesIO(content)).n_frames > 2  # type: ignore[attr-defined]


def test_a_finished_run_sends_one_event(app: Guard) -> None:
    (event,) = fetch(app, f"/api/runs/{DIGITS}/events").events()
    assert event[0] == "run" and event[1]["id"] == DIGITS and not event[1]["training"]


@pytest.mark.slow
def test_runs_are_evaluated_and_compared(app: Guard) -> None:
    found = done(fetch(app, "/api/jobs/evaluate", {"runs": [PATTERNS, DIGITS], "n": 64}))
    assert len(found["runs"]) == 2 and found["names"] and found["verdict"]


@pytest.mark.parametrize("key", BAD_IDS)
def test_no_id_leads_anywhere_else(app: Guard, key: str) -> None:
    for path in (f"/api/runs/{key}", f"/api/runs/{key}/events", f"/api/runs/{key}/preview/step-0000001.png", f"/static/{key}"):
        answer = fetch(app, path)
        assert answer.status in (400, 404) and b"root:" not in answer.body
    for kind, request in (("sample", {"run": key}), ("demo", {"demo": "forward", "run": key})):
        refused = fetch(app, f"/api/jobs/{kind}", request)
        assert refused.status == 400 or refused.events()[-1][0] == "failed"
    assert fetch(app, "/api/jobs/inspect", {"data": key}).events()[-1][0] == "failed"
    assert fetch(app, "/api/trainings", {"data": key, "name": "x"}).status == 400
    assert fetch(app, "/api/trainings", {"data": "digits8", "name": f"../{key}"}).status == 400


@pytest.mark.parametrize("name", ["config.toml", "../config.toml", "step-1.png", "step-0000001.svg", "step-0000001.png%00"])
def test_only_previews_are_served_as_previews(app: Guard, name: str) -> None:
    assert fetch(app, f"/api/runs/{DIGITS}/preview/{name}").status in (400, 404)


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path, folder: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    shutil.copytree(folder / "runs" / "digits8", outside / "run")
    shutil.copytree(folder / "photos", outside / "photos")
    (root / "runs").mkdir(parents=True)
    (root / "runs" / "linked").symlink_to(outside / "run")
    (root / "linked").symlink_to(outside / "photos")
    shutil.copytree(outside / "run", root / "runs" / "own")
    shown = next((root / "runs" / "own" / "previews").glob("step-*.png"))
    shown.unlink()
    shown.symlink_to(next((outside / "run" / "previews").glob("step-*.png")))
    shutil.copytree(outside / "photos", root / "photos")
    (root / "photos" / "plain" / "out.png").symlink_to(outside / "photos" / "plain" / "0.png")
    app = Studio(root, []).app()
    guard = Guard(app, port=PORT, token=TOKEN)
    assert [row["name"] for row in fetch(guard, "/api/runs").json()] == ["runs/own"]
    assert fetch(guard, f"/api/runs/{path_id('runs/linked')}").status == 400
    assert fetch(guard, f"/api/runs/{path_id('runs/own')}/preview/{shown.name}").status == 400
    assert [one["name"] for one in fetch(guard, "/api/data").json()["local"]] == ["photos"]
    event, data = fetch(guard, "/api/jobs/inspect", {"data": path_id("photos")}).events()[-1]
    assert event == "failed" and "out.png" in data["message"]


def test_data_of_a_run_outside_the_folder_are_not_read(tmp_path: Path, folder: Path) -> None:
    shutil.copytree(folder / "runs" / "digits8", tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace('source = "digits8"', 'source = "/etc"'))
    guard = Guard(Studio(tmp_path, []).app(), port=PORT, token=TOKEN)
    event, data = fetch(guard, "/api/jobs/demo", {"demo": "forward", "run": path_id("run")}).events()[-1]
    assert event == "failed" and "/etc" in data["message"] and str(tmp_path) in data["message"]


def bomb(width: int, height: int) -> bytes:
    """Return a PNG of a few kilobytes with a header of this size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(10**6))) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    "content",
    [
        bomb(100_000, 100_000),
        b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
        b"<html>",
        b"",
        b"\x80\x04.",
    ],
    ids=["bomb", "svg", "html", "nothing", "pickle"],
)
def test_hostile_images_are_refused(app: Guard, content: bytes) -> None:
    event, data = fetch(app, "/api/jobs/upload", {"run": DIGITS, "content": base64.b64encode(content).decode()}).events()[-1]
    assert event == "failed" and "image" in data["message"] and "/tmp" not in data["message"]


def test_html_in_names_is_sent_as_json_text(app: Guard) -> None:
    answer = fetch(app, "/api/jobs/inspect", {"data": path_id("photos")})
    found = done(answer)["report"]
    assert HTML in found["labels"] and answer.headers["content-type"].startswith("text/event-stream")
    assert "broken" in str(found["broken"]) and answer.headers["x-content-type-options"] == "nosniff"
    for path in ("/api/data", "/api/runs"):
        assert fetch(app, path).headers["content-type"] == "application/json"


def test_requests_with_unknown_or_invalid_fields_are_refused(app: Guard) -> None:
    for request in (
        {"run": DIGITS, "n": 10**9}, {"run": DIGITS, "path": "/etc"}, {"run": DIGITS, "seed": -1}, {"run": DIGITS,
        "guidance": 1e300},
        {"run": DIGITS, "steps": 10**6}, {"run": 7}, [], "x",
    ):  # fmt: skip
        assert fetch(app, "/api/jobs/sample", request).status == 400
    assert fetch(app, "/api/jobs/unknown", {}).status == 400
    assert fetch(app, "/api/jobs/sample", b"run=x", headers={"content-type": "text/plain"}).status == 400
    assert fetch(app, "/api/jobs/sample", {"run": DIGITS, "n": 65}).events()[-1][0] == "failed"
    assert fetch(app, "/api/jobs/sample", {"run": DIGITS, "sampler": "nonsense"}).events()[-1][0] == "failed"


@pytest.mark.parametrize(
    "options",
    [
        {"network": "unet:widths=../../etc"}, {"family": "diffusion:codec=/etc"}, {"from": "/etc"}, {"overwrite": True},
        {"minutes": "1 --overwrite"}, {"config": "/etc/passwd"}, {"labels": "~root"},
    ],
)  # fmt: skip
def test_a_training_takes_no_paths_and_no_unlisted_options(app: Guard, studio: Studio, options: dict[str, Any]) -> None:
    assert fetch(app, "/api/trainings", {"data": "digits8", "name": "new", "options": options}).status == 400
    assert not studio.trainings.started


def test_every_request_forbids_unknown_fields() -> None:
    for kind, _ in JOBS.values():
        assert kind.model_config["extra"] == "forbid"
