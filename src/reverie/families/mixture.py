"""A mixture of Gaussians per label; BIC selects the number of components."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import mix_seed
from reverie.families.closed_form import ClosedForm, Covariance, rank_of
from reverie.families.em import Mixture, em, expectation, initial_components
from reverie.families.gaussian import label_gaussians
from reverie.families.normals import Normals
from reverie.families.scatter import Scatter, group_means

FULL_UP_TO = 64  # dimensions of points up to which covariances are full
MAX_COMPONENTS = 10  # largest number of components of auto
SEARCHED = 2**21  # values of the data on which starts and numbers of components are compared
FACTOR_TOLERANCE = 1e-5  # tolerance of factor analysis for one component, see `GaussianModel`
START_ITERATIONS, SEARCH_ITERATIONS = 10, 50  # before comparing starts, and then numbers of components
PATIENCE = 2  # consecutive numbers of components with worse BIC that end the search


class MixtureModel(ClosedForm):
    """p(x) = sum_k w_k N(x; mean_k, C_k) by EM, for each label.

    components: per label; auto: the number up to 10 with the lowest BIC; the search ends after two worse in a row.  A label
    with few data has fewer, see `most`; one component is the Gaussian of the family `gaussian`.
    covariance, rank: as in `gaussian`, but auto is full up to 64 dimensions of points.  floor: smallest variance, relative
    to that of all data in a coordinate; for levels, their mean variance over N / components.
    restarts: k-means++ starts; the best after 10 iterations continues.  Starts and numbers of components are compared on a
    subset of 2^21 values; the last EM uses all data.  tolerance, iterations: see `em`.
    """

    def __init__(
        self, shape: tuple[int, ...], labels: int = 0, components: int | Literal["auto"] = "auto",
        covariance: Covariance = "auto", rank: int = 8, levels: int | None = None, floor: float = 1e-4, restarts: int = 4,
        tolerance: float = 1e-4, iterations: int = 200,
    ) -> None:  # fmt: skip
        if restarts < 1 or iterations < 1:
            raise UserError(f"a mixture needs restarts and iterations of at least 1, got {restarts} and {iterations}")
        count = MAX_COMPONENTS if components == "auto" else components
        super().__init__(shape, labels, count, rank_of(covariance, rank, shape, FULL_UP_TO), levels, floor)
        self.components, self.restarts, self.tolerance, self.iterations = components, restarts, tolerance, iterations

    def fit(self, x: Tensor, labels: Tensor | None, seed: int) -> Iterator[float]:
        """Fit one label after the other, and yield the cost after each iteration; see `Density.fit`.

        Each label begins as one Gaussian.  The noise within levels is averaged per component, which gives a lower bound on the
        mixture's mean log-density.
        """
        rows, group = self._training_data(x, labels)
        nats = []
        for label, normals in enumerate(label_gaussians(self, rows, group, seed, FACTOR_TOLERANCE)):
            self.put(label, normals, torch.ones(1))
            label_rows = rows[group == label]
            nats.append(
                expectation(label_rows, normals, torch.ones(1).double(), self.noise_variance).log_density
                / max(1, len(label_rows))
            )
        unit = self.units(
            Scatter(rows, group_means(rows, torch.zeros_like(group), 1), noise_variance=self.noise_variance).variance
        )
        yield self._mean_cost(nats)
        for label in range(len(nats)):
            label_rows = rows[group == label]
            start = self._search(label_rows, label, unit, mix_seed(seed, label))
            if start is None:
                continue
            floor = self.least(unit, len(label_rows) / len(start.weights))
            for mixture in em(
                label_rows, start.normals, start.weights, floor, self.noise_variance, self.tolerance, self.iterations
            ):
                self.put(label, mixture.normals, mixture.weights)
                nats[label] = mixture.nats
                yield self._mean_cost(nats)

    @property
    def needed(self) -> float:
        """The mean number of data that a component needs: 2 (1 + parameters of a covariance / D)."""
        return 2 + 2 * self.parameters_per_dimension

    def most(self, count: int) -> int:
        """Return the largest number of components for a number of data."""
        return min(self.weights.shape[1], int(count / self.needed))

    def _search(self, x: Tensor, label: int, unit: Tensor, seed: int) -> Mixture | None:
        """Return the initial mixture of the last EM, None for one Gaussian.  x: (N, D), the data of a label."""
        most, auto = self.most(len(x)), self.components == "auto"
        if most < 2:
            return None
        subset_size = max(SEARCHED // (self.size * len(self.mean)), math.ceil(most * self.needed))
        if len(x) > subset_size:
            x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:subset_size]]
        normals, log_weights = self.normals(label)
        single_nats = expectation(x, normals, log_weights.exp(), self.noise_variance).log_density / len(x)
        best, selected, worse = Mixture(normals, log_weights.exp(), single_nats, len(x)), None, 0
        for components in range(2, most + 1) if auto else [most]:
            candidate = self._best_start(x, components, unit, mix_seed(seed, components))
            if not auto or candidate.bic < best.bic:
                best, selected, worse = candidate, candidate, 0
            elif (worse := worse + 1) == PATIENCE:
                break
        return selected

    def _best_start(self, x: Tensor, components: int, unit: Tensor, seed: int) -> Mixture:
        """Return the result of EM from the best start."""
        floor = self.least(unit, len(x) / components)

        def run(normals: Normals, weights: Tensor, iterations: int) -> Mixture:
            *_, last = em(x, normals, weights, floor, self.noise_variance, self.tolerance, iterations)
            return last

        starts = [initial_components(x, components, self.rank, unit, floor, mix_seed(seed, k)) for k in range(self.restarts)]
        candidates = [run(start, torch.ones(len(start.mean)).double() / len(start.mean), START_ITERATIONS) for start in starts]
        best = max(candidates, key=lambda mixture: mixture.nats)
        return run(best.normals, best.weights, min(SEARCH_ITERATIONS, self.iterations))

    def _mean_cost(self, nats: list[float]) -> float:
        mean = sum(float(share) * label_nats for share, label_nats in zip(self.frequency, nats, strict=True))
        return -mean / self.size - math.log(self.cell)
