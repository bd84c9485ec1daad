"""FVSBN and NADE: each pixel value given all before it, by logistic regression or one hidden layer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.errors import UserError
from reverie.base.noise import mix_seed
from reverie.diffusion.lattice import bumps, level_of
from reverie.families.autoregressive.model import Autoregressive, IncrementalDecoder
from reverie.families.autoregressive.recurrence import recurrence
from reverie.families.model import check_labelled

MAX_ONE_HOT = 64  # levels up to which the input is one-hot
FEATURES = 16  # default number of input features for more levels
MAX_WEIGHTS = 2**27
SILENT = -1e6  # initial activation of dropped hidden units, for which the ReLU is 0
INITIAL_STD = 0.5  # standard deviation of a hidden unit's input at initialization


def level_features(levels: int, count: int) -> Tensor:
    """Return the input features of each level: (K, Q).

    count: number of smooth functions of the level; 1 for the level itself, from -1 to 1; 0 for one-hot if there are few.
    Two levels are always -1 and 1.
    """
    if levels == 2 or count == 1:
        return torch.linspace(-1, 1, levels)[:, None]
    return torch.eye(levels) if not count and levels <= MAX_ONE_HOT else bumps(count or FEATURES, levels).T.contiguous()


class LevelAutoregressive(Autoregressive):
    """A model whose inputs are features of each level, minus their mean at that position.  bias: (D, P), in `order`."""

    def __init__(self, features: int, **options: Any) -> None:
        super().__init__(**options)
        levels = self.codec.levels
        if levels is None:
            raise UserError("this family needs images, whose values have levels; give another family")
        self.features = nn.Buffer(level_features(levels, features), persistent=False)
        self.inputs, self.parameters_each = self.features.shape[1], self.observation.parameters
        self.centre = nn.Buffer(torch.zeros(self.size, self.inputs))
        self.bias = nn.Parameter(torch.zeros(self.size, self.parameters_each))

    @torch.no_grad()
    def initialize_with(self, z: Tensor) -> None:
        """Set the mean features of each position, and the bias to the parameters that fit each position alone."""
        self.centre.copy_(self.features[level_of(z.flatten(1), len(self.features))].mean(0)[self.order])
        self.bias.copy_(self.observation.initial_parameters(z).flatten(0, -2).to(self.bias)[self.order])

    def level_inputs(self, z: Tensor, first: int = 0) -> Tensor:
        """Return the features of values first, first + 1, ... of a sequence: (B, n, Q).  z: (B, n) in model units."""
        return self.features[level_of(z, len(self.features))] - self.centre[first : first + z.shape[1]]


class FVSBN(LevelAutoregressive):
    """y_i = b_i + sum_{j < i} W_ij x_j, logistic regression of each value on all before it (Neal 1992; Frey 1998).

    Each value has Q features and P parameters.  W: (D P, D Q); only its part below the diagonal is used.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(0 if (options["codec"].levels or 0) <= MAX_ONE_HOT else 1, **options)  # many levels: the level itself
        outputs, inputs = self.size * self.parameters_each, self.size * self.inputs
        if outputs * inputs > MAX_WEIGHTS:
            raise UserError(f"a belief network for images of {self.size:,} values has {outputs * inputs:,} weights, above the"
                            f" limit of {MAX_WEIGHTS:,}; give a smaller --size, or the family nade")  # fmt: skip
        self.weight = nn.Parameter(torch.zeros(outputs, inputs))
        earlier = torch.ones(self.size, self.size, dtype=torch.bool).tril(-1)
        self.earlier = nn.Buffer(
            earlier.repeat_interleave(self.parameters_each, 0).repeat_interleave(self.inputs, 1), persistent=False
        )
        self.label = nn.Parameter(torch.zeros(self.label_count, outputs)) if self.label_count else None

    def output_parameters(self, z: Tensor, cond: Tensor | None) -> Tensor:
        """See `Autoregressive.output_parameters`."""
        weight = self.weight.masked_fill(~self.earlier, 0)
        y = functional.linear(self.level_inputs(z).flatten(1), weight, self.bias.flatten())
        y = y if self.label is None or cond is None else y + self.label[cond]
        parameters: Tensor = y.unflatten(1, (self.size, -1))
        return parameters

    def incremental_decoder(self, count: int, cond: Tensor | None, order: Tensor) -> IncrementalDecoder:
        """See `Autoregressive.incremental_decoder`."""
        return _FVSBNDecoder(self, count, cond)


class _FVSBNDecoder(IncrementalDecoder):
    def __init__(self, model: FVSBN, count: int, cond: Tensor | None) -> None:
        self.model, self.i = model, 0
        self.x = model.bias.new_empty(count, model.size * model.inputs)
        self.base = model.bias.flatten().expand(count, -1)
        if model.label is not None and cond is not None:
            self.base = self.base + model.label[cond]

    def next_parameters(self) -> Tensor:
        model, rows = self.model, slice(self.i * self.model.parameters_each, (self.i + 1) * self.model.parameters_each)
        before = self.i * model.inputs
        return self.base[:, rows] + self.x[:, :before] @ model.weight[rows, :before].T

    def append(self, z: Tensor) -> None:
        width = self.model.inputs
        self.x[:, self.i * width : (self.i + 1) * width] = self.model.level_inputs(z[:, None], self.i)[:, 0]
        self.i += 1

    def select(self, index: Tensor) -> None:
        self.x, self.base = self.x[index], self.base[index]


