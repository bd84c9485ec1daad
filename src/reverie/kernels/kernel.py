"""Kernels: inner products k(x, y) = <phi(x), phi(y)> in a space of features that need not be written out."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations_with_replacement
from math import comb, factorial, prod, sqrt
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from reverie.base.distances import manhattan, squared
from reverie.base.errors import UserError

FEATURES = 10_000_000  # the most numbers that an explicit feature map may give for one point


class Kernel(ABC):
    """A positive semidefinite function of pairs.  kernel(x, y): (..., n, m) for x: (..., n, d) and y: (..., m, d)."""

    @abstractmethod
    def __call__(self, x: Any, y: Any) -> Tensor:
        """Return k(x_i, y_j) for all pairs: (..., n, m)."""

    def pairs(self, x: Any, y: Any) -> Tensor:
        """Return k(x_i, y_i): (n,)."""
        return self(x[:, None], y[:, None])[:, 0, 0]

    def log(self, x: Any, y: Any) -> Tensor:
        """Return log k(x_i, y_j), which for kernels that decay does not underflow: (..., n, m)."""
        return self(x, y).log()

    def __add__(self, other: Kernel) -> Kernel:
        return Combined((self, other), "sum")

    def __mul__(self, other: Kernel | float) -> Kernel:
        return Combined((self, other if isinstance(other, Kernel) else Constant(other)), "product")

    __rmul__ = __mul__


def _positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0 < number < float("inf"):
            raise UserError(f"the {name} of a kernel must be above 0, got {number}")


@dataclass(frozen=True)
class Combined(Kernel):
    """The sum or the product of kernels, which is a kernel again."""

    parts: tuple[Kernel, ...]
    how: str

    def _join(self, values: list[Tensor]) -> Tensor:
        return reduce(torch.add if self.how == "sum" else torch.mul, values)

    def __call__(self, x: Any, y: Any) -> Tensor:
        """Return the parts' values, added or multiplied."""
        return self._join([part(x, y) for part in self.parts])

    def pairs(self, x: Any, y: Any) -> Tensor:
        """Return the parts' values for pairs, added or multiplied."""
        return self._join([part.pairs(x, y) for part in self.parts])

    def log(self, x: Any, y: Any) -> Tensor:
        """Return the logarithm from those of the parts."""
        logs = [part.log(x, y) for part in self.parts]
        return torch.stack(logs).logsumexp(0) if self.how == "sum" else torch.stack(logs).sum(0)


@dataclass(frozen=True)
class Constant(Kernel):
    """k = value, which multiplies another kernel by a number."""

    value: float

    def __post_init__(self) -> None:
        _positive(factor=self.value)

    def __call__(self, x: Any, y: Any) -> Tensor:
        """Return one number for all pairs."""
        if isinstance(x, Tensor):
            return x.new_full((*x.shape[:-1], y.shape[-2]), self.value)
        return torch.full((len(x), len(y)), self.value, dtype=torch.float64)

    def pairs(self, x: Any, y: Any) -> Tensor:
        """Return the number once for each pair."""
        return self(x, y[:1])[:, 0]


@dataclass(frozen=True)
class Linear(Kernel):
    """k(x, y) = x · y."""

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the inner products."""
        return x @ y.mT


@dataclass(frozen=True)
class Polynomial(Kernel):
    """k(x, y) = (scale x · y + offset)^degree.  The kernel inception distance takes degree 3, offset 1, scale 1/d."""

    degree: int = 2
    offset: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        _positive(scale=self.scale, degree=self.degree)
        if self.offset < 0 or self.degree != int(self.degree):
            raise UserError(f"a polynomial kernel needs a whole degree and an offset of 0 or more, got {self}")

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the powers of the inner products."""
        return (self.scale * (x @ y.mT) + self.offset) ** self.degree

    def dimension(self, inputs: int) -> int:
        """Return how many features a point of so many coordinates has: C(n+d-1, d), with one coordinate more for an offset."""
        return comb(inputs + (self.offset > 0) + self.degree - 1, self.degree)

    def features(self, x: Tensor) -> Tensor:
        """Return phi(x) with phi(x) · phi(y) = k(x, y): (n, dimension).

        One feature for each monomial of the degree, times the root of its multinomial coefficient: for degree 2 in the plane
        x1², sqrt(2) x1 x2, x2².
        """
        x = x * sqrt(self.scale)
        if self.offset > 0:
            x = torch.cat([x, x.new_full((len(x), 1), sqrt(self.offset))], -1)
        if (count := comb(x.shape[-1] + self.degree - 1, self.degree)) > FEATURES:
            raise UserError(f"the feature map has {count:,} features; work with the kernel itself instead")
        columns = []
        for chosen in combinations_with_replacement(range(x.shape[-1]), self.degree):
            many = factorial(self.degree) / prod(factorial(k) for k in Counter(chosen).values())
            columns.append(x[:, list(chosen)].prod(-1) * sqrt(many))
        return torch.stack(columns, -1)


