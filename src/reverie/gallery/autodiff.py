"""Automatic differentiation: graphs and sweeps, memory, costs of modes, second order, implicit functions, uncertainty."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from torch import Tensor

from reverie.autodiff import Cost, Graph, bilinear, hessian, hvp, measure, profile, record
from reverie.autodiff.second import PASSES, PRODUCTS
from reverie.base.files import check_folder
from reverie.base.noise import Noise, image_seeds
from reverie.data import load_data
from reverie.diffusion.oracle import DatasetDenoiser
from reverie.diffusion.schedule import Cosine
from reverie.diffusion.uncertainty import posterior_variance
from reverie.draw.picture import ACCENT, CYCLE, INK, SOFT, WARM, figure, save
from reverie.gallery.implicit import circle, programme, square_root

GREEN, PURPLE = CYCLE[2], CYCLE[3]
DEPTH = 40  # layers of the chain whose memory is shown
BOX_WIDTH, BOX_HEIGHT, GAP = 1.5, 1.3, (2.6, 1.7)  # sizes and distances of boxes


def _number(a: Tensor) -> str:
    return f"{a.item():.4g}" if a.numel() == 1 else f"{tuple(a.shape)}"


def _positions(graph: Graph, gap: float) -> list[tuple[float, float]]:
    """Return the position of each node: x by its depth, nodes of equal depth stacked."""
    depth: list[int] = []
    for node in graph.nodes:
        depth.append(1 + max((depth[k] for k in node.inputs), default=-1))
    rows = {d: [k for k, node_depth in enumerate(depth) if node_depth == d] for d in set(depth)}
    return [(GAP[0] * depth[k], gap * (rows[depth[k]].index(k) - (len(rows[depth[k]]) - 1) / 2)) for k in range(len(depth))]


def _draw_graph(axes: Axes, graph: Graph, title: str, along: tuple[float, ...], second: bool) -> None:
    v = tuple(torch.full_like(node.value, a) for node, a in zip(graph.nodes, along, strict=False))
    tangents, adjoints, bends = graph.tangents(v), graph.adjoints(), graph.second_adjoints(v)
    scale = 1.25 if second else 1  # lines in a box
    positions, height = _positions(graph, scale * GAP[1]), scale * BOX_HEIGHT
    for k, node in enumerate(graph.nodes):
        x, y = positions[k]
        for start, local in zip(node.inputs, node.locals, strict=True):
            left, right = positions[start][0] + BOX_WIDTH / 2, x - BOX_WIDTH / 2
            bend = -0.6 if x - positions[start][0] > 1.5 * GAP[0] else 0.0  # above boxes in between
            style = {
                "arrowstyle": "-|>",
                "color": SOFT,
                "lw": 1.4,
                "connectionstyle": f"arc3,rad={bend}",
                "shrinkA": 0,
                "shrinkB": 0,
            }
            axes.annotate("", (right, y), (left, positions[start][1]), arrowprops=style, zorder=0)
            middle = ((left + right) / 2, (y + positions[start][1]) / 2 - bend * (right - left) / 2)
            label_box = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none"}
            axes.text(*middle, _number(local), fontsize=9, color=INK, ha="center", va="center", bbox=label_box)
        box = FancyBboxPatch(
            (x - BOX_WIDTH / 2, y - height / 2),
            BOX_WIDTH,
            height,
            boxstyle="round,pad=0,rounding_size=0.12",
            fc="#f4f7fb",
            ec=SOFT,
        )
        axes.add_patch(box)
        lines = [
            (node.name if node.op == "input" else f"{node.name}: {node.op}", INK),
            (f"s = {_number(node.value)}", ACCENT),
            (f"t = {_number(tangents[k])}", GREEN),
            (f"r = {_number(adjoints[k])}", WARM),
            (f"r' = {_number(bends[k])}", PURPLE),
        ][: 5 if second else 4]
        for line, (text, colour) in enumerate(lines):
            axes.text(
                x, y + height / 2 - BOX_HEIGHT * (0.14 + 0.24 * line), text, fontsize=9, color=colour, ha="center", va="center"
            )
    xs, ys = zip(*positions, strict=True)
    axes.set(
        xlim=(min(xs) - BOX_WIDTH, max(xs) + BOX_WIDTH), ylim=(min(ys) - BOX_HEIGHT, max(ys) + 1.4 * BOX_HEIGHT), aspect="equal"
    )
    axes.set_title(title, fontsize=10, color=INK)
    axes.axis("off")


def _two_graphs(titles: tuple[str, str], along: tuple[float, ...], second: bool, legend: str) -> Figure:
    fig = figure(13, 4.5 if second else 4.2)
    left, right = fig.subplots(1, 2, width_ratios=(1, 1.5))
    three = torch.tensor(3.0, dtype=torch.float64)
    _draw_graph(left, record(lambda x: x + x**2, three), titles[0], (1.0,), second)
    pair = (torch.tensor(0.5, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64))
    _draw_graph(right, record(lambda a, b: torch.sin(a * b) + b.exp(), pair), titles[1], along, second)
    sweeps = (
        "blue s: value,  green t: tangent, carried forward,  orange r: adjoint, carried backward,  on arrows: local derivatives"
    )
    fig.supxlabel(sweeps + legend, fontsize=9, color=INK)
    return fig


def graphs() -> Figure:
    """Draw two computations with values, tangents, adjoints and local derivatives."""
    titles = ("x + x² at x = 3: both modes give the derivative 7", "sin(x1 x2) + exp(x2) at (0.5, 2), along (1, 1)")
    return _two_graphs(titles, (1.0, 1.0), False, "")


def second_sweeps() -> Figure:
    """Draw the same computations with second-order adjoints, whose last ones are a column of the Hessian."""
    titles = (
        "x + x² at x = 3: r' of x is the second derivative, 2",
        "sin(x1 x2) + exp(x2) at (0.5, 2), along (0, 1): r' of x is H (0, 1)",
    )
    legend = "\npurple r': adjoint of second order, the derivative of r along v, carried backward by r' J + r (dJ/ds t)"
    return _two_graphs(titles, (0.0, 1.0), True, legend)


def _chain(x: Tensor) -> Tensor:
    for _ in range(DEPTH):
        x = torch.tanh(x)
    return x


def memory() -> Figure:
    """Draw the allocated bytes after each operation of a chain, in both modes."""
    fig = figure(8, 3.8)
    axes = fig.subplots()
    x = torch.linspace(-1, 1, 100_000)
    measured = profile(_chain, x, rounds=1)
    for name, cost, colour in (("reverse: u^T J", measured.reverse, WARM), ("forward: J v", measured.forward, GREEN)):
        megabytes = np.array(cost.memory) / 2**20
        label = f"{name}, peak {megabytes.max():.1f} MB"
        axes.plot(np.linspace(0, 1, len(megabytes)), megabytes, color=colour, label=label)
        axes.fill_between(np.linspace(0, 1, len(megabytes)), megabytes, color=colour, alpha=0.12, lw=0)
    axes.set(xlabel="share of operations completed", ylabel="allocated memory, MB", xlim=(0, 1), ylim=(0, None))
    axes.set_title(f"memory of one product through {DEPTH} layers of width 100,000", fontsize=10, color=INK)
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return fig


def _dense(n: int, m: int) -> Callable[[Tensor], Tensor]:
    random = torch.Generator().manual_seed(0)
    first, last = torch.randn(64, n, generator=random), torch.randn(m, 64, generator=random)
    return lambda x: last @ torch.tanh(first @ x)


def modes() -> Figure:
    """Draw operations and time of a full Jacobian in each mode by n and m."""
    fig = figure(11, 3.9)
    sizes = [1, 4, 16, 64, 256]
    shapes: tuple[Callable[[int], tuple[int, int]], ...] = (lambda k: (k, 16), lambda k: (16, k))
    titles = ("n inputs, 16 outputs", "16 inputs, m outputs")
    for axes, title, shape, size in zip(fig.subplots(1, 2, sharey=True), titles, shapes, "nm", strict=True):
        profiles = [profile(_dense(*shape(k)), torch.ones(shape(k)[0])) for k in sizes]
        flops = ([p.inputs * p.forward.flops for p in profiles], [p.outputs * p.reverse.flops for p in profiles])
        times = ([p.forward_seconds for p in profiles], [p.reverse_seconds for p in profiles])
        for k, (name, colour) in enumerate((("forward", GREEN), ("reverse", WARM))):
            axes.plot(sizes, flops[k], color=colour, marker="o", label=f"{name}, operations")
            axes.plot(sizes, np.array(times[k]) * 1e9, color=colour, ls=":", marker=".", label=f"{name}, nanoseconds")
        axes.axvline(16, color=SOFT, lw=0.8)
        axes.set(xscale="log", yscale="log", xlabel=size)
        axes.set_title(f"full Jacobian: {title}", fontsize=10, color=INK)
        axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return fig


def second_order() -> Figure:
    """Draw time and memory of a Hessian-vector product in four mode combinations by n."""
    fig = figure(11, 3.9)
    sizes = [16, 64, 256, 1024]
    left, right = fig.subplots(1, 2)
    for (mode, product), colour in zip(PRODUCTS.items(), CYCLE, strict=False):
        costs = []
        for n in sizes:
            f = _dense(n, 1)
            x = torch.ones(n) / n
            costs.append(measure(lambda f=f, x=x, product=product: product(lambda y: f(y).sum(), x, x), 3))  # type: ignore[misc]
        label = f"{mode.replace('-', ' ')} ({PASSES[mode]})"
        left.plot(sizes, [c.seconds * 1e3 for c in costs], color=colour, marker="o", label=label)
        right.plot(sizes, [c.peak_bytes / 1024 for c in costs], color=colour, marker="o", label=label)
    for axes, what in ((left, "time, ms"), (right, "peak memory, kB")):
        axes.set(xscale="log", yscale="log", xlabel="n", ylabel=what)
        axes.set_title(f"one Hessian-vector product: {what}", fontsize=10, color=INK)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, fontsize=8)
    return fig


def hessian_runs(n: int, mode: str, rounds: int = 5) -> tuple[int, Cost, Cost]:
    """Return the runs that the Hessian of a network of n inputs takes, the cost of one run, and of all in one batch.

    A run gives H v, or one value w^T H v by forward on forward.
    """
    f, x = _dense(n, 1), torch.ones(n) / n
    is_scalar = mode == "forward-on-forward"
    scalar: Callable[[Tensor], Tensor] = lambda y: f(y).sum()  # noqa: E731
    single = measure(lambda: bilinear(scalar, x, x, x) if is_scalar else hvp(scalar, x, x, mode), rounds)
    return n**2 if is_scalar else n, single, measure(lambda: hessian(scalar, x, mode), rounds)


def hessians() -> Figure:
    """Draw operations and time of a full Hessian in four mode combinations: run by run, and in one batch."""
    fig = figure(11, 3.9)
    sizes = [4, 8, 16, 32, 64, 128]
    left, right = fig.subplots(1, 2)
    values = np.array([profile(_dense(n, 1), torch.ones(n), rounds=0).value.flops for n in sizes])
    for mode, colour in zip(PRODUCTS, CYCLE, strict=False):
        runs, single, batched = zip(*(hessian_runs(n, mode) for n in sizes), strict=True)
        label = f"{mode.replace('-', ' ')}, {'n²' if runs[0] > sizes[0] else 'n'} runs"
        left.plot(sizes, np.array(runs) * [c.flops for c in single] / values, color=colour, marker="o", label=label)
        left.plot(sizes, [c.flops for c in batched] / values, color=colour, ls=":")
        right.plot(sizes, np.array(runs) * [c.seconds for c in single], color=colour, marker="o", label=label)
        right.plot(sizes, [c.seconds for c in batched], color=colour, ls=":")
    left.set(ylabel="operations / those of f")
    right.set(ylabel="time, s")
    for axes, what in ((left, "operations"), (right, "time")):
        axes.set(xscale="log", yscale="log", xlabel="n")
        axes.set_xticks(sizes, [str(n) for n in sizes], minor=False)
        axes.set_xticks([], minor=True)
        axes.set_title(f"{what} of a full Hessian: sequential runs, dotted: one batch", fontsize=10, color=INK)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, fontsize=8)
    return fig


def uncertainty(seed: int = 3) -> Figure:
    """Draw the optimal denoiser's posterior standard deviation of each pixel while inpainting the lower half of a digit."""
    images, _ = load_data("digits8").batch(torch.arange(1500))
    data = images.double() * 2 - 1
    schedule = Cosine()
    truth, denoiser = data[:1], DatasetDenoiser(schedule, data[1:])
    known = torch.zeros(8, 8, dtype=torch.bool)
    known[:4] = True
    noise = Noise(image_seeds(seed, 1))
    eps = noise.like(truth)
    x, times = noise.like(truth), np.linspace(0.95, 0.05, 46)
    drawn_steps = (5, 12, 20, 30)
    fig = figure(9.5, 4.4)
    axes = fig.subplots(2, 5)
    _picture(axes[0, 0], truth[0, 0], "original", "gray")
    _picture(axes[1, 0], torch.where(known, truth[0, 0], torch.zeros(())), "known pixels", "gray")
    column = 1
    for k, t in enumerate(times.tolist()):
        alpha, sigma = schedule(t)
        x = torch.where(known, alpha * truth + sigma * eps, x)
        pair = denoiser(x, t)
        if k in drawn_steps:
            deviation = posterior_variance(denoiser, x, t).clamp(min=0).sqrt()
            _picture(axes[0, column], pair.x0[0, 0], f"E[x0 | x], t = {t:.2f}", "gray")
            _picture(axes[1, column], deviation[0, 0], f"std, at most {float(deviation.max()):.2f}", "magma", (0, 1))
            column += 1
        x = pair.mix(*schedule(times[min(k + 1, len(times) - 1)]))
    return fig


def _picture(axes: Axes, image: Tensor, title: str, colours: str, limits: tuple[float, float] = (-1, 1)) -> None:
    axes.imshow(image.numpy(), cmap=colours, vmin=limits[0], vmax=limits[1], interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, fontsize=9, color=INK)


PICTURES = {
    "graph": graphs,
    "second-sweeps": second_sweeps,
    "memory": memory,
    "modes": modes,
    "second-order": second_order,
    "hessian": hessians,
    "square-root": square_root,
    "circle": circle,
    "programme": programme,
    "uncertainty": uncertainty,
}


def draw(out: Path) -> list[Path]:
    """Draw all figures into a folder and return the files."""
    check_folder(out)
    files = [out / f"{name}.png" for name in PICTURES]
    for path, make in zip(files, PICTURES.values(), strict=True):
        save(make(), path)
    return files