class NADE(LevelAutoregressive):
    """y_i = b_i + relu(a_i) V_i,  a_i = c + sum_{j < i} x_j W_j: one hidden layer with weights shared by all values.

    (Larochelle and Murray 2011; arXiv:1605.02226.)  orderless: trained for random orders, with one more input that marks known
    values, so that any order can be generated (arXiv:1310.1757).  dropout: share of hidden units dropped in training, for all
    values of a datum.
    """

    def __init__(self, hidden: int, orderless: bool, dropout: float = 0.0, features: int = 0, **options: Any) -> None:
        super().__init__(features, **options)
        self.orderless, self.hidden, self.dropout = orderless, hidden, dropout
        width = self.inputs + orderless
        into = torch.empty(self.size, width, hidden)
        self.into = nn.Parameter(into if into.is_meta else into.normal_())
        self.out = nn.Parameter(torch.zeros(self.size, hidden, self.parameters_each))
        self.first = nn.Parameter(torch.zeros(hidden))
        self.label = nn.Parameter(torch.zeros(self.label_count, hidden)) if self.label_count else None

    @torch.no_grad()
    def initialize_with(self, z: Tensor) -> None:
        """Scale the initial weights by the variance of all input features together."""
        super().initialize_with(z)
        variance = float(self.level_inputs(z.flatten(1)[:, self.order]).square().sum(1).mean(0).sum())
        self.into.mul_(INITIAL_STD / math.sqrt(max(variance, 1e-6)))
        if self.orderless:
            self.into[:, -1].zero_()

    def _first(self, count: int, cond: Tensor | None) -> Tensor:
        """Return a_1: (B, H)."""
        check_labelled(self.label_count, cond, count)
        return self.first.expand(count, -1) if self.label is None or cond is None else self.first + self.label[cond]

    def inputs_with_mask(self, z: Tensor, first: int = 0) -> Tensor:
        """Return input features, with `orderless` followed by a 1 that marks known values: (B, n, Q or Q + 1)."""
        features = self.level_inputs(z, first)
        return functional.pad(features, (0, 1), value=1.0) if self.orderless else features

    def output_parameters(self, z: Tensor, cond: Tensor | None) -> Tensor:
        """See `Autoregressive.output_parameters`."""
        return recurrence(self.inputs_with_mask(z), self.into, self._first(len(z), cond), self.out, self.bias)

    def loss(self, x: Tensor, cond: Tensor | None, seed: int) -> Tensor:
        """Return the negative log-likelihood in nats per dimension; with `orderless`, an estimate of its mean over orders.

        The unbiased estimate draws d, then d known values, and averages the loss of the others (arXiv:1310.1757, eq. 10).
        """
        z = self.codec.encode(x).flatten(1)[:, self.order]
        random = torch.Generator().manual_seed(mix_seed(seed, 1))
        first, scale = self._first(len(z), cond), 1.0
        if self.training and self.dropout:
            dropped = torch.rand(first.shape, generator=random) < self.dropout
            first, scale = first.masked_fill(dropped.to(z.device), SILENT), 1 / (1 - self.dropout)
        if not (self.orderless and self.training):
            y = recurrence(self.inputs_with_mask(z), self.into, first, scale * self.out, self.bias)
            return -self.observation.log_prob(z, y).mean(1)
        known_count = torch.randint(self.size, (len(z), 1), generator=random)
        rank = torch.rand(len(z), self.size, generator=random).argsort(1).argsort(1)
        known = (rank < known_count).to(z.device)[..., None]
        inputs = (self.inputs_with_mask(z) * known).flatten(1)
        hidden = scale * torch.addmm(first, inputs, self.into.flatten(0, 1)).relu()
        y = (hidden @ self.out.movedim(1, 0).flatten(1)).unflatten(1, (self.size, -1)) + self.bias
        log_p = self.observation.log_prob(z, y) * ~known[..., 0]
        return -log_p.sum(1) / (self.size - known_count[:, 0].to(z.device))

    def order_around(self, seen: Tensor) -> Tensor:
        """Return an order with known values first, for orderless models."""
        order = super().order_around(seen)
        return torch.cat([order[seen[order]], order[~seen[order]]]) if self.orderless else order

    def incremental_decoder(self, count: int, cond: Tensor | None, order: Tensor) -> IncrementalDecoder:
        """See `Autoregressive.incremental_decoder`."""
        return _NADEDecoder(self, self._first(count, cond), order)


class _NADEDecoder(IncrementalDecoder):
    def __init__(self, model: NADE, first: Tensor, order: Tensor) -> None:
        self.model, self.a, self.i = model, first, 0
        rank = torch.empty_like(order)
        rank[model.order] = torch.arange(len(order), device=order.device)
        self.rows = rank[order].tolist()  # indices of parameters, which are in the model's own order

    def next_parameters(self) -> Tensor:
        row = self.rows[self.i]
        return torch.addmm(self.model.bias[row], self.a.relu(), self.model.out[row])

    def append(self, z: Tensor) -> None:
        row = self.rows[self.i]
        self.a = torch.addmm(self.a, self.model.inputs_with_mask(z[:, None], row)[:, 0], self.model.into[row])
        self.i += 1

    def select(self, index: Tensor) -> None:
        self.a = self.a[index]
