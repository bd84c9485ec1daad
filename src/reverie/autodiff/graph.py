"""The computation behind a function as a graph that can be read, and derivatives carried along it by hand."""

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

SHOWN = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "power", "neg": "-", "sum": "Σ", "mean": "mean"}
SAME = ("view", "_unsafe_view", "alias", "clone", "expand", "unsqueeze", "squeeze")


@dataclass(frozen=True, eq=False)
class Node:
    """One value of a computation: s = op(inputs).

    inputs: the nodes it is made from; locals: d value / d input for each of them, (*value.shape, *input.shape); apply: the
    operation as a function of them.
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
    """The nodes of a computation in the order they were made; the first are the inputs, `output` is the result."""

    nodes: tuple[Node, ...]
    inputs: int
    output: int

    def tangents(self, v: Tensors) -> tuple[Tensor, ...]:
        """Carry tangents forward: t = sum of local derivatives times the tangents of the inputs.  v: in the form of x."""
        found = list(as_tuple(v, "v"))
        for node in self.nodes[self.inputs :]:
            parts = [_contract(local, found[k]) for k, local in zip(node.inputs, node.locals, strict=True)]
            found.append(torch.stack(parts).sum(0))
        return tuple(found)

    def adjoints(self, u: Tensor | None = None) -> tuple[Tensor, ...]:
        """Carry adjoints backward: every node adds its adjoint times the local derivative to its inputs' adjoints.

        u: in the form of the output, ones if not given.
        """
        found = [torch.zeros_like(node.value) for node in self.nodes]
        end = self.nodes[self.output].value
        found[self.output] = torch.ones_like(end) if u is None else u
        for place in range(len(self.nodes) - 1, self.inputs - 1, -1):
            node = self.nodes[place]
            for k, local in zip(node.inputs, node.locals, strict=True):
                found[k] = found[k] + torch.tensordot(found[place], local, dims=node.value.ndim)
        return tuple(found)

    def second_adjoints(self, v: Tensors) -> tuple[Tensor, ...]:
        """Carry second-order adjoints backward, the derivatives along v of the adjoints; those of the inputs are H v.

        With tangents t and adjoints r every node adds r' J + r (dJ/ds t) to those of its inputs, from r' = 0 at the output.
        The three combinations with a reverse sweep come down to this recurrence: forward on reverse pairs (r | r') as dual
        numbers, reverse on forward has r' as the adjoint of the value and r as that of the tangent, and reverse on reverse
        differentiates r J.  v: in the form of x.
        """
        tangents, adjoints = self.tangents(v), self.adjoints()
        found = [torch.zeros_like(node.value) for node in self.nodes]
        for place in range(len(self.nodes) - 1, self.inputs - 1, -1):
            node = self.nodes[place]
            at, along = (tuple(of[k] for k in node.inputs) for of in ([n.value for n in self.nodes], tangents))
            assert node.apply is not None
            bends = jvp(_slopes(node.apply, len(at)), at, along)[1]
            for k, local, bend in zip(node.inputs, node.locals, bends, strict=True):
                first = torch.tensordot(found[place], local, dims=node.value.ndim)
                found[k] = found[k] + first + torch.tensordot(adjoints[place], bend, dims=node.value.ndim)
        return tuple(found)


def _slopes(apply: Callable[..., Tensor], count: int) -> Callable[..., Any]:
    """Return the function that gives the local derivatives in each of so many inputs."""
    return torch.func.jacrev(apply, argnums=tuple(range(count)))


class _Recorder(TorchDispatchMode):
    def __init__(self, x: tuple[Tensor, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes = [Node(f"x{k + 1}" if len(x) > 1 else "x", "input", value, (), ()) for k, value in enumerate(x)]
        self.place = {id(value): k for k, value in enumerate(x)}
        self.local: dict[int, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {}  # differentiated when all is recorded
        self.alive: list[Any] = list(x)  # an id stays that of its tensor while the tensor lives

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        flat, form = tree_flatten((args, kwargs or {}))
        used = [k for k, leaf in enumerate(flat) if isinstance(leaf, Tensor) and id(leaf) in self.place]
        if not used:
            return func(*args, **(kwargs or {}))
        if func._schema.is_mutable:
            raise UserError(f"{func} writes in place, which a graph cannot show; use the form that returns a new tensor")

        def local(*given: Tensor) -> Tensor:
            again = list(flat)
            for k, value in zip(used, given, strict=True):
                again[k] = value
            positional, named = tree_unflatten(again, form)
            result: Tensor = func(*positional, **named)
            return result

        result = func(*args, **(kwargs or {}))
        if not isinstance(result, Tensor):
            raise UserError(f"{func} gives several results; record a function made of operations that give one tensor")
        self.alive.append(result)
        name = func._schema.name.removeprefix("aten::")
        if name == "detach" or not result.is_floating_point():  # a constant from here on
            return result
        places = [self.place[id(flat[k])] for k in used]
        if name in SAME and result.shape == flat[used[0]].shape:  # the same number under another handle
            self.place[id(result)] = places[0]
            return result
        self.place[id(result)] = len(self.nodes)
        self.nodes.append(Node(f"s{len(self.nodes)}", SHOWN.get(name, name), result, tuple(places), ()))
        self.local[len(self.nodes) - 1] = (local, tuple(flat[k] for k in used))
        return result


def record(f: Callable[..., Tensor], x: Tensors) -> Graph:
    """Run f at x and return the graph of its operations with values and local derivatives.

    Meant for functions small enough to look at: local derivatives are kept as whole matrices.
    """
    values = tuple(value.detach().clone() for value in as_tuple(x))
    with torch.no_grad(), _Recorder(values) as recorder:
        y = f(*values)
    if id(y) not in recorder.place:
        raise UserError("the result of this function does not depend on x, so there is no graph between them")
    nodes = list(recorder.nodes)
    for k, (local, at) in recorder.local.items():
        nodes[k] = replace(nodes[k], locals=_slopes(local, len(at))(*at), apply=local)
    return Graph(tuple(nodes), len(values), recorder.place[id(y)])
