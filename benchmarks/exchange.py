"""Exported models: sizes and times of a page and an ONNX file, and whether a browser samples the requested labels."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import reverie
from benchmarks.measure import side_by_side
from reverie.base.progress import silent
from reverie.evaluation.metrics.features import dataset_classifier
from reverie.evaluation.reports import find_data
from reverie.exchange.export_parts import split_run
from reverie.exchange.onnx import Guided
from reverie.nets.lenet import features_and_classes
from reverie.runs.run import Run

IMAGES, GUIDANCE, STEPS = 100, 2.0, 20
LAST = "sampled.films.map((film) => [...film[film.length - 1].x0])"


def drawn_by_browser(page_file: Path, count: int = IMAGES) -> tuple[float, float, np.ndarray]:
    """Open a page, sample each label in turn, and return seconds to the first image, ms per evaluation, and images."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    if program is None:
        raise RuntimeError("there is no Chromium on this machine")
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=program, args=["--no-sandbox"] if root else [])
        context = browser.new_context(offline=True)
        page = context.new_page()
        page.set_default_timeout(1_800_000)
        client = context.new_cdp_session(page)

        def value(expression: str) -> Any:
            wanted = {"expression": f"JSON.stringify({expression})", "returnByValue": True}
            return json.loads(client.send("Runtime.evaluate", wanted)["result"]["value"])

        start = time.perf_counter()
        page.goto(page_file.as_uri())
        page.wait_for_selector("body[data-state=sampling], body[data-state=done]")
        loaded = time.perf_counter() - start
        value(f"(document.getElementById('count').value = '{count}', newJobs(() => {{}}), 1)")
        page.click("text=each in turn")
        page.wait_for_selector("body[data-state=done]")
        seconds = value("sampled.films.reduce((a, film) => a + film[film.length - 1].seconds, 0)")
        images = np.array(value(LAST))
        browser.close()
    return loaded, 1e3 * seconds / count, images


def accuracy(run: Run, images: np.ndarray) -> tuple[int, float]:
    """Return how many images a classifier recognises as the requested label, and its accuracy on held-out data."""
    train, held = find_data(run, 100)
    net, facts = dataset_classifier(train, held, silent)
    pictures = torch.tensor(images, dtype=torch.float32).reshape(-1, *run.model.shape)
    read = features_and_classes(net, run.model.decode(pictures))[1]
    return int((read == torch.arange(len(read)) % len(run.config.data.labels)).sum()), facts["held_out_accuracy"]


def against_onnx(run: Run, file: Path) -> list[str]:
    """One guided evaluation of 16 images on one thread by torch and by ONNX Runtime, in turn."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options)
    module, threads = Guided(split_run(run, {"autoguidance": 1.0}, "a file")), torch.get_num_threads()
    torch.set_num_threads(1)
    x, one = torch.randn(16, *run.model.shape), torch.tensor(0.7, dtype=torch.float64)
    labels = torch.arange(16) % len(run.config.data.labels)
    inputs = {"x": x, "alpha": one, "sigma": one, "label": labels, "guidance": torch.tensor(GUIDANCE)}
    if (clusters := run.diffusion.clusters) is not None:
        inputs["cluster"] = clusters.sample(torch.arange(16), labels)
    values, feed = tuple(inputs.values()), {name: value.numpy() for name, value in inputs.items()}

    @torch.no_grad()
    def eager() -> object:
        return module(*values)

    row = side_by_side("a guided evaluation, 16 images", lambda: session.run(["x0", "eps"], feed), eager, "one thread")
    torch.set_num_threads(threads)
    times = f"{1e3 * row.ours:.1f} ms, torch {1e3 * row.peer:.1f} ms ({row.ratio:.2f} times as fast)"
    return [f"ONNX Runtime on one thread, a guided evaluation of 16 images: {times}."]


def exchange(run: Run | None = None) -> list[str]:
    """Train on digits for two minutes, export, and measure page and file."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        run = run or reverie.train("digits", folder / "run", minutes=2)
        options: Any = {"sampler": "dpm++sde", "steps": STEPS, "guidance": GUIDANCE, "autoguidance": 1.0}
        size = f"{run.model.facts()['parameters']:,} parameters"
        lines = [f"Run: {run.config.data.name}, {size}.", "", "| file | MB | seconds to write |", "|---|---|---|"]
        for name in ("page.html", "model.onnx"):
            start = time.perf_counter()
            file = reverie.export(run, folder / name, **options)
            lines.append(f"| {name} | {file.stat().st_size / 1e6:.2f} | {time.perf_counter() - start:.1f} |")
        loaded, each, images = drawn_by_browser(folder / "page.html")
        read, right = accuracy(run, images)
        lines += ["", "Chromium, the page opened from a file without a network:"]
        lines += [f"sampling starts {loaded:.1f} s after opening; an evaluation takes {each / (2 * STEPS):.1f} ms."]
        lines += [f"Of {len(images)} digits, each in turn, guidance {GUIDANCE:g}, {STEPS} steps of dpm++sde, seed 0,"]
        lines += [f"a classifier with {right:.1%} accuracy on held-out images recognises {read} as the requested digit.", ""]
        lines += against_onnx(run, folder / "model.onnx")
    for line in lines:
        print(line, flush=True)
    return lines


if __name__ == "__main__":
    import sys

    exchange(reverie.load(sys.argv[1], "cpu") if len(sys.argv) > 1 else None)