@dataclass(frozen=True)
class Decaying(Kernel):
    """A kernel of the distance alone, 1 where it is 0."""

    width: float = 1.0

    def __post_init__(self) -> None:
        _positive(width=self.width)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the kernel from its logarithm."""
        return self.log(x, y).exp()

    def _squared(self, x: Tensor, y: Tensor) -> Tensor:
        return squared(x / self.width, y / self.width).clamp(min=0)


@dataclass(frozen=True)
class Gaussian(Decaying):
    """k(x, y) = exp(-|x - y|² / (2 width²))."""

    def log(self, x: Tensor, y: Tensor) -> Tensor:
        """Return -|x - y|² / (2 width²)."""
        return self._squared(x, y) / -2


@dataclass(frozen=True)
class Laplace(Decaying):
    """k(x, y) = exp(-|x - y|_1 / width), with the sum of the coordinates' distances."""

    def log(self, x: Tensor, y: Tensor) -> Tensor:
        """Return -|x - y|_1 / width."""
        return -manhattan(x, y) / self.width


@dataclass(frozen=True)
class RationalQuadratic(Decaying):
    """k(x, y) = (1 + |x - y|² / (2 power width²))^-power, a mixture of Gaussian kernels of many widths."""

    power: float = 1.0

    def __post_init__(self) -> None:
        _positive(width=self.width, power=self.power)

    def log(self, x: Tensor, y: Tensor) -> Tensor:
        """Return log k, which falls like the logarithm of the distance."""
        return -self.power * (self._squared(x, y) / (2 * self.power)).log1p()


@dataclass(frozen=True)
class InverseMultiquadric(Decaying):
    """k(x, y) = (1 + |x - y|² / width²)^-1/2."""

    def log(self, x: Tensor, y: Tensor) -> Tensor:
        """Return -log(1 + |x - y|² / width²) / 2."""
        return self._squared(x, y).log1p() / -2


class Counted(Kernel):
    """k(s, t) of strings: the inner product of the counts of their parts, of which only those that occur are ever held."""

    @abstractmethod
    def parts(self, string: str) -> Iterable[str]:
        """Return the parts of a string that are counted."""

    def __call__(self, x: Sequence[str], y: Sequence[str]) -> Tensor:
        """Return the inner products of the counts: (n, m) float64."""
        left, right = self._counts(x), self._counts(y)
        names = {part: k for k, part in enumerate(sorted(set().union(*left, *right)))}
        return torch.from_numpy((_table(left, names) @ _table(right, names).T).toarray())

    def pairs(self, x: Sequence[str], y: Sequence[str]) -> Tensor:
        """Return the inner products of the counts of pairs: (n,)."""
        return torch.cat([self([s], [t])[0] for s, t in zip(x, y, strict=True)])

    def _counts(self, strings: Sequence[str]) -> list[Counter[str]]:
        if isinstance(strings, str) or not all(isinstance(s, str) for s in strings):
            raise UserError(f"the kernel {type(self).__name__} compares lists of strings")
        return [Counter(self.parts(s)) for s in strings]


@dataclass(frozen=True)
class Spectrum(Counted):
    """Counts all substrings of some length (Leslie et al. 2002)."""

    length: int = 3

    def __post_init__(self) -> None:
        _positive(length=self.length)

    def parts(self, string: str) -> Iterable[str]:
        """Return the substrings."""
        return (string[i : i + self.length] for i in range(len(string) - self.length + 1))


class Words(Counted):
    """Counts words: a text is the sum of the one-hot vectors of its words."""

    def parts(self, string: str) -> Iterable[str]:
        """Return the words in small letters, without the signs between them."""
        return re.findall(r"\w+", string.lower())


@dataclass(frozen=True)
class Unit(Kernel):
    """k(x, y) / sqrt(k(x, x) k(y, y)): features of length 1, so that k is a cosine in [-1, 1], and 1 of equals."""

    inner: Kernel

    def __call__(self, x: Any, y: Any) -> Tensor:
        """Return the cosines: (n, m); 0 beside a feature of length 0."""
        lengths = (self.inner.pairs(z, z).clamp(min=0).sqrt() for z in (x, y))
        a, b = (torch.where(length > 0, 1 / length, 0.0) for length in lengths)
        return self.inner(x, y) * a[:, None] * b

    def pairs(self, x: Any, y: Any) -> Tensor:
        """Return the cosines of pairs: (n,)."""
        product = self.inner.pairs(x, x).clamp(min=0) * self.inner.pairs(y, y).clamp(min=0)
        return torch.where(product > 0, self.inner.pairs(x, y) / product.sqrt(), 0.0)


def _table(counts: list[Counter[str]], names: dict[str, int]) -> csr_array:
    """Return counts as a sparse matrix: (strings, names)."""
    rows = [i for i, count in enumerate(counts) for _ in count]
    columns = [names[part] for count in counts for part in count]
    values = [float(number) for count in counts for number in count.values()]
    return csr_array((np.array(values), (np.array(rows, int), np.array(columns, int))), shape=(len(counts), max(1, len(names))))


KERNELS: dict[str, Callable[..., Kernel]] = {
    "linear": Linear, "polynomial": Polynomial, "gaussian": Gaussian, "laplace": Laplace,
    "rational-quadratic": RationalQuadratic, "inverse-multiquadric": InverseMultiquadric, "spectrum": Spectrum,
    "words": Words,
}  # fmt: skip
