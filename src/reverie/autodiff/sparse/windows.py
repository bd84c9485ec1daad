"""Rules of convolution, pooling and interpolation, whose receptive fields are products over the spatial dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from reverie.autodiff.sparse.tracer import Call, Pattern, Rule, dense_rows, flat_indices, from_edges, union


def _per_dim(value: Any, sides: int, default: Any) -> list[int]:
    if isinstance(value, int):
        return [value] * sides
    value = list(value) if value is not None and len(value) else default
    return list(value) * (sides if len(value) == 1 else 1)


def window(inputs: int, outputs: int, kernel: int, stride: int, padding: int, dilation: int) -> Pattern:
    """Return the (outputs, inputs) receptive field of a window along one dimension: i = o stride - padding + k dilation."""
    o, k = (a.ravel() for a in np.meshgrid(np.arange(outputs), np.arange(kernel), indexing="ij"))
    i = o * stride - padding + k * dilation
    inside = (i >= 0) & (i < inputs)
    return from_edges(o[inside], i[inside], (outputs, inputs))


def kron_over_dims(fields: Sequence[Pattern], lead: int) -> Pattern:
    """Return the receptive field over all dimensions, equal for each of `lead` maps."""
    maps = sparse.eye_array(lead, dtype=bool, format="csr")
    field = reduce(lambda a, b: sparse.kron(a, b, "csr"), [maps, *fields])
    return sparse.csr_array(field.astype(bool))


def _windows(call: Call, inputs: Sequence[int], outputs: Sequence[int], kernel: Sequence[int]) -> list[Pattern]:
    sides = len(inputs)
    stride = _per_dim(call.args.get("stride"), sides, list(kernel))
    padding = _per_dim(call.args.get("padding"), sides, [0])
    dilation = _per_dim(call.args.get("dilation"), sides, [1])
    return [window(*side) for side in zip(inputs, outputs, kernel, stride, padding, dilation, strict=True)]


def _conv_field(call: Call, x: Sequence[int], y: Sequence[int]) -> Pattern:
    """Return the receptive field of outputs of shape y in inputs of shape x, including channels: (y.numel, x.numel)."""
    kernel = call.args["weight"].shape[2:]
    if call.args["transposed"]:
        fields = [sparse.csr_array(r.T) for r in _windows(call, y[2:], x[2:], kernel)]
    else:
        fields = _windows(call, x[2:], y[2:], kernel)
    groups = call.args["groups"]
    channels = sparse.csr_array(np.ones((y[1] // groups, x[1] // groups), bool))
    joined = [sparse.eye_array(groups, dtype=bool, format="csr"), channels, *fields]
    return kron_over_dims(joined, x[0])


def convolution(call: Call) -> list[Pattern | None]:
    """Each output depends on the channels of its group in its window."""
    out, x = call.outputs[0], call.args["input"]
    input_rows = call.rows("input")
    field_rows = _conv_field(call, x.shape, out.shape) @ input_rows if input_rows is not None else None
    bias = call.rows("bias")
    if bias is not None:
        channel = flat_indices((out.shape[1],)).reshape(1, -1, *[1] * (out.ndim - 2)).expand(out.shape)
        bias = bias[channel.reshape(-1).numpy()]
    return [union(field_rows, bias, dense_rows(call.rows("weight"), out.numel()))]


def convolution_backward(call: Call) -> list[Pattern | None]:
    """The gradient of the input depends on the outputs it contributes to; those of weight and bias on everything."""
    grad, x = call.args["grad_output"], call.args["input"]
    rows = call.rows("grad_output")
    results: list[Pattern | None] = []
    names = [name for name, requested in zip(("input", "weight", "bias"), call.args["output_mask"], strict=True) if requested]
    for name, out in zip(names, call.outputs, strict=True):
        if name == "input":
            field_rows = _conv_field(call, x.shape, grad.shape).T.tocsr() @ rows if rows is not None else None
            results.append(union(field_rows, dense_rows(call.rows("weight"), out.numel())))
        else:
            other = call.rows("input") if name == "weight" else None
            results.append(union(dense_rows(rows, out.numel()), dense_rows(other, out.numel())))
    return results


def _apply(field: Pattern, rows: Pattern | None) -> Pattern | None:
    return field @ rows if rows is not None else None


def _pool(sides: int, backward: bool) -> Rule:
    def rule(call: Call) -> list[Pattern | None]:
        small, large = (call.args["grad_output"], call.args["self"]) if backward else (call.outputs[0], call.args["self"])
        kernel = _per_dim(call.args["kernel_size"], sides, None)
        fields = _windows(call, large.shape[-sides:], small.shape[-sides:], kernel)
        field = kron_over_dims(fields, int(np.prod(large.shape[:-sides])))
        if backward:
            return [_apply(field.T.tocsr(), call.rows("grad_output"))]
        return [_apply(field, call.rows("self"))] * len(call.outputs)

    return rule


def _linear(sides: int, one_dim: Callable[[Call, Tensor, int, int], Tensor], backward: bool = False) -> Rule:
    """Return the rule of a linear map that factorizes over dimensions, found by running the operation on unit vectors.

    one_dim(call, eye, side, outputs) runs it along one dimension, (1, n, n, 1...) -> (1, n, outputs, 1...).
    """

    def rule(call: Call) -> list[Pattern | None]:
        source = call.args["grad_output"] if backward else call.args["self"]
        out = call.outputs[0]
        fine, coarse = (out, source) if backward else (source, out)
        fields = []
        for side in range(sides):
            n, m = fine.shape[fine.ndim - sides + side], coarse.shape[coarse.ndim - sides + side]
            eye = torch.eye(n, dtype=torch.float64).reshape(1, n, n, *[1] * (sides - 1))
            values = one_dim(call, eye, side, m).reshape(n, m)
            fields.append(sparse.csr_array((values.T != 0).numpy()))
        field = kron_over_dims(fields, int(np.prod(fine.shape[: fine.ndim - sides])))
        return [_apply(field.T.tocsr() if backward else field, call.rows("grad_output" if backward else "self"))]

    return rule


def _interpolation(name: str, sides: int) -> Callable[[Call, Tensor, int, int], Tensor]:
    scales = {1: ["scales"], 2: ["scales_h", "scales_w"], 3: ["scales_d", "scales_h", "scales_w"]}[sides]
    op: Any = getattr(torch.ops.aten, name).default

    def one_dim(call: Call, eye: Tensor, side: int, outputs: int) -> Tensor:
        chosen = [call.args.get(scales[side])] + [None] * (sides - 1)
        align = [call.args["align_corners"]] if "align_corners" in call.args else []
        out: Tensor = op(eye, [outputs] + [1] * (sides - 1), *align, *chosen)
        return out

    return one_dim


def _adaptive(sides: int) -> Callable[[Call, Tensor, int, int], Tensor]:
    pool: Any = {2: torch.nn.functional.adaptive_avg_pool2d, 3: torch.nn.functional.adaptive_avg_pool3d}[sides]
    return lambda call, eye, side, outputs: pool(eye, (outputs, *[1] * (sides - 1)))


def _padding(name: str) -> Rule:
    """Return the rule of the gradient of padding: every position sums over its copies."""
    op: Any = getattr(torch.ops.aten, name).default

    def rule(call: Call) -> list[Pattern | None]:
        x, grad = call.args["self"], call.args["grad_output"]
        positions = op(flat_indices(x.shape).double(), call.args["padding"]).reshape(-1).long().numpy()
        field = from_edges(positions, np.arange(len(positions)), (x.numel(), grad.numel()))
        return [_apply(field, call.rows("grad_output"))]

    return rule


def col2im(call: Call) -> list[Pattern | None]:
    """Overlapping blocks are summed into an image, the transpose of im2col."""
    x, out = call.args["self"], call.outputs[0]
    keys = ("kernel_size", "dilation", "padding", "stride")
    image = flat_indices(out.shape).double() + 1
    positions = torch.nn.functional.unfold(image.reshape(-1, *out.shape[-3:]), **{key: tuple(call.args[key]) for key in keys})
    flat = positions.reshape(-1).long().numpy()
    inside = np.flatnonzero(flat)
    return [_apply(from_edges(flat[inside] - 1, inside, (out.numel(), x.numel())), call.rows("self"))]


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
