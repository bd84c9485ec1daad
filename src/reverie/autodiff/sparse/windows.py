"""Convolution, pooling and interpolation: operations whose reach in space is a product of reaches along each side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from reverie.autodiff.sparse.tracer import Call, Pattern, Rule, links, numbered, spread, union


def _per_side(value: Any, sides: int, default: Any) -> list[int]:
    if isinstance(value, int):
        return [value] * sides
    value = list(value) if value is not None and len(value) else default
    return list(value) * (sides if len(value) == 1 else 1)


def window(inputs: int, outputs: int, kernel: int, stride: int, padding: int, dilation: int) -> Pattern:
    """Return which places a sliding window sees along one side: i = o stride - padding + k dilation.  (outputs, inputs)."""
    o, k = (a.ravel() for a in np.meshgrid(np.arange(outputs), np.arange(kernel), indexing="ij"))
    i = o * stride - padding + k * dilation
    inside = (i >= 0) & (i < inputs)
    return links(o[inside], i[inside], (outputs, inputs))


def over_space(reaches: Sequence[Pattern], lead: int) -> Pattern:
    """Return the reach over all sides together, the same for each of `lead` maps."""
    maps = sparse.eye_array(lead, dtype=bool, format="csr")
    whole = reduce(lambda a, b: sparse.kron(a, b, "csr"), [maps, *reaches])
    return sparse.csr_array(whole.astype(bool))


def _windows(call: Call, inputs: Sequence[int], outputs: Sequence[int], kernel: Sequence[int]) -> list[Pattern]:
    sides = len(inputs)
    stride = _per_side(call.args.get("stride"), sides, list(kernel))
    padding = _per_side(call.args.get("padding"), sides, [0])
    dilation = _per_side(call.args.get("dilation"), sides, [1])
    return [window(*side) for side in zip(inputs, outputs, kernel, stride, padding, dilation, strict=True)]


def _conv_reach(call: Call, x: Sequence[int], y: Sequence[int]) -> Pattern:
    """Return the reach of outputs of shape y in inputs of shape x, with their channels: (y numbers, x numbers)."""
    kernel = call.args["weight"].shape[2:]
    if call.args["transposed"]:
        reaches = [sparse.csr_array(r.T) for r in _windows(call, y[2:], x[2:], kernel)]
    else:
        reaches = _windows(call, x[2:], y[2:], kernel)
    groups = call.args["groups"]
    channels = sparse.csr_array(np.ones((y[1] // groups, x[1] // groups), bool))
    joined = [sparse.eye_array(groups, dtype=bool, format="csr"), channels, *reaches]
    return over_space(joined, x[0])


def convolution(call: Call) -> list[Pattern | None]:
    """Each output sees the channels of its group in its window."""
    out, x = call.outputs[0], call.args["input"]
    found = call.rows("input")
    seen = _conv_reach(call, x.shape, out.shape) @ found if found is not None else None
    bias = call.rows("bias")
    if bias is not None:
        channel = numbered((out.shape[1],)).reshape(1, -1, *[1] * (out.ndim - 2)).expand(out.shape)
        bias = bias[channel.reshape(-1).numpy()]
    return [union(seen, bias, spread(call.rows("weight"), out.numel()))]


def convolution_backward(call: Call) -> list[Pattern | None]:
    """The gradient of the input sees the outputs it reached; those of weight and bias see everything."""
    grad, x = call.args["grad_output"], call.args["input"]
    rows = call.rows("grad_output")
    results: list[Pattern | None] = []
    given = [name for name, wanted in zip(("input", "weight", "bias"), call.args["output_mask"], strict=True) if wanted]
    for name, out in zip(given, call.outputs, strict=True):
        if name == "input":
            seen = _conv_reach(call, x.shape, grad.shape).T.tocsr() @ rows if rows is not None else None
            results.append(union(seen, spread(call.rows("weight"), out.numel())))
        else:
            other = call.rows("input") if name == "weight" else None
            results.append(union(spread(rows, out.numel()), spread(other, out.numel())))
    return results


def _applied(reach: Pattern, rows: Pattern | None) -> Pattern | None:
    return reach @ rows if rows is not None else None


def _pool(sides: int, backward: bool) -> Rule:
    def rule(call: Call) -> list[Pattern | None]:
        small, large = (call.args["grad_output"], call.args["self"]) if backward else (call.outputs[0], call.args["self"])
        kernel = _per_side(call.args["kernel_size"], sides, None)
        reaches = _windows(call, large.shape[-sides:], small.shape[-sides:], kernel)
        reach = over_space(reaches, int(np.prod(large.shape[:-sides])))
        if backward:
            return [_applied(reach.T.tocsr(), call.rows("grad_output"))]
        return [_applied(reach, call.rows("self"))] * len(call.outputs)

    return rule


def _linear(sides: int, one_side: Callable[[Call, Tensor, int, int], Tensor], backward: bool = False) -> Rule:
    """Return the rule of a fixed linear map that is a product over the sides, asked of the operation itself.

    one_side(call, eye, side, outputs) runs it on unit vectors of one side, (1, n, n, 1...) -> (1, n, outputs, 1...).
    """

    def rule(call: Call) -> list[Pattern | None]:
        source = call.args["grad_output"] if backward else call.args["self"]
        out = call.outputs[0]
        fine, coarse = (out, source) if backward else (source, out)
        reaches = []
        for side in range(sides):
            n, m = fine.shape[fine.ndim - sides + side], coarse.shape[coarse.ndim - sides + side]
            eye = torch.eye(n, dtype=torch.float64).reshape(1, n, n, *[1] * (sides - 1))
            values = one_side(call, eye, side, m).reshape(n, m)
            reaches.append(sparse.csr_array((values.T != 0).numpy()))
        reach = over_space(reaches, int(np.prod(fine.shape[: fine.ndim - sides])))
        return [_applied(reach.T.tocsr() if backward else reach, call.rows("grad_output" if backward else "self"))]

    return rule


def _interpolation(name: str, sides: int) -> Callable[[Call, Tensor, int, int], Tensor]:
    scales = {1: ["scales"], 2: ["scales_h", "scales_w"], 3: ["scales_d", "scales_h", "scales_w"]}[sides]
    op: Any = getattr(torch.ops.aten, name).default

    def one_side(call: Call, eye: Tensor, side: int, outputs: int) -> Tensor:
        chosen = [call.args.get(scales[side])] + [None] * (sides - 1)
        align = [call.args["align_corners"]] if "align_corners" in call.args else []
        out: Tensor = op(eye, [outputs] + [1] * (sides - 1), *align, *chosen)
        return out

    return one_side


def _adaptive(sides: int) -> Callable[[Call, Tensor, int, int], Tensor]:
    pool: Any = {2: torch.nn.functional.adaptive_avg_pool2d, 3: torch.nn.functional.adaptive_avg_pool3d}[sides]
    return lambda call, eye, side, outputs: pool(eye, (outputs, *[1] * (sides - 1)))


def _padding(name: str) -> Rule:
    """Return the rule of the gradient of a padding: every place collects from its copies."""
    op: Any = getattr(torch.ops.aten, name).default

    def rule(call: Call) -> list[Pattern | None]:
        x, grad = call.args["self"], call.args["grad_output"]
        places = op(numbered(x.shape).double(), call.args["padding"]).reshape(-1).long().numpy()
        reach = links(places, np.arange(len(places)), (x.numel(), grad.numel()))
        return [_applied(reach, call.rows("grad_output"))]

    return rule


def col2im(call: Call) -> list[Pattern | None]:
    """Overlapping blocks are added into an image: the transpose of cutting it up."""
    x, out = call.args["self"], call.outputs[0]
    keys = ("kernel_size", "dilation", "padding", "stride")
    image = numbered(out.shape).double() + 1
    places = torch.nn.functional.unfold(image.reshape(-1, *out.shape[-3:]), **{key: tuple(call.args[key]) for key in keys})
    flat = places.reshape(-1).long().numpy()
    inside = np.flatnonzero(flat)
    return [_applied(links(flat[inside] - 1, inside, (out.numel(), x.numel())), call.rows("self"))]


SPATIAL: dict[str, Rule] = {
    "aten::convolution": convolution,
    "aten::convolution_backward": convolution_backward,
    "aten::max_pool2d_with_indices": _pool(2, False),
    "aten::max_pool2d_with_indices_backward": _pool(2, True),
    "aten::max_pool3d_with_indices": _pool(3, False),
    "aten::max_pool3d_with_indices_backward": _pool(3, True),
    "aten::avg_pool2d": _pool(2, False),
    "aten::avg_pool2d_backward": _pool(2, True),
    "aten::avg_pool3d": _pool(3, False),
    "aten::avg_pool3d_backward": _pool(3, True),
    "aten::_adaptive_avg_pool2d": _linear(2, _adaptive(2)),
    "aten::_adaptive_avg_pool2d_backward": _linear(2, _adaptive(2), backward=True),
    "aten::_adaptive_avg_pool3d": _linear(3, _adaptive(3)),
    "aten::_adaptive_avg_pool3d_backward": _linear(3, _adaptive(3), backward=True),
    "aten::adaptive_max_pool2d": _linear(2, _adaptive(2)),
    "aten::adaptive_max_pool2d_backward": _linear(2, _adaptive(2), backward=True),
    "aten::col2im": col2im,
    **{f"aten::{k}_pad{d}d_backward": _padding(f"{k}_pad{d}d") for k in ("reflection", "replication") for d in (1, 2, 3)},
    **{
        f"aten::{name}{suffix}": _linear(sides, _interpolation(name, sides), bool(suffix))
        for name, sides in (("upsample_linear1d", 1), ("upsample_bilinear2d", 2), ("upsample_bicubic2d", 2),
                            ("upsample_trilinear3d", 3))
        for suffix in ("", "_backward")
    },
    **{
        f"aten::upsample_nearest{sides}d_backward": _linear(sides, _interpolation(f"upsample_nearest{sides}d", sides), True)
        for sides in (1, 2, 3)
    },
}  # fmt: skip
