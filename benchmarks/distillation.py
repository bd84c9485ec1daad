"""Methods of distilling a student that samples MNIST in few evaluations, compared in equal time from one teacher.

    REVERIE_DATA=DIR python -m benchmarks.distillation RUN --cpu-seconds 80 [--only energy]

RUN is a diffusion run of MNIST with labels.  Every method starts from its weights, with Muon and a cosine decay of the learning
rate, the best of a few values.  Distances are Fréchet distances of samples, seed 0, on the features of two classifiers that no
method uses: a LeNet and a network of another architecture.  Time is CPU time of one thread, without that of the
classifiers that some methods use.  All are conditioned on clusters if the run is, and all outputs are clipped to the range of
images.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.measure import machine
from benchmarks.steps import metric_for
from reverie.api import Run, load, load_source_data
from reverie.base.noise import Noise, image_seeds
from reverie.data import Dataset
from reverie.diffusion.denoiser import Denoiser, NetDenoiser, WithConditioning
from reverie.diffusion.pair import Pair
from reverie.evaluation.metrics.frechet import frechet_to
from reverie.families.diffusion.distillation import (
    ClassifierFeatures,
    DistillationTarget,
    Features,
    Pool,
    TeacherFeatures,
    energy_rows,
    student_samples,
)
from reverie.families.diffusion.model import Diffusion
from reverie.nets.lenet import train_classifier
from reverie.training.distil import CLASSIFIERS
from reverie.training.learner import Average
from reverie.training.optimizer import muon

BATCH = 64
GRIDS = {1: (1.0,), 2: (1.0, 0.5), 4: (1.0, 5 / 6, 2 / 3, 0.5)}  # the times of the evaluations
Step = Callable[[NetDenoiser, Tensor, Tensor, Tensor | None, float, torch.Generator], Tensor]


def with_condition(net: NetDenoiser, condition: Tensor | None) -> Denoiser:
    """Return the network under a condition, if there is one."""
    return net if condition is None else WithConditioning(net, condition)


def cut(made: Tensor) -> Tensor:
    """Return samples clipped to the range of images; the gradient passes through."""
    return made + (made.clamp(-1, 1) - made).detach()


def noised(x: Tensor, random: torch.Generator) -> Tensor:
    """Return fresh noise of the shape of x."""
    return torch.randn(x.shape, generator=random)


def some_times(n: int, random: torch.Generator, pure: float = 0.4) -> Tensor:
    """Return times of evaluations: a share at pure noise, the others anywhere below."""
    u, t = torch.rand(2, n, generator=random, dtype=torch.float64)
    return torch.where(u < pure, torch.ones_like(t), 0.2 + 0.75 * t)


def consistency_tuning(teacher: NetDenoiser) -> Step:
    """Match the estimate at t with one nearer to the data, on the same line; the gap shrinks (ECT, arXiv:2406.14548)."""

    def step(net: NetDenoiser, x: Tensor, c: Tensor, condition: Tensor | None, done: float, random: torch.Generator) -> Tensor:
        student = with_condition(net, condition)
        ratio = (torch.randn(len(x), generator=random, dtype=torch.float64) * 1.4 - 0.4).exp()  # sigma / alpha
        ratio = torch.where(torch.rand(len(x), generator=random) < 0.15, torch.full_like(ratio, 200.0), ratio)
        nearer = (ratio * (1 - 2.0 ** -(1 + math.floor(5 * done)) * (1 + 8 * torch.sigmoid(-ratio)))).clamp(min=0)
        t, s = (r / (1 + r) for r in (ratio, nearer))
        line, schedule = Pair(x, noised(x, random)), student.schedule
        with torch.no_grad():
            target = student(line.mix(*schedule(s.clamp(min=1e-3))), s.clamp(min=1e-3), c).x0
            target = torch.where((nearer > 0.002)[:, None, None, None], target, x)
        squared_error = (student(line.mix(*schedule(t)), t, c).x0 - target).square().flatten(1).sum(1)
        weight = (1 / (ratio - nearer).clamp(min=0.02)).clamp(max=20).float()
        return (((squared_error + 0.06**2).sqrt() - 0.06) * weight).mean() / 10

    return step


def average_velocity(teacher: NetDenoiser) -> Step:
    """Learn the mean velocity from t down to 0, u = v - t (v d/dx + d/dt) u (MeanFlow, arXiv:2505.13447, with its r = 0)."""

    def step(net: NetDenoiser, x: Tensor, c: Tensor, condition: Tensor | None, done: float, random: torch.Generator) -> Tensor:
        t, line, student = some_times(len(x), random), Pair(x, noised(x, random)), with_condition(net, condition)
        xt, velocity = line.mix(*student.schedule(t)), line.eps - line.x0

        def average(x: Tensor, t: Tensor) -> Tensor:
            found = student(x, t, c)
            return found.eps - found.x0

        with sdpa_kernel(SDPBackend.MATH):  # the other layers do not support forward mode
            found: tuple[Tensor, Tensor] = torch.func.jvp(average, (xt, t), (velocity, torch.ones_like(t)))[:2]
        u, along = found
        squared_error = (u - (velocity - t.float()[:, None, None, None] * along).detach()).square().flatten(1).mean(1)
        value: Tensor = squared_error / (squared_error.detach() + 1e-3)
        return value.mean()

    return step


def trajectory(teacher: NetDenoiser) -> Step:
    """Match the estimate at t with that after a Heun step of the teacher (consistency distillation, arXiv:2303.01469)."""

    def step(net: NetDenoiser, x: Tensor, c: Tensor, condition: Tensor | None, done: float, random: torch.Generator) -> Tensor:
        student, reference = with_condition(net, condition), with_condition(teacher, condition)
        t, schedule = some_times(len(x), random), student.schedule
        s = (t - 2.0 ** -(3 + math.floor(2 * done))).clamp(min=0.03)
        xt = Pair(x, noised(x, random)).mix(*schedule(t))
        with torch.no_grad():
            first = reference(xt, t, c)
            second = reference(first.mix(*schedule(s)), s, c)
            velocity = (first.eps - first.x0 + second.eps - second.x0) / 2
            target = student(xt + (s - t).float()[:, None, None, None] * velocity, s, c).x0
        return (student(xt, t, c).x0 - target).square().mean()

    return step


def distribution_matching(teacher: NetDenoiser) -> tuple[Step, NetDenoiser]:
    """Move samples along the difference of two scores, the teacher's and that of samples (DMD, arXiv:2311.18828)."""
    critic = copy.deepcopy(teacher).train().requires_grad_(True)

    def step(net: NetDenoiser, x: Tensor, c: Tensor, condition: Tensor | None, done: float, random: torch.Generator) -> Tensor:
        t, student = some_times(len(x), random), with_condition(net, condition)
        made = student(Pair(x, noised(x, random)).mix(*student.schedule(t)), t, c).x0
        tau, eps = torch.rand(len(x), generator=random, dtype=torch.float64) * 0.93 + 0.05, noised(x, random)
        seen = Pair(made.detach(), eps).mix(*student.schedule(tau))
        with torch.no_grad():
            real = with_condition(teacher, condition)(seen, tau, c).x0
        fake = with_condition(critic, condition)(seen, tau, c)
        size = (made.detach() - real).abs().flatten(1).mean(1).clamp(min=0.02)
        along = (fake.x0.detach() - real) / size[:, None, None, None]
        learned = (fake.eps - fake.x0 - (eps - made.detach())).square().mean()
        return 0.03 * (made * along).flatten(1).mean(1).mean() + learned

    return step, critic


