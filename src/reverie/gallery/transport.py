"""Optimal transport: plans, potentials, convergence, and divergences between disjoint supports."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from torch import Tensor

from reverie.base.errors import ReverieWarning
from reverie.base.files import check_folder
from reverie.base.noise import check_seed
from reverie.data import load_data
from reverie.divergence import discrete
from reverie.draw.picture import ACCENT, CYCLE, INK, SOFT, WARM, axis_limits, figure, save, square_axes
from reverie.transport import Problem, between, exact, sinkhorn, wasserstein_1d

EPSILONS = (0.1, 0.01, 0.001)
GRID = 160
POINTS = 60


def _bumps(grid: Tensor, *parts: tuple[float, float, float]) -> Tensor:
    """Return a mixture of Gaussians, (weight, mean, std) each, on a grid, normalised to 1."""
    density = torch.stack([w / s * (-((grid - m) ** 2) / (2 * s**2)).exp() for w, m, s in parts]).sum(0)
    return density / density.sum()


def _line() -> tuple[Tensor, Tensor, Tensor, Problem]:
    grid = torch.linspace(0, 1, GRID, dtype=torch.float64)
    a, b = _bumps(grid, (0.6, 0.25, 0.07), (0.4, 0.55, 0.05)), _bumps(grid, (1.0, 0.7, 0.12))
    return grid, a, b, between(grid[:, None], grid[:, None], a, b)


def _plans(problem: Problem) -> dict[str, Tensor]:
    """Return the exact plan and entropic ones, by title."""
    exact_solution = exact(problem)
    plans = {f"exact\ncost {float(exact_solution.cost):.4f}": exact_solution.plan}
    for epsilon in reversed(EPSILONS):
        solution = sinkhorn(problem, epsilon, max_iterations=20_000)
        plans[f"epsilon {epsilon:.1%} of the mean cost\ncost {float(solution.cost()):.4f}"] = solution.plan()
    return plans


def _hide_axes(axes: Axes) -> None:
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def line() -> Figure:
    """Draw the plans between two distributions on a line, with the marginals."""
    grid, a, b, problem = _line()
    fig = figure(15, 4.6)
    plans = _plans(problem)
    panels: Any = fig.subfigures(1, len(plans))
    for part, (title, plan) in zip(panels, plans.items(), strict=True):
        panel = part.subplots(2, 2, width_ratios=(1, 5), height_ratios=(1, 5))
        _hide_axes(panel[0, 0])
        top, side, main = panel[0, 1], panel[1, 0], panel[1, 1]
        top.fill_between(grid, b, color=WARM, alpha=0.8, lw=0)
        side.fill_betweenx(grid, -a, color=ACCENT, alpha=0.8, lw=0)
        for axes in (top, side):
            _hide_axes(axes)
            axes.margins(0)
        root = (plan / plan.max()).sqrt()  # the square root shows small values
        main.imshow(root.numpy(), origin="lower", extent=(0, 1, 0, 1), cmap="magma_r", aspect="auto")
        main.set(xticks=[], yticks=[], xlabel="to", ylabel="from")
        top.set_title(title, fontsize=10, color=INK)
    return fig


def clouds(seed: int) -> Figure:
    """Draw the plans between two sets of points as lines whose darkness shows the mass."""
    x, _ = load_data("eight-gaussians", POINTS, seed).batch(torch.arange(POINTS))
    y, _ = load_data("moons", POINTS, seed + 1).batch(torch.arange(POINTS))
    fig = figure(15, 4.3)
    plans = _plans(between(x.double(), y.double()))
    limits = axis_limits(torch.cat([x, y]).numpy())
    for axes, (title, plan) in zip(fig.subplots(1, len(plans)), plans.items(), strict=True):
        square_axes(axes, limits, title)
        i, j = torch.nonzero(plan > 0.01 / POINTS, as_tuple=True)
        share = (plan[i, j] * POINTS).clamp(max=1).numpy()
        axes.add_collection(
            LineCollection(list(torch.stack([x[i], y[j]], 1).numpy()), colors=INK, alpha=share**0.7, linewidths=0.8)
        )
        axes.scatter(x[:, 0], x[:, 1], s=22, c=ACCENT, linewidths=0, zorder=2, label="from")
        axes.scatter(y[:, 0], y[:, 1], s=22, c=WARM, linewidths=0, zorder=2, label="to")
    fig.axes[0].legend(fontsize=8, loc="upper right", framealpha=0.9)
    return fig


def potentials() -> Figure:
    """Draw both potentials, exact and entropic, on the supports."""
    grid, a, b, problem = _line()
    fig = figure(11, 4)
    exact_solution = exact(problem)
    pairs = {"exact": (exact_solution.f, exact_solution.g)}
    for epsilon in reversed(EPSILONS):
        solution = sinkhorn(problem, epsilon, max_iterations=20_000)
        pairs[f"epsilon {epsilon:.1%}"] = (solution.f, solution.g)
    for axes, side, weights in zip(fig.subplots(1, 2), (0, 1), (a, b), strict=True):
        support = weights > 1e-4 * weights.max()
        background = axes.twinx()
        background.fill_between(grid, weights, color=SOFT, alpha=0.25, lw=0)
        background.set(yticks=[], ylim=(0, 3 * float(weights.max())))
        for k, (name, pair) in enumerate(pairs.items()):
            constant = (pair[0] * a).sum()  # potentials are determined up to a constant
            values = pair[side] + (constant if side else -constant)
            colour, style = (INK, "--") if k == 0 else (CYCLE[k - 1], "-")
            axes.plot(grid[support], values[support], color=colour, ls=style, lw=1.6, label=name)
        axes.set(xlabel="x", title=("f, of the first distribution", "g, of the second")[side])
        axes.set_ylabel("potential, in units of cost")
        axes.spines[["top", "right"]].set_visible(False)
        background.spines[:].set_visible(False)
    fig.axes[0].legend(frameon=False, fontsize=9)
    return fig


def convergence() -> Figure:
    """Draw the marginal error by iteration for several values of epsilon; it jumps where epsilon scaling reduces epsilon."""
    _, _, _, problem = _line()
    fig = figure(8, 4.2)
    axes = fig.subplots()
    for k, epsilon in enumerate(EPSILONS):
        solution = sinkhorn(problem, epsilon, tolerance=1e-9, max_iterations=20_000)
        axes.plot(
            np.arange(1, solution.iterations + 1), solution.errors, color=CYCLE[k], lw=1.4, label=f"epsilon {epsilon:.1%}"
        )
    axes.set(
        xlabel="iterations",
        ylabel="marginal error",
        xscale="log",
        yscale="log",
        title="Convergence of Sinkhorn with epsilon scaling",
    )
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return fig


def supports() -> Figure:
    """Draw divergences and the Wasserstein distance between two bumps as one is shifted."""
    grid = torch.linspace(0, 6, 601, dtype=torch.float64)

    def bump(centre: float) -> Tensor:
        return (1 - (grid - centre) ** 2).clamp(min=0)

    first, shifts = bump(1.0), np.arange(0, 401, 5) / 100
    kinds = {"Kullback-Leibler": "kl", "Jensen-Shannon": "jensen-shannon", "total variation": "total-variation"}
    rows: dict[str, list[float]] = {name: [] for name in (*kinds, "Wasserstein-1")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReverieWarning)  # infinite values are part of the figure
        for shift in shifts:
            second = bump(1.0 + float(shift))
            for name, kind in kinds.items():
                rows[name].append(float(discrete(first, second, kind)))
            rows["Wasserstein-1"].append(float(wasserstein_1d(grid, grid, first, second)))
    fig = figure(12, 4.2)
    left, right = fig.subplots(1, 2, width_ratios=(2, 3))
    for shift, colour in ((0.0, ACCENT), (0.8, CYCLE[2]), (3.0, WARM)):
        left.fill_between(grid, bump(1.0 + shift), color=colour, alpha=0.45, lw=0, label=f"shift {shift:g}")
    left.set(title="a bump and shifted copies", xlabel="x", yticks=[])
    left.legend(frameon=False, fontsize=9)
    ceiling = 4.4
    for k, (name, values) in enumerate(rows.items()):
        capped = [value if np.isfinite(value) else ceiling for value in values]
        right.plot(shifts, capped, color=CYCLE[k], lw=1.8, ls="-" if capped == values else ":", label=name)
    right.annotate("infinite", (1.0, ceiling), (1.0, ceiling + 0.08), color=CYCLE[0], ha="center", va="bottom", fontsize=9)
    right.axvline(2.0, color=SOFT, lw=1, ls="--")
    right.annotate("disjoint supports", (2.05, 0.1), color=SOFT, fontsize=9)
    right.set(
        title="only the transport distance grows with the shift",
        xlabel="shift",
        ylabel="divergence or distance",
        ylim=(0, ceiling + 0.5),
    )
    right.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(0.06, 0.66))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return fig


def draw(out: Path, seed: int = 0) -> list[Path]:
    """Draw all figures into a folder and return the files."""
    check_seed(seed)
    check_folder(out)
    pictures = {
        "line": line(), "clouds": clouds(seed), "potentials": potentials(), "convergence": convergence(),
        "supports": supports(),
    }  # fmt: skip
    for name, fig in pictures.items():
        save(fig, out / f"{name}.png")
    return [out / f"{name}.png" for name in pictures]
