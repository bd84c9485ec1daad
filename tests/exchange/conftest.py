"""Runs with random weights, without training, and a browser without network access."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from reverie.data.augment import conditioned_entries
from reverie.diffusion.plan import network_for
from reverie.families.diffusion.model import Diffusion
from reverie.families.diffusion.settings import DiffusionSettings
from reverie.runs import folder
from reverie.runs.config import Config, DataConfig, TrainingConfig, build_model
from reverie.runs.run import Run, load
from reverie.runs.weights import write_weights

Make = Callable[..., Run]


@pytest.fixture
def made(tmp_path: Path) -> Make:
    """Return a run on disk with random nonzero weights and with cluster counts, some of them zero."""

    def make(name: str, network: str, shape: tuple[int, ...], labels: int = 0, early: bool = False, **options: Any) -> Run:
        names = tuple(f"label {k}" for k in range(labels))
        entries = len(conditioned_entries(options.get("augment", ()), shape)) + options.get("clusters", 0)
        full = network_for(shape, labels, network) | ({"cond_dim": entries} if entries else {})
        codec = {"name": "standard", "mean": [0.3, -0.2], "std": [0.7, 1.2]} if len(shape) == 1 else {"name": "pixels"}
        usual = {"target": "flow", "schedule": {"name": "rectified"}, "codec": codec, "sigma_data": 0.6, "network": full}
        family = DiffusionSettings.model_validate({**usual, **({"autoguidance": 1.6} if early else {}), **options})
        data = DataConfig(name=name, count=100, shape=shape, labels=names, label_counts=tuple(range(1, labels + 1)))
        config = Config(data=data, family=family, training=TrainingConfig(steps=1))
        path = tmp_path / name
        path.mkdir()
        folder.write_config(path, config)
        model = build_model(config)
        assert isinstance(model, Diffusion)
        if model.clusters is not None:  # some counts are zero, and all of the last label
            counts = torch.randint(0, 4, model.clusters.counts.shape, generator=torch.Generator().manual_seed(0))
            model.clusters.counts.copy_(counts * (torch.arange(len(counts)) < max(1, labels - 1))[:, None])
        for k, file in enumerate((folder.WEIGHTS_FILE, folder.EARLY_FILE) if early else (folder.WEIGHTS_FILE,)):
            random = torch.Generator().manual_seed(k)
            for p in model.parameters():
                p.data += 0.08 * torch.randn(p.shape, generator=random)
            write_weights(path, config, model, file)
        return load(path, "cpu")

    return make


class Browser:
    """Chromium without network access, which records requests and errors of a page."""

    def __init__(self, browser: Any) -> None:
        self.context = browser.new_context(offline=True, accept_downloads=True)
        self.requests: list[str] = []
        self.errors: list[str] = []

    def open(self, file: Path) -> Any:
        """Open a page from the disk and wait until it has sampled."""
        page = self.context.new_page()
        page.set_default_timeout(120_000)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.goto(file.as_uri())
        page.wait_for_selector("body[data-state=done]")
        return page

    def value(self, page: Any, expression: str) -> Any:
        """Return the value of an expression in a page; its policy forbids playwright's own `evaluate`."""
        client = self.context.new_cdp_session(page)
        found = client.send("Runtime.evaluate", {"expression": f"JSON.stringify({expression})", "returnByValue": True})
        assert "exceptionDetails" not in found, found
        return json.loads(found["result"]["value"])


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium on this machine")
    root = hasattr(os, "geteuid") and os.geteuid() == 0  # the sandbox refuses to run as root
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=program, args=["--no-sandbox"] if root else [])
        yield browser
        browser.close()


@pytest.fixture
def browser(chromium: Any) -> Iterator[Browser]:
    made = Browser(chromium)
    yield made
    made.context.close()
