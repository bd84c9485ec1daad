"""The computational graph of a function, with explicit forward and reverse sweeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from reverie.autodiff.modes import Tensors, as_tuple, jvp
from reverie.base.errors import UserError

OP_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "power", "neg": "-", "sum": "Σ", "mean": "mean"}
ALIASING_OPS = ("view", "_unsafe_view", "alias", "clone", "expand", "unsqueeze", "squeeze")


@dataclass(frozen=True, eq=False)
class Node:
    """One value of a computation: s = op(inputs).

    inputs: indices of the input nodes; locals: d value / d input for each of them, (*value.shape, *input.shape); apply: the
    operation as a function of its inputs.
    """

    name: str
    op: str
    value: Tensor
    inputs: tuple[int, ...]
    locals: tuple[Tensor, ...]
    apply: Callable[..., Tensor] | None = None


def _contract(local: Tensor, t: Tensor) -> Tensor:
    product: Tensor = torch.tensordot(local, t, dims=t.ndim)
    return product


@dataclass(frozen=True, eq=False)
class Graph:
    """The nodes of a computation in topological order; the first are the inputs, `output` is the index of the result."""

    nodes: tuple[Node, ...]
    inputs: int
    output: int

    def tangents(self, v: Tensors) -> tuple[Tensor, ...]:
        """Propagate tangents forward: t = sum of local derivatives times tangents of the inputs.  v: same structure as x."""
        tangents = list(as_tuple(v, "v"))
        for node in self.nodes[self.inputs :]:
            parts = [_contract(local, tangents[k]) for k, local in zip(node.inputs, node.locals, strict=True)]
            tangents.append(torch.stack(parts).sum(0))
        return tuple(tangents)

    def adjoints(self, u: Tensor | None = None) -> tuple[Tensor, ...]:
        """Propagate adjoints backward: every node adds its adjoint times the local derivative to the adjoints of its inputs.

        u: same shape as the output, default ones.
        """
        adjoints = [torch.zeros_like(node.value) for node in self.nodes]
        end = self.nodes[self.output].value
        adjoints[self.output] = torch.ones_like(end) if u is None else u
        for index in range(len(self.nodes) - 1, self.inputs - 1, -1):
            node = self.nodes[index]
            for k, local in zip(node.inputs, node.locals, strict=True):
                adjoints[k] = adjoints[k] + torch.tensordot(adjoints[index], local, dims=node.value.ndim)
        return tuple(adjoints)

    def second_adjoints(self, v: Tensors) -> tuple[Tensor, ...]:
        """Propagate second-order adjoints backward, the derivatives of the adjoints along v; those of the inputs are H v.

        With tangents t and adjoints r every node adds r' J + r (dJ/ds t) to those of its inputs, from r' = 0 at the output.
        All three combinations that include a reverse sweep reduce to this recurrence.  v: same structure as x.
        """
        tangents, adjoints = self.tangents(v), self.adjoints()
        result = [torch.zeros_like(node.value) for node in self.nodes]
        for index in range(len(self.nodes) - 1, self.inputs - 1, -1):
            node = self.nodes[index]
            at, along = (tuple(of[k] for k in node.inputs) for of in ([n.value for n in self.nodes], tangents))
            assert node.apply is not None
            second_derivatives = jvp(_local_derivatives(node.apply, len(at)), at, along)[1]
            for k, local, second in zip(node.inputs, node.locals, second_derivatives, strict=True):
                first = torch.tensordot(result[index], local, dims=node.value.ndim)
                result[k] = result[k] + first + torch.tensordot(adjoints[index], second, dims=node.value.ndim)
        return tuple(result)


def _local_derivatives(apply: Callable[..., Tensor], count: int) -> Callable[..., Any]:
    """Return the function that computes the local derivatives with respect to each of its `count` inputs."""
    return torch.func.jacrev(apply, argnums=tuple(range(count)))


class _Recorder(TorchDispatchMode):
    def __init__(self, x: tuple[Tensor, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes = [Node(f"x{k + 1}" if len(x) > 1 else "x", "input", value, (), ()) for k, value in enumerate(x)]
        self.index = {id(value): k for k, value in enumerate(x)}
        self.local: dict[int, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {}  # differentiated after recording
        self.alive: list[Any] = list(x)  # keeps tensors alive, so that ids stay unique

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        flat, form = tree_flatten((args, kwargs or {}))
        used = [k for k, leaf in enumerate(flat) if isinstance(leaf, Tensor) and id(leaf) in self.index]
        if not used:
            return func(*args, **(kwargs or {}))
        if func._schema.is_mutable:
            raise UserError(f"{func} is an in-place operation, which a graph cannot record; use the out-of-place form")

        def local(*inputs: Tensor) -> Tensor:
            leaves = list(flat)
            for k, value in zip(used, inputs, strict=True):
                leaves[k] = value
            positional, named = tree_unflatten(leaves, form)
            result: Tensor = func(*positional, **named)
            return result

        result = func(*args, **(kwargs or {}))
        if not isinstance(result, Tensor):
            raise UserError(f"{func} returns several results; record a function of operations that return one tensor")
        self.alive.append(result)
        name = func._schema.name.removeprefix("aten::")
        if name == "detach" or not result.is_floating_point():  # treated as a constant
            return result
        input_indices = [self.index[id(flat[k])] for k in used]
        if name in ALIASING_OPS and result.shape == flat[used[0]].shape:  # the same values under another view
            self.index[id(result)] = input_indices[0]
            return result
        self.index[id(result)] = len(self.nodes)
        self.nodes.append(Node(f"s{len(self.nodes)}", OP_SYMBOLS.get(name, name), result, tuple(input_indices), ()))
        self.local[len(self.nodes) - 1] = (local, tuple(flat[k] for k in used))
        return result


def record(f: Callable[..., Tensor], x: Tensors) -> Graph:
    """Run f at x and return the graph of its operations with values and local derivatives.

    For small functions: local derivatives are stored as dense matrices.
    """
    values = tuple(value.detach().clone() for value in as_tuple(x))
    with torch.no_grad(), _Recorder(values) as recorder:
        y = f(*values)
    if id(y) not in recorder.index:
        raise UserError("the result of this function does not depend on x, so there is no graph")
    nodes = list(recorder.nodes)
    for k, (local, at) in recorder.local.items():
        nodes[k] = replace(nodes[k], locals=_local_derivatives(local, len(at))(*at), apply=local)
    return Graph(tuple(nodes), len(values), recorder.index[id(y)])
