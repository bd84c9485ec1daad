"""Kernels: inner products k(x, y) = <phi(x), phi(y)> in a feature space that is not computed explicitly."""

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

MAX_FEATURES = 10_000_000  # of an explicit feature map, per point


class Kernel(ABC):
    """A positive semidefinite function of two points.  kernel(x, y): (..., n, m) for x: (..., n, d) and y: (..., m, d)."""

    @abstractmethod
    def __call__(self, x: Any, y: Any) -> Tensor:
        """Return k(x_i, y_j) for all pairs: (..., n, m)."""

    def pairs(self, x: Any, y: Any) -> Tensor:
        """Return k(x_i, y_i): (n,)."""
        return self(x[:, None], y[:, None])[:, 0, 0]

    def log(self, x: Any, y: Any) -> Tensor:
        """Return log k(x_i, y_j), without underflow for stationary kernels: (..., n, m)."""
        return self(x, y).log()

    def __add__(self, other: Kernel) -> Kernel:
        return Combined((self, other), "sum")

    def __mul__(self, other: Kernel | float) -> Kernel:
        return Combined((self, other if isinstance(other, Kernel) else Constant(other)), "product")

    __rmul__ = __mul__


def _check_positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0 < number < float("inf"):
            raise UserError(f"the {name} of a kernel must be above 0, got {number}")


@dataclass(frozen=True)
class Combined(Kernel):
    """The sum or the product of kernels."""

    parts: tuple[Kernel, ...]
    operation: str

    def _combine(self, values: list[Tensor]) -> Tensor:
        return reduce(torch.add if self.operation == "sum" else torch.mul, values)

    def __call__(self, x: Any, y: Any) -> Tensor:
        """Return the sum or product of the values of the parts."""
        return self._combine([part(x, y) for part in self.parts])

    def pairs(self, x: Any, y: Any) -> Tensor:
        """Return the sum or product of the pair values of the parts."""
        return self._combine([part.pairs(x, y) for part in self.parts])

    def log(self, x: Any, y: Any) -> Tensor:
        """Return log k from the logarithms of the parts."""
        logs = [part.log(x, y) for part in self.parts]
        return torch.stack(logs).logsumexp(0) if self.operation == "sum" else torch.stack(logs).sum(0)


@dataclass(frozen=True)
class Constant(Kernel):
    """k = value, a constant factor."""

    value: float

    def __post_init__(self) -> None:
        _check_positive(factor=self.value)

    def __call__(self, x: Any, y: Any) -> Tensor:
        """Return the constant for all pairs."""
        if isinstance(x, Tensor):
            return x.new_full((*x.shape[:-1], y.shape[-2]), self.value)
        return torch.full((len(x), len(y)), self.value, dtype=torch.float64)

    def pairs(self, x: Any, y: Any) -> Tensor:
        """Return the constant for each pair."""
        return self(x, y[:1])[:, 0]


@dataclass(frozen=True)
class Linear(Kernel):
    """k(x, y) = x · y."""

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the inner products."""
        return x @ y.mT


@dataclass(frozen=True)
class Polynomial(Kernel):
    """k(x, y) = (scale x · y + offset)^degree.  The kernel inception distance uses degree 3, offset 1, scale 1/d."""

    degree: int = 2
    offset: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(scale=self.scale, degree=self.degree)
        if self.offset < 0 or self.degree != int(self.degree):
            raise UserError(f"a polynomial kernel needs an integer degree and an offset of 0 or more, got {self}")

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the powers of the inner products."""
        return (self.scale * (x @ y.mT) + self.offset) ** self.degree

    def dimension(self, inputs: int) -> int:
        """Return the dimension of the feature space, C(n+d-1, d), where a positive offset adds one input."""
        return comb(inputs + (self.offset > 0) + self.degree - 1, self.degree)

    def features(self, x: Tensor) -> Tensor:
        """Return phi(x) with phi(x) · phi(y) = k(x, y): (n, dimension).

        One feature for each monomial of the degree, times the root of its multinomial coefficient: for degree 2 in the plane
        x1², sqrt(2) x1 x2, x2².
        """
        x = x * sqrt(self.scale)
        if self.offset > 0:
            x = torch.cat([x, x.new_full((len(x), 1), sqrt(self.offset))], -1)
        if (count := comb(x.shape[-1] + self.degree - 1, self.degree)) > MAX_FEATURES:
            raise UserError(f"the feature map has {count:,} features; use the kernel itself instead")
        columns = []
        for chosen in combinations_with_replacement(range(x.shape[-1]), self.degree):
            multinomial = factorial(self.degree) / prod(factorial(k) for k in Counter(chosen).values())
            columns.append(x[:, list(chosen)].prod(-1) * sqrt(multinomial))
        return torch.stack(columns, -1)


