"""Implicit functions: the square root, the circle with its singular points, a linear program."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from reverie.autodiff import implicit, jacobian, linear_program
from reverie.base.errors import UserError
from reverie.draw.picture import ACCENT, CYCLE, INK, SOFT, WARM, figure

GREEN = CYCLE[2]
STEPS = 8  # of the square-root iteration


def _number(a: float) -> Tensor:
    return torch.tensor(a, dtype=torch.float64)


def _set_title(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10, color=INK)
    axes.spines[["top", "right"]].set_visible(False)


def _babylonian(a: Tensor, steps: int = STEPS) -> Tensor:
    x = torch.ones_like(a)
    for _ in range(steps):
        x = (x + a / x) / 2
    return x


def square_root() -> Figure:
    """Draw the fixed point of x = (x + a / x) / 2, and errors of its derivative, implicit and by unrolled steps."""
    fig = figure(11, 3.9)
    left, right = fig.subplots(1, 2)
    a = _number(2.0)
    root = implicit(lambda x, a: x - (x + a / x) / 2, _babylonian)
    x = np.linspace(0.6, 2.6, 200)
    left.plot(x, (x + 2 / x) / 2, color=ACCENT, label="g(x, 2) = (x + 2 / x) / 2")
    left.plot(x, x, color=SOFT, lw=1, label="x")
    path = [float(_babylonian(a, k)) for k in range(4)]
    corners = [(path[0], path[0])] + [corner for p, q in pairwise(path) for corner in ((p, q), (q, q))]
    left.plot(*zip(*corners, strict=True), color=WARM, lw=1.2, marker=".", label="x = 1, g(1), g(g(1)), ...")
    slope = float(torch.func.grad(root)(a))
    left.plot([2**0.5], [2**0.5], "o", color=INK, ms=5, label=f"x = {float(root(a)):.6f}, dx/da = {slope:.6f}")
    left.set(xlabel="x", ylabel="g(x, a)")
    left.legend(frameon=False, fontsize=8)
    _set_title(left, "the square root of a = 2 as a fixed point")
    steps, true = range(1, STEPS), 0.5 / 2**0.5

    def by_theorem(k: int) -> float:
        return float(torch.func.grad(implicit(lambda x, b: x - (x + b / x) / 2, lambda b: _babylonian(b, k)))(a))

    errors = {
        "value after k steps": [float(_babylonian(a, k)) - 2**0.5 for k in steps],
        "derivative of the unrolled steps": [float(torch.func.grad(lambda b, k=k: _babylonian(b, k))(a)) - true for k in steps],
        "derivative by the theorem at that value": [by_theorem(k) - true for k in steps],
    }
    for (name, error), colour in zip(errors.items(), (SOFT, WARM, GREEN), strict=True):
        right.semilogy(steps, np.maximum(np.abs(error), 1e-17), color=colour, marker="o", ms=4, label=name)
    right.set(xlabel="steps of the iteration", ylabel="absolute error")
    right.legend(frameon=False, fontsize=8)
    _set_title(right, "the theorem needs the solution, not the steps")
    return fig


def circle() -> Figure:
    """Draw the circle x² + y² = 1 with slopes by the implicit function theorem, and the points where it does not apply."""
    fig = figure(10, 4.4)
    left, right = fig.subplots(1, 2)
    angle = np.linspace(0, 2 * np.pi, 400)
    left.plot(np.cos(angle), np.sin(angle), color=SOFT, lw=1)
    for sign, colour, name in ((1.0, ACCENT, "y > 0"), (-1.0, GREEN, "y < 0")):
        branch = implicit(lambda y, x: x * x + y * y - 1, lambda x, s=sign: s * (1 - x * x).clamp(min=0).sqrt())
        for x in (-0.9, -0.6, 0.0, 0.6, 0.9):
            y, slope = float(branch(_number(x))), float(torch.func.grad(branch)(_number(x)))
            half_width = 0.28 / np.hypot(1, slope)
            left.plot([x - half_width, x + half_width], [y - slope * half_width, y + slope * half_width], color=colour, lw=2)
            left.plot([x], [y], "o", color=colour, ms=4)
        inside = np.linspace(-0.995, 0.995, 200)
        slopes = jacobian(lambda x, f=branch: f(x), torch.from_numpy(inside)).diagonal()
        right.plot(inside, slopes.numpy(), color=colour, label=f"dy/dx = -x / y on {name}")
    reason = ""
    try:
        torch.func.grad(implicit(lambda y, x: x * x + y * y - 1, lambda x: (1 - x * x).clamp(min=0).sqrt()))(_number(1.0))
    except UserError as error:
        reason = str(error).split(" at the solution")[0]
    left.plot([-1, 1], [0, 0], "x", color=WARM, ms=10, mew=2.5)
    left.annotate(f"y = 0: {reason},\nno derivative", (1, 0), (0.1, -0.12), fontsize=9, color=WARM, ha="center", va="top",
                  arrowprops={"arrowstyle": "->", "color": WARM})  # fmt: skip
    left.set(xlabel="x", ylabel="y", aspect="equal", xlim=(-1.3, 1.3), ylim=(-1.3, 1.3))
    _set_title(left, "x² + y² = 1 with slopes by the theorem")
    for x in (-1, 1):
        right.axvline(x, color=WARM, lw=1, ls=":")
    right.set(xlabel="x", ylabel="dy/dx", ylim=(-8, 8))
    right.legend(frameon=False, fontsize=9)
    _set_title(right, "slopes diverge at the singular points")
    return fig


A = torch.tensor([[1.0, 1.0, 1.0, 0.0], [1.0, 3.0, 0.0, 1.0]], dtype=torch.float64)
B = torch.tensor([4.0, 6.0], dtype=torch.float64)
C = torch.tensor([-3.0, -5.0, 0.0, 0.0], dtype=torch.float64)
SHIFT = 0.8  # of the first constraint, in the figure


def _draw_constraints(axes: Axes, b: Tensor, colour: str, style: str, label: str | None) -> None:
    x = np.linspace(0, 7, 2)
    axes.plot(x, float(b[0]) - x, color=colour, ls=style, lw=1.4, label=label)
    axes.plot(x, (float(b[1]) - x) / 3, color=colour, ls=style, lw=1.4)


def programme() -> Figure:
    """Draw the sensitivity of solution and value of a linear program to a constraint."""
    fig = figure(11.5, 4.2)
    left, right = fig.subplots(1, 2)
    solved = linear_program(A, B, C)
    sensitivity = jacobian(lambda b: linear_program(A, b, C).x, B)  # dx / db, (4, 2)
    corners = np.array([(0, 0), (4, 0), (3, 1), (0, 2)])
    left.fill(*corners.T, color=ACCENT, alpha=0.12, lw=0)
    shifted = B + torch.tensor([SHIFT, 0.0], dtype=torch.float64)
    _draw_constraints(left, B, ACCENT, "-", "x1 + x2 = 4,  x1 + 3 x2 = 6")
    _draw_constraints(left, shifted, WARM, ":", f"first constraint raised to {float(shifted[0]):g}")
    x, slope = solved.x.numpy(), sensitivity[:, 0].numpy()
    left.annotate("", x[:2] + SHIFT * slope[:2], x[:2], arrowprops={"arrowstyle": "-|>", "color": WARM, "lw": 2,
                                                                     "shrinkA": 0, "shrinkB": 0})  # fmt: skip
    left.plot(*x[:2], "o", color=INK, label=f"solution ({x[0]:g}, {x[1]:g}), dx/db1 = ({slope[0]:g}, {slope[1]:g})")
    shifted_solution = linear_program(A, shifted, C).x
    left.plot(*shifted_solution[:2].numpy(), "s", color=WARM, ms=6, label="solution of the shifted problem")
    left.set(xlabel="x1", ylabel="x2", xlim=(0, 6.2), ylim=(0, 3.4))
    left.legend(frameon=False, fontsize=8, loc="upper right")
    _set_title(left, "max 3 x1 + 5 x2: the arrow is the derivative by the first constraint")
    limits = [0.5, 1.999, 2.001, 5.999, 6.001, 7.5]  # the value is linear in between, and degenerate at 2 and 6
    programs = [linear_program(A, torch.tensor([b, 6.0], dtype=torch.float64), C) for b in limits]
    right.plot(limits, [-float(p.value) for p in programs], color=ACCENT, label="value")
    for b in (1.2, 4.0, 6.8):
        program = linear_program(A, torch.tensor([b, 6.0], dtype=torch.float64), C)
        offsets = np.array([-0.7, 0.7])
        right.plot(b + offsets, -float(program.value) - float(program.y[0]) * offsets, color=WARM, lw=3, alpha=0.8)
        right.annotate(
            f"slope {0.0 - float(program.y[0]):g}", (b, -float(program.value)), (6, -14), textcoords="offset points", fontsize=9
        )
    for b in (2.0, 6.0):
        right.axvline(b, color=SOFT, lw=1, ls=":")
        right.text(b, 1, " degenerate", fontsize=8, color=SOFT)
    right.set(xlabel="first constraint b1", ylabel="maximum of 3 x1 + 5 x2", ylim=(0, 22))
    _set_title(right, "the slope of the value is the dual variable of the constraint")
    return fig
