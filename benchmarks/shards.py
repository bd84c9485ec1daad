"""Data larger than memory: reading speed of shards, and memory of training on a million images.

A million images are simulated by an index with a million entries for twenty thousand images of 32 x 32.  Rates are
images per processor second of all threads; memory is the peak of the process.

    python -m benchmarks.shards --cpu-seconds 20 --out benchmarks/shards.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import reverie
from reverie.data import load_data
from reverie.data.shards.index import INDEX, Index, read_index
from reverie.data.shards.packing import pack
from reverie.families.model import TrainedModel
from reverie.training.loader import batches, reader
from reverie.training.prepare import prepare

REAL, TIMES, SIDE, BATCH = 20_000, 50, 32, 128
SERVE = """
import sys
from functools import partial
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.data.served import Server
server = Server(Path({folder!r}))
print(server.server_port, flush=True)
server.serve_forever()
"""


def make_images(folder: Path, kind: str) -> None:
    """Write smooth random images with file sizes like those of photographs."""
    random = np.random.default_rng(0)
    for k in range(REAL):
        coarse = Image.fromarray(random.integers(0, 255, (8, 8, 3), dtype=np.uint8)).resize((SIDE, SIDE))
        noisy = np.asarray(coarse).astype(np.int16) + random.integers(-6, 7, (SIDE, SIDE, 3))
        path = folder / f"class {k % 10}" / f"{k:06d}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=92)


def repeat(shards: Path, out: Path, times: int = TIMES) -> None:
    """Write an index with many entries for each image, in separate blocks, beside links to the same shards."""
    out.mkdir()
    for shard in shards.glob("*.tar"):
        os.link(shard, out / shard.name)
    index = read_index(shards / INDEX, "")
    facts, blocks = index.facts, index.facts.blocks
    tensors = {name: tensor.repeat(times, *([1] * (tensor.ndim - 1))) for name, tensor in index.tensors.items()}
    tensors["block"] += torch.arange(times, dtype=torch.int32).repeat_interleave(len(index)) * blocks
    for end, size in (("name_end", facts.names_size), ("caption_end", facts.captions_size)):
        tensors[end] += torch.arange(times).repeat_interleave(len(index)) * size
    many = {name: times * getattr(facts, name) for name in ("count", "blocks", "names_size", "captions_size")}
    Index(facts.model_copy(update=many), tensors).write(out / INDEX)


def peak() -> float:
    """Return the peak memory of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def loading(source: str, seconds: float) -> dict[str, float]:
    """Read batches in sequence, including the work of read-ahead threads."""
    data = load_data(source)
    source_of = batches(data, BATCH, 0)
    list(islice(source_of, 4))
    start, wall, count = time.process_time(), time.perf_counter(), 0
    while time.process_time() - start < seconds:
        count += len(next(source_of)[0])
    used = time.process_time() - start
    return {"images_a_cpu_second": count / used, "images_a_wall_second": count / (time.perf_counter() - wall), "images": count,
            "set": len(data), "peak_megabytes": peak()}  # fmt: skip


def training(source: str, seconds: float) -> dict[str, float]:
    """Train steps of the default network for such images, and return the images per second."""
    with tempfile.TemporaryDirectory() as folder:
        made = prepare(source, Path(folder) / "run", steps=10**6, device="cpu")
        model, train, settings = made.learner.model, made.train, made.run.config.training
        assert isinstance(model, TrainedModel)
        load = reader(train, settings.batch, 0)
        start, count = time.process_time(), 0
        while time.process_time() - start < seconds:
            x, labels = next(load)
            model.loss(x, labels, count).mean().backward()
            for optimizer in made.learner.optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            count += len(x)
        used = time.process_time() - start
        made.close()
    return {"images_a_cpu_second": count / used, "batch": settings.batch, "images": count, "set": len(train),
            "peak_megabytes": peak()}  # fmt: skip


def whole(source: str, seconds: float) -> dict[str, float]:
    """Train for a few steps with checks, previews and samples, to measure the memory."""
    with tempfile.TemporaryDirectory() as folder:
        run = reverie.train(source, Path(folder) / "run", steps=20, device="cpu", progress=False)
        return {"steps": 20, "set": run.config.data.count, "peak_megabytes": peak()}


def in_child_process(what: str, source: str, seconds: float) -> dict[str, float]:
    """Measure in a child process."""
    words = [sys.executable, "-m", "benchmarks.shards", "--measure", what, "--source", source, "--cpu-seconds", str(seconds)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def serve(folder: Path) -> Iterator[str]:
    """Serve a folder from a child process, and yield its address."""
    code = SERVE.format(root=str(Path(__file__).parent.parent), folder=str(folder))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.terminate()


def shards(seconds: float, folder: Path) -> dict[str, Any]:
    """Return all figures."""
    found: dict[str, Any] = {}
    for kind in ("png", "jpg"):
        place = folder / kind
        if not (place / "million").exists():
            make_images(place / "images", kind)
            start = time.process_time()
            made = pack(place / "images", place / "shards", shard_size="16MB")
            found[f"packing {kind}"] = {"images_a_cpu_second": made.count / (time.process_time() - start), "images": made.count,
                                        "bytes_an_image": made.size / made.count}  # fmt: skip
            repeat(place / "shards", place / "million")
        found[f"loading {kind} from a disk"] = in_child_process("loading", str(place / "million"), seconds)
        for address in serve(place):
            found[f"loading {kind} from a server"] = in_child_process("loading", f"{address}/million", seconds)
    found["training from memory"] = in_child_process("training", str(folder / "png" / "shards"), seconds)
    found["training from a million in shards"] = in_child_process("training", str(folder / "png" / "million"), seconds)
    found["a whole training of 20 steps"] = in_child_process("whole", str(folder / "png" / "million"), seconds)
    return found


def main() -> None:
    """Measure, print the table, and save it."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--cpu-seconds", type=float, default=20.0)
    options.add_argument("--out", type=Path)
    options.add_argument("--folder", type=Path, help="folder of the images; default: a temporary one")
    options.add_argument("--measure", choices=("loading", "training", "whole"))
    options.add_argument("--source")
    args = options.parse_args()
    torch.set_num_threads(1)
    if args.measure:
        measure = {"loading": loading, "training": training, "whole": whole}[args.measure]
        print(json.dumps(measure(args.source, args.cpu_seconds)))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = shards(args.cpu_seconds, args.folder or Path(folder))
    for name, figures in found.items():
        print(f"{name:36}", ", ".join(f"{key} {value:,.0f}" for key, value in figures.items()), flush=True)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
