"""The estimates of docs/developers/experiments/gpus.md: counted as formulas say, and those that the page shows."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from tools.scale import PAGE, WORKS, Counted, Hardware, Kernels, Work, all_reduce, count, estimates, tables, written
from torch.utils.flop_counter import FlopCounterMode

EXAMPLES = Path(__file__).parents[2] / "examples" / "scale"


def test_operations_of_a_convolution_are_those_of_the_formula() -> None:
    with torch.device("meta"):
        layer, x = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False), torch.empty(2, 3, 16, 16)
        with FlopCounterMode(display=False) as flops, Kernels() as kernels:
            layer(x).sum().backward()
    once = 2 * 2 * 8 * 16 * 16 * 3 * 9  # multiplications and additions of the forward pass; the weights' gradient takes as many
    assert flops.get_total_flops() == 2 * once
    assert 3 <= kernels.count <= 6


def test_a_network_has_the_parameters_of_the_one_that_is_trained() -> None:
    from reverie.base.spec import build
    from reverie.diffusion.plan import network_for
    from reverie.nets import NETWORKS

    net = build(NETWORKS, network_for((1, 28, 28), 10, "unet-small"), "network")
    assert count(WORKS[0]).parameters == sum(p.numel() for p in net.parameters())


def test_traffic_and_rates_are_those_of_the_formulas() -> None:
    gpu = Hardware(peak=1e12, share=0.5, launch=0.0, inside=1e9, between=1e8, price=3.0)
    assert all_reduce(10**6, 1, gpu) == (0.0, 0.0)
    assert all_reduce(10**6, 8, gpu) == pytest.approx((7e6, 7e-3))
    assert all_reduce(10**6, 64, gpu) == pytest.approx((4e6 * 2 * 63 / 64, 4e6 * 2 * 63 / 64 / 1e8))
    work = Work("x", (1, 10, 10), "unet-tiny", 0.5, 64, 3600 * 250.0)
    one, eight, _ = estimates(work, Counted(10**6, 1e9, 100), gpu)
    assert one.images == pytest.approx(250) and one.hours == pytest.approx(1) and one.dollars == pytest.approx(3)
    assert one.read == pytest.approx(25_000)  # 250 images of 100 bytes
    assert eight.images == pytest.approx(64 / (8 * 4e-3 + 7e-3)) and eight.scaling == pytest.approx(eight.images / 2000)


def test_the_page_shows_what_the_script_makes() -> None:
    page = PAGE.read_text()
    assert written(page, tables()) == page, "python -m tools.scale --write"


def test_the_files_that_start_it_can_be_read() -> None:
    subprocess.run(["bash", "-n", EXAMPLES / "slurm.sbatch"], check=True)
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    service, job = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    name, spec = service["metadata"]["name"], job["spec"]
    pod = spec["template"]["spec"]
    script = pod["containers"][0]["args"][0]
    assert pod["subdomain"] == name and service["spec"]["selector"]["job-name"] == job["metadata"]["name"]
    assert f"--rdzv-endpoint={job['metadata']['name']}-0.{name}:" in script
    assert f"--nnodes={spec['completions']} " in script and spec["parallelism"] == spec["completions"]
    assert f"--nproc-per-node={pod['containers'][0]['resources']['limits']['nvidia.com/gpu']} " in script
    assert Path(EXAMPLES / "slurm.sbatch").read_text().count("-m reverie") == 1