@dataclass(frozen=True)
class Stationary(Kernel):
    """A kernel that depends on x - y only and equals 1 at x = y."""

    width: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(width=self.width)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Return exp(log k)."""
        return self.log(x, y).exp()

    def _squared(self, x: Tensor, y: Tensor) -> Tensor:
        return squared(x / self.width, y / self.width).clamp(min=0)


@dataclass(frozen=True)
class Gaussian(Stationary):
    """k(x, y) = exp(-|x - y|² / (2 width²))."""

    def log(self, x: Tensor, y: Tensor) -> Tensor:
        """Return -|x - y|² / (2 width²)."""
        return self._squared(x, y) / -2


@dataclass(frozen=True)
class Laplace(Stationary):
    """k(x, y) = exp(-|x - y|_1 / width)."""

    def log(self, x: Tensor, y: Tensor) -> Tensor:
        """Return -|x - y|_1 / width."""
        return -manhattan(x, y) / self.width


@dataclass(frozen=True)
class RationalQuadratic(Stationary):
    """k(x, y) = (1 + |x - y|² / (2 power width²))^-power, a mixture of Gaussian kernels of many widths."""

    power: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(width=self.width, power=self.power)

    def log(self, x: Tensor, y: Tensor) -> Tensor:
        """Return log k."""
        return -self.power * (self._squared(x, y) / (2 * self.power)).log1p()


@dataclass(frozen=True)
class InverseMultiquadric(Stationary):
    """k(x, y) = (1 + |x - y|² / width²)^-1/2."""

    def log(self, x: Tensor, y: Tensor) -> Tensor:
        """Return -log(1 + |x - y|² / width²) / 2."""
        return self._squared(x, y).log1p() / -2


class CountKernel(Kernel):
    """A string kernel: the inner product of the counts of substrings or words, stored sparsely."""

    @abstractmethod
    def parts(self, string: str) -> Iterable[str]:
        """Return the substrings or words to count."""

    def __call__(self, x: Sequence[str], y: Sequence[str]) -> Tensor:
        """Return the inner products of the count vectors: (n, m) float64."""
        left, right = self._counts(x), self._counts(y)
        names = {part: k for k, part in enumerate(sorted(set().union(*left, *right)))}
        return torch.from_numpy((_count_matrix(left, names) @ _count_matrix(right, names).T).toarray())

    def pairs(self, x: Sequence[str], y: Sequence[str]) -> Tensor:
        """Return the inner products of the count vectors of each pair: (n,)."""
        return torch.cat([self([s], [t])[0] for s, t in zip(x, y, strict=True)])

    def _counts(self, strings: Sequence[str]) -> list[Counter[str]]:
        if isinstance(strings, str) or not all(isinstance(s, str) for s in strings):
            raise UserError(f"the kernel {type(self).__name__} compares lists of strings")
        return [Counter(self.parts(s)) for s in strings]


@dataclass(frozen=True)
class Spectrum(CountKernel):
    """The spectrum kernel: counts all substrings of a fixed length (Leslie et al. 2002)."""

    length: int = 3

    def __post_init__(self) -> None:
        _check_positive(length=self.length)

    def parts(self, string: str) -> Iterable[str]:
        """Return all substrings of this length."""
        return (string[i : i + self.length] for i in range(len(string) - self.length + 1))


class BagOfWords(CountKernel):
    """The bag-of-words kernel: counts words."""

    def parts(self, string: str) -> Iterable[str]:
        """Return the words in lower case, without punctuation."""
        return re.findall(r"\w+", string.lower())


@dataclass(frozen=True)
class Normalized(Kernel):
    """The normalized kernel k(x, y) / sqrt(k(x, x) k(y, y)), a cosine similarity in [-1, 1]."""

    inner: Kernel

    def __call__(self, x: Any, y: Any) -> Tensor:
        """Return the cosines: (n, m); 0 for zero feature vectors."""
        lengths = (self.inner.pairs(z, z).clamp(min=0).sqrt() for z in (x, y))
        a, b = (torch.where(length > 0, 1 / length, 0.0) for length in lengths)
        return self.inner(x, y) * a[:, None] * b

    def pairs(self, x: Any, y: Any) -> Tensor:
        """Return the cosine of each pair: (n,)."""
        product = self.inner.pairs(x, x).clamp(min=0) * self.inner.pairs(y, y).clamp(min=0)
        return torch.where(product > 0, self.inner.pairs(x, y) / product.sqrt(), 0.0)


def _count_matrix(counts: list[Counter[str]], names: dict[str, int]) -> csr_array:
    """Return counts as a sparse matrix: (strings, names)."""
    rows = [i for i, count in enumerate(counts) for _ in count]
    columns = [names[part] for count in counts for part in count]
    values = [float(number) for count in counts for number in count.values()]
    return csr_array((np.array(values), (np.array(rows, int), np.array(columns, int))), shape=(len(counts), max(1, len(names))))


KERNELS: dict[str, Callable[..., Kernel]] = {
    "linear": Linear, "polynomial": Polynomial, "gaussian": Gaussian, "laplace": Laplace,
    "rational-quadratic": RationalQuadratic, "inverse-multiquadric": InverseMultiquadric, "spectrum": Spectrum,
    "words": BagOfWords,
}  # fmt: skip