def drifting(target: DistillationTarget) -> Step:
    """The drift of samples in features; see `reverie.families.diffusion.distillation`."""

    def step(net: NetDenoiser, x: Tensor, c: Tensor, condition: Tensor | None, done: float, random: torch.Generator) -> Tensor:
        return target.loss(net, x, c, int(torch.randint(2**62, (), generator=random))).mean()

    return step


def energy(features: Features) -> Step:
    """The energy distance of a batch from data, in features."""

    def step(net: NetDenoiser, x: Tensor, c: Tensor, condition: Tensor | None, done: float, random: torch.Generator) -> Tensor:
        t = float(some_times(1, random, 0.5))
        seed = int(torch.randint(2**62, (), generator=random))
        mine, theirs = features(cut(student_samples(net, x, c, condition, t, seed))), features(x)
        with torch.autocast("cpu", enabled=False):
            rows = [energy_rows(a.float(), b.float(), c, c) for a, b in zip(mine, theirs, strict=True)]
        return torch.stack(rows).mean()

    return step


class Wide(nn.Module):
    """The second classifier: strided convolutions with GELU, 96 features."""

    def __init__(self) -> None:
        super().__init__()
        maps = [nn.Conv2d(1, 24, 3, 2, 1), nn.GELU(), nn.Conv2d(24, 48, 3, 2, 1), nn.GELU(), nn.Conv2d(48, 64, 3, 1, 1)]
        self.body = nn.Sequential(*maps, nn.GELU(), nn.Flatten(), nn.Linear(64 * 49, 96), nn.GELU())
        self.out = nn.Linear(96, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, (B, 10)."""
        scores: Tensor = self.out(self.body(x))
        return scores


def second_metric(x: Tensor, labels: Tensor) -> Callable[[Tensor], float]:
    """Train the second classifier on MNIST; return a function for the Fréchet distance on its features."""
    random = torch.Generator().manual_seed(5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        net = Wide()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-2, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=1800)
    for _ in range(1800):
        index = torch.randint(len(x), (128,), generator=random)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[index]), labels[index]).backward()
        optimizer.step()
        schedule.step()

    @torch.no_grad()
    def features(images: Tensor) -> Tensor:
        return torch.cat([net.body(part) for part in images.split(1000)])

    to = frechet_to(features(x))
    return lambda images: to(features(images))


@torch.no_grad()
def sample_student(net: NetDenoiser, model: Diffusion, times: tuple[float, ...], count: int) -> Tensor:
    """Return samples, all labels in turn, the noise of every evaluation but the first fresh: (count, 1, 28, 28) in [0, 1]."""
    parts = []
    for first in range(0, count, 250):
        seeds = image_seeds(0, min(250, count - first), first)
        noise = Noise(seeds)
        c = torch.arange(first, min(first + 250, count)) % 10
        student, x = with_condition(net, model.sample_clusters(seeds, c)), noise.like(torch.empty(len(c), 1, 28, 28))
        for k, t in enumerate(times):
            x0 = student(x, t, c).x0.clamp(-1, 1)
            if k + 1 < len(times):
                x = Pair(x0, noise.like(x)).mix(*net.schedule(times[k + 1]))
        parts.append(x0)
    return torch.cat(parts).add(1).div(2).clamp(0, 1)


def distilled(run: Run, method: str, x: Tensor, labels: Tensor, seconds: float) -> tuple[NetDenoiser, int]:
    """Distil a student by one method for a time; return its averaged weights and the number of steps."""
    teacher = copy.deepcopy(run.diffusion.denoiser).eval().requires_grad_(False)
    student, extra, start = copy.deepcopy(teacher).train().requires_grad_(True), [], time.process_time()
    rate, low = METHODS[method]["rate"], METHODS[method].get("low", False)
    if method.startswith(("energy", "drifting")):
        features: Features = TeacherFeatures(teacher)
        if method.endswith("classifiers"):
            net_of = partial(train_classifier, lambda index: (x[index], labels[index]), len(x), (1, 28, 28), 10)
            features = ClassifierFeatures([net_of(seed=11 + k) for k in range(CLASSIFIERS)])
        step, start = energy(features), time.process_time()
        if method.startswith("drifting"):
            conditioning_of = run.diffusion.conditioning_of
            pool = Pool(features, Dataset("mnist", x, labels), lambda x: x * 2 - 1, torch.device("cpu"), conditioning_of)
            step = drifting(DistillationTarget(features, run.diffusion.label_dropout, pool, True))
    elif method == "distribution matching":
        step, critic = distribution_matching(teacher)
        extra = [critic]
    else:
        step = METHODS[method]["step"](teacher)
    both, average = nn.ModuleList([student, *extra]), Average(student, 0.05)
    optimizers, random, i = muon(both, rate, 0.0), torch.Generator().manual_seed(0), 0
    while (done := (time.process_time() - start) / seconds) < 1:
        index = torch.randint(len(x), (BATCH,), generator=random)
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate * min(1, i / 20 + 0.05) * (1 + math.cos(math.pi * done)) / 2
            optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            value = step(student, x[index] * 2 - 1, labels[index], run.diffusion.conditioning_of(x[index]), done, random)
        value.backward()
        nn.utils.clip_grad_norm_(both.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        average.update(i)
        i += 1
    return average.model, i


METHODS: Mapping[str, Mapping[str, Any]] = {
    "drifting, classifiers": {"rate": 2e-3, "low": True},
    "drifting, teacher": {"rate": 2e-3, "low": True},
    "energy, classifiers": {"rate": 1.5e-3, "low": True},
    "energy, teacher": {"rate": 1.5e-3, "low": True},
    "consistency tuning": {"rate": 4e-3, "low": True, "step": consistency_tuning},
    "average velocity": {"rate": 1.5e-3, "step": average_velocity},
    "trajectory": {"rate": 4e-3, "low": True, "step": trajectory},
    "distribution matching": {"rate": 1.5e-3, "low": True},
}


def main() -> None:
    """Distil by every method and print the distances of samples in 1, 2 and 4 evaluations."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run")
    parser.add_argument("--cpu-seconds", type=float, default=80.0)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    run = load(args.run, "cpu")
    data = load_source_data(run.config.data, folder=run.path)
    x, labels = data.batch(torch.arange(len(data)))
    assert labels is not None
    first, second = metric_for(args.run).distance, second_metric(x, labels)
    heads = [f"{n}{metric}" for metric in ("", ", second classifier") for n in GRIDS]
    print(machine(), f"| method | steps | {' | '.join(heads)} |", f"|---{'|---' * 7}|", sep="\n", flush=True)
    of_data = [f"{metric(x[: args.count]):.1f}" for metric in (first, second) for _ in GRIDS]
    print(f"| {args.count:,} real images | | {' | '.join(of_data)} |", flush=True)
    for method in METHODS:
        if args.only in method:
            student, steps = distilled(run, method, x, labels, args.cpu_seconds)
            images = [sample_student(student, run.diffusion, times, args.count) for times in GRIDS.values()]
            figures = [f"{metric(one):.1f}" for metric in (first, second) for one in images]
            print(f"| {method} | {steps} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()
