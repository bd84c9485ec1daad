"""Kernels against scikit-learn, closed forms and each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from math import comb
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA, KernelPCA
from sklearn.gaussian_process import kernels as gp
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics import pairwise
from torch import Tensor

from reverie.base.errors import UserError
from reverie.diffusion.oracle import DatasetDenoiser
from reverie.diffusion.schedule import Schedule
from reverie.kernels import (
    ESTIMATORS,
    KERNELS,
    BagOfWords,
    Gaussian,
    InverseMultiquadric,
    Kernel,
    Laplace,
    Linear,
    Normalized,
    Polynomial,
    RationalQuadratic,
    RKHSFunction,
    Spectrum,
    columns_as_points,
    discrepancy,
    embed,
    gram,
    gram_product,
    is_positive_semidefinite,
    kernel_pca,
    kernel_ridge,
    l2_inner,
    median_width,
    mmd,
    mmd_test,
    nadaraya_watson,
    representer,
)
from tests.points import cloud, same

SEEDS = st.integers(0, 2**31 - 1)
WORDS = ["transport", "transform", "kernel", "colonel", "aaa", "ab"]


X, Y = cloud(9, 3, 0), cloud(7, 3, 1)


def inputs(kernel: Kernel) -> tuple[Any, Any]:
    return (WORDS, WORDS[:4]) if isinstance(kernel, Spectrum | BagOfWords) else (X, Y)


PEERS: list[tuple[Kernel, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = [
    (Linear(), pairwise.linear_kernel),
    (Polynomial(3, 0.5, 0.2), lambda x, y: pairwise.polynomial_kernel(x, y, degree=3, gamma=0.2, coef0=0.5)),
    (Gaussian(0.7), lambda x, y: pairwise.rbf_kernel(x, y, gamma=1 / (2 * 0.7**2))),
    (Laplace(0.7), lambda x, y: pairwise.laplacian_kernel(x, y, gamma=1 / 0.7)),
    (RationalQuadratic(0.7, 1.3), lambda x, y: gp.RationalQuadratic(0.7, 1.3)(x, y)),
    (InverseMultiquadric(0.7), lambda x, y: 1 / np.sqrt(1 + pairwise.euclidean_distances(x, y, squared=True) / 0.7**2)),
]


@pytest.mark.parametrize("at", range(len(PEERS)))
def test_kernels_agree_with_scikit_learn(at: int) -> None:
    kernel, peer = PEERS[at]
    same(gram(kernel, X, Y), peer(X.numpy(), Y.numpy()))
    assert gram(kernel, X.float(), Y.float()).dtype == torch.float32


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_is_positive_semidefinite_and_its_parts_agree(name: str) -> None:
    kernel = KERNELS[name]()
    x, y = inputs(kernel)
    k = gram(kernel, x)
    assert is_positive_semidefinite(k)
    same(kernel.pairs(x, x), k.diagonal())
    same(gram(kernel, y, x), gram(kernel, x, y).T)
    if name not in ("linear", "polynomial", "spectrum", "words"):
        same(kernel.log(x, y).exp(), kernel(x, y), 1e-12)
    values = cloud(len(y), 2, 5)
    same(gram_product(kernel, x, y, values), gram(kernel, x, y) @ values, 1e-12)


@pytest.mark.parametrize("name", ["gaussian", "rational-quadratic", "inverse-multiquadric"])
def test_kernels_of_distance_do_not_depend_on_the_origin(name: str) -> None:
    x, y = (X + 3000).float(), (Y + 3000).float()
    kernel = KERNELS[name]()
    same(kernel(x, y), kernel(x.double(), y.double()), 1e-5)
    same(kernel.pairs(x, x), torch.ones(len(x)), 1e-5)


@given(seed=SEEDS, n=st.integers(1, 12), d=st.integers(1, 4))
def test_sums_and_products_of_kernels_are_kernels(seed: int, n: int, d: int) -> None:
    x = cloud(n, d, seed)
    one, two = Gaussian(0.8), Polynomial(2, 1.0)
    same(gram(one + two, x), gram(one, x) + gram(two, x), 1e-12)
    same(gram(one * two, x), gram(one, x) * gram(two, x), 1e-12)
    same(gram(0.3 * one, x), 0.3 * gram(one, x), 1e-12)
    mixed = 0.5 * (one + two) * Laplace(2.0)
    assert is_positive_semidefinite(gram(mixed, x))
    same(mixed.pairs(x, x), gram(mixed, x).diagonal(), 1e-12)
    same(((one + Laplace()) * one).log(x, x).exp(), gram((one + Laplace()) * one, x), 1e-12)


@given(n=st.integers(1, 5), d=st.integers(1, 4), offset=st.sampled_from([0.0, 0.7]), seed=SEEDS)
def test_polynomial_feature_map_is_the_kernel(n: int, d: int, offset: float, seed: int) -> None:
    kernel, x, y = Polynomial(d, offset, 0.5), cloud(6, n, seed), cloud(4, n, seed + 1)
    features = kernel.features(x)
    assert features.shape[1] == kernel.dimension(n) == (comb(n + d, d) if offset else comb(n + d - 1, d))
    same(features @ kernel.features(y).T, kernel(x, y), 1e-9)


def test_the_canonical_feature_map() -> None:
    same(Polynomial(2).features(torch.tensor([[3.0, 5.0]])), torch.tensor([[9.0, math.sqrt(2) * 15, 25.0]]), 1e-6)


def test_spectrum_counts_common_substrings() -> None:
    k = gram(Spectrum(3), ["abcabc", "abcd", "xyz", "ab"])
    assert k.tolist() == [[2 * 2 + 1 + 1, 2 + 0, 0, 0], [2, 2, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    proteins = ["".join("ACDEFGHIKLMNPQRSTVWY"[i] for i in row) for row in np.random.default_rng(0).integers(20, size=(50, 30))]
    everything = sorted({p[i : i + 2] for p in proteins for i in range(29)})
    counts = np.array([[sum(p[i : i + 2] == s for i in range(29)) for s in everything] for p in proteins], dtype=float)
    same(gram(Spectrum(2), proteins), counts @ counts.T, 1e-12)


def test_median_width_is_the_median_distance() -> None:
    distances = pairwise.euclidean_distances(X.numpy())[np.triu_indices(9, 1)]
    assert median_width(X) == pytest.approx(float(np.sort(distances)[(len(distances) - 1) // 2]))
    assert median_width(cloud(5000, 2, 0)) == pytest.approx(median_width(cloud(2000, 2, 3)), rel=0.05)


# --- Gram matrices ----------------------------------------------------------------------------------------------------


@given(n=st.integers(2, 10), d=st.integers(1, 12), seed=SEEDS)
def test_an_embedding_comes_back_up_to_a_rotation(n: int, d: int, seed: int) -> None:
    x = cloud(n, d, seed)
    k = x @ x.T
    found = embed(k)
    assert found.shape[1] == min(n, d)
    same(found @ found.T, k, 1e-7)
    u, _, v = torch.linalg.svd(found.T @ x, full_matrices=False)
    same(found @ (u @ v), x, 1e-5)  # u v has orthonormal rows or columns: it takes one to the other without stretching


def test_matrices_that_are_not_gram_matrices_are_refused() -> None:
    bad = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    assert not is_positive_semidefinite(bad) and not is_positive_semidefinite([[1, 2], [2, 1]])
    assert is_positive_semidefinite([[2, 1], [1, 2]]) and is_positive_semidefinite(torch.tensor([[2, 1], [1, 2]]))
    same(embed([[4, 0], [0, 9]]), torch.tensor([[2.0, 0.0], [0.0, 3.0]]))
    with pytest.raises(UserError, match="negative eigenvalue"):
        embed(bad)
    with pytest.raises(UserError, match="not symmetric"):
        is_positive_semidefinite(torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
    with pytest.raises(UserError, match="square"):
        is_positive_semidefinite(torch.ones(2, 3))


# --- functions, components, regression --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
def test_reproducing_property(name: str) -> None:
    kernel = KERNELS[name]()
    x, y = inputs(kernel)
    f, g = RKHSFunction(kernel, x, cloud(len(x), 1, 2)[:, 0]), RKHSFunction(kernel, y, cloud(len(y), 1, 3)[:, 0])
    same(f.inner(representer(kernel, y[:1])), f(y[:1])[0])
    same(representer(kernel, x[:1]).inner(representer(kernel, y[:1])), kernel(x[:1], y[:1])[0, 0])
    same(f.inner(g), f.coefficients @ gram(kernel, x, y) @ g.coefficients)
    same(f.norm() ** 2, f.inner(f))
    same((f + 2 * g)(y), f(y) + 2 * g(y))
    assert f.inner(g).abs() <= f.norm() * g.norm() + 1e-9
    with pytest.raises(UserError, match="same kernel"):
        f.inner(RKHSFunction(Gaussian(9.0), x, f.coefficients))


def test_kernel_pca_agrees_with_scikit_learn() -> None:
    x, y = cloud(40, 3, 0), cloud(10, 3, 1)
    mine = kernel_pca(Gaussian(1.5), x, 4)
    peer = KernelPCA(4, kernel="rbf", gamma=1 / (2 * 1.5**2), eigen_solver="dense").fit(x.numpy())
    theirs = peer.transform(x.numpy())
    sign = np.sign((theirs * mine.coordinates.numpy()).sum(0))
    same(mine.coordinates, theirs * sign)
    same(mine(y), peer.transform(y.numpy()) * sign)
    same(mine(x), mine.coordinates)
    same(mine.values, peer.eigenvalues_)
    plain = PCA(2).fit_transform(x.numpy())
    same(kernel_pca(Linear(), x, 2).coordinates.abs(), np.abs(plain))
    same(kernel_pca(Gaussian(1.5), x.float(), 4)(y), mine(y), 1e-4)  # of another dtype
    with pytest.raises(UserError, match="span only 3"):
        kernel_pca(Linear(), x, 5)


def test_kernel_ridge_agrees_with_scikit_learn_and_interpolates_without_penalty() -> None:
    x, y, z = cloud(20, 2, 0), cloud(20, 2, 1), cloud(5, 2, 2)
    f = kernel_ridge(Gaussian(1.2), x, y, 0.3)
    peer = KernelRidge(alpha=0.3, kernel="rbf", gamma=1 / (2 * 1.2**2)).fit(x.numpy(), y.numpy())
    same(f(z), peer.predict(z.numpy()))
    same(kernel_ridge(Laplace(1.0), x, y[:, 0], 0.0)(x), y[:, 0])
    with pytest.raises(UserError, match="singular"):
        kernel_ridge(Linear(), x, y, 0.0)


def test_optimal_denoiser_of_a_finite_set_is_gaussian_kernel_smoothing(schedule: Schedule) -> None:
    data, x, t = cloud(30, 4, 0), cloud(6, 4, 1), 0.4
    alpha, sigma = (float(c) for c in schedule(t))
    same(nadaraya_watson(Gaussian(sigma), alpha * data, data, x), DatasetDenoiser(schedule, data)(x, t).x0, 1e-9)


def test_smoothing_far_away_gives_the_closest_answer_and_not_nan() -> None:
    found = nadaraya_watson(Gaussian(0.01), torch.tensor([[0.0], [1.0]]), torch.tensor([3.0, 5.0]), torch.tensor([[100.0]]))
    assert found.tolist() == [5.0]
    assert nadaraya_watson(Gaussian(), torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1]), torch.zeros(1, 1)).tolist() == [0.5]
    direct = gram(Laplace(), Y, X)
    same(nadaraya_watson(Laplace(), X, X, Y), direct @ X / direct.sum(1, keepdim=True))


# --- MMD --------------------------------------------------------------------------------------------------------------


def direct(kernel: Kernel, x: Tensor, y: Tensor, biased: bool) -> Tensor:
    xx, yy, xy = kernel(x, x), kernel(y, y), kernel(x, y)
    if biased:
        return xx.mean() + yy.mean() - 2 * xy.mean()
    n, m = len(x), len(y)
    return (xx.sum() - xx.trace()) / (n * (n - 1)) + (yy.sum() - yy.trace()) / (m * (m - 1)) - 2 * xy.mean()


@given(n=st.integers(2, 30), m=st.integers(2, 30), seed=SEEDS, size=st.sampled_from([1, 7, 1024]))
def test_mmd_in_any_blocks_is_the_formula(n: int, m: int, seed: int, size: int) -> None:
    x, y, kernel = cloud(n, 2, seed), cloud(m, 2, seed + 1, 2.0), Gaussian(0.9) + Polynomial(3, 1.0, 0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "reverie.kernels.discrepancy.row_blocks", lambda n, _: [slice(k, min(n, k + size)) for k in range(0, n, size)]
        )
        for estimator in ("biased", "unbiased"):
            same(mmd(x, y, kernel, estimator=estimator).value, direct(kernel, x, y, estimator == "biased"), 1e-9)
    assert mmd(x, y, kernel, estimator="biased").value > -1e-9


def test_mmd_of_gaussians_has_its_closed_form() -> None:
    """E k of N(0, s²) and N(u, t²) under a Gaussian kernel of width w is w / sqrt(v) exp(-u²/(2v)), v = w² + s² + t²."""
    w, s, t, u = 0.8, 1.0, 1.5, 0.5

    def expected(s: float, t: float, u: float) -> float:
        v = w**2 + s**2 + t**2
        return w / math.sqrt(v) * math.exp(-(u**2) / (2 * v))

    truth = expected(s, s, 0) + expected(t, t, 0) - 2 * expected(s, t, u)
    for estimator in ESTIMATORS:
        found = mmd(cloud(3000, 1, 0, s), cloud(2500, 1, 1, t, u), Gaussian(w), estimator=estimator)
        assert abs(float(found.value) - truth) < 4 * found.standard_error
        assert found.standard_error < 0.1


@pytest.mark.parametrize(("shift", "estimator"), [(0.0, "unbiased"), (0.5, "unbiased"), (1.5, "unbiased"), (0.5, "linear")])
def test_standard_error_is_the_deviation_over_many_draws(shift: float, estimator: str) -> None:
    found = [
        mmd(cloud(40, 2, 2 * k), cloud(60, 2, 2 * k + 1, 1.0, shift), Gaussian(1.0), estimator=estimator) for k in range(400)
    ]
    deviation = float(torch.stack([f.value for f in found]).std())
    reported = float(np.sqrt(np.mean([f.standard_error**2 for f in found])))
    assert reported == pytest.approx(deviation, rel=0.15)


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_the_error_given_y_is_the_deviation_with_y_as_it_is(shift: float) -> None:
    """On average over y; of sets that are equal, the error of both is that foretold for equal ones."""
    reported, measured, equal = [], [], []
    for k in range(8):
        y = cloud(60, 3, 10_000 + k)
        found = [mmd(cloud(40, 3, 100 * k + j, shift=shift), y, Gaussian(2.0)) for j in range(25)]
        reported.append(np.mean([f.error_given_y**2 for f in found]))
        measured.append(np.var([float(f.value) for f in found], ddof=1))
        equal.append(np.mean([f.error_if_equal**2 for f in found]))
        assert all(f.error_given_y < 1.01 * f.standard_error or shift == 0 for f in found)
    assert np.sqrt(np.mean(reported)) == pytest.approx(np.sqrt(np.mean(measured)), rel=0.2)
    if not shift:  # 2 s (1/n + 1/m)², of which y as it is leaves 2 s (1/n² + 2 / (n m))
        assert np.mean(measured) / np.mean(equal) == pytest.approx((1 / 40**2 + 2 / 2400) / (1 / 40 + 1 / 60) ** 2, rel=0.4)


def test_permutation_test_is_uniform_for_equal_sets_and_finds_a_shift() -> None:
    kernel = Gaussian(1.0)
    values = [mmd_test(cloud(12, 2, 2 * k), cloud(15, 2, 2 * k + 1), kernel, permutations=99).p_value for k in range(200)]
    assert abs(np.mean(np.array(values) <= 0.1) - 0.1) < 0.065  # three deviations
    assert mmd_test(cloud(50, 2, 0), cloud(50, 2, 1, 1.0, 1.0), kernel).p_value < 0.01
    x, y = cloud(12, 2, 3), cloud(15, 2, 4)
    same(mmd_test(x, y, kernel).value, float(mmd(x, y, kernel).value), 1e-9)
    assert mmd_test(x, y, kernel, seed=7).p_value == mmd_test(x, y, kernel, seed=7).p_value


def test_mmd_of_strings() -> None:
    random = np.random.default_rng(0)
    one, two = (["".join("ab"[int(v)] for v in random.random(12) < p) for _ in range(40)] for p in (0.3, 0.7))
    assert mmd_test(one, two, Spectrum(2)).p_value < 0.01
    assert float(mmd(one, two, Spectrum(2)).value) > 0


def test_mmd_gradients_are_finite_differences() -> None:
    x, y = cloud(6, 2, 0).requires_grad_(), cloud(5, 2, 1).requires_grad_()
    for estimator in ESTIMATORS:
        value = lambda x, y, e=estimator: mmd(x, y, Gaussian(0.9), estimator=e).value  # noqa: E731
        assert torch.autograd.gradcheck(value, (x, y))


def test_mmd_adds_up_in_the_finest_dtype_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reverie.kernels.discrepancy.finest_dtype", lambda x: torch.float32)
    table = discrepancy._gram_sums(Gaussian(), X, Y)
    assert {part.dtype for part in (table.total, table.rows, table.columns)} == {torch.float32}
    for estimator in ("biased", "unbiased"):
        same(mmd(X, Y, Gaussian(), estimator=estimator).value, direct(Gaussian(), X, Y, estimator == "biased"), 1e-5)


# --- mistakes ---------------------------------------------------------------------------------------------------------

BAD = torch.tensor([[0.0], [math.nan]])
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "nan": (lambda: gram(Linear(), BAD), "NaN"),
    "dimension": (lambda: gram(Linear(), X, X[:, :2]), "differ in dimension: 2 and 3"),
    "strings and points": (lambda: gram(Spectrum(), WORDS, X), "differ"),
    "one point": (lambda: mmd(X[:1], Y, Gaussian()), "at least two"),
    "four points": (lambda: mmd(X[:3], Y, Gaussian(), estimator="linear"), "four"),
    "estimator": (lambda: mmd(X, Y, estimator="unbaised"), "did you mean 'unbiased'"),
    "permutations": (lambda: mmd_test(X, Y, permutations=0), "at least one"),
    "width": (lambda: Gaussian(-1.0), "width"),
    "factor": (lambda: -1.0 * Gaussian(), "factor"),
    "offset": (lambda: Polynomial(2, -1.0), "offset"),
    "features": (lambda: Polynomial(9).features(cloud(1, 100, 0)), "kernel itself"),
    "equal points": (lambda: median_width(torch.ones(5, 2)), "equal"),
    "targets": (lambda: kernel_ridge(Linear(), X, torch.ones(3)), "targets"),
    "nan targets": (lambda: kernel_ridge(Linear(), BAD[:1], BAD[1:]), "targets.* NaN"),
    "nan targets to smooth": (lambda: nadaraya_watson(Gaussian(), BAD[:1], BAD[1:], BAD[:1]), "targets.* NaN"),
    "negative kernel": (lambda: nadaraya_watson(Linear(), X, X, -X), "positive"),
    "nothing in common": (lambda: nadaraya_watson(Spectrum(2), ["abc"], [1.0], ["xyz"]), "positive"),
    "width of strings": (lambda: mmd(WORDS, WORDS), "Spectrum"),
    "penalty": (lambda: kernel_ridge(Linear(), X, torch.ones(9), -1.0), "penalty"),
    "components": (lambda: kernel_pca(Linear(), X, 20), "principal components"),
    "text": (lambda: Spectrum()("abc", "abc"), "lists of strings"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_clear_sentence(name: str) -> None:
    call, says = MISTAKES[name]
    with pytest.raises(UserError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_words_are_counted_and_unit_features_are_cosines() -> None:
    texts = ["The cat, the dog!", "the cat", "a bird", ""]
    counts = np.array([[2, 1, 1, 0, 0], [1, 1, 0, 0, 0], [0, 0, 0, 1, 1], [0, 0, 0, 0, 0]], float)  # the cat dog a bird
    torch.testing.assert_close(gram(BagOfWords(), texts), torch.from_numpy(counts @ counts.T))
    lengths = np.linalg.norm(counts, axis=1)
    wanted = counts @ counts.T / np.maximum(np.outer(lengths, lengths), 1e-300)
    torch.testing.assert_close(gram(Normalized(BagOfWords()), texts), torch.from_numpy(wanted))
    x = cloud(6, 3, 0)
    found = gram(Normalized(Linear()), x)
    torch.testing.assert_close(found, torch.nn.functional.cosine_similarity(x[:, None], x[None], dim=-1))
    torch.testing.assert_close(Normalized(Linear()).pairs(x, x.flip(0)), found.flip(1).diagonal())


def test_a_gram_matrix_determines_its_points_up_to_a_rotation() -> None:
    k = gram(Gaussian(1.0), cloud(7, 2, 1))
    turn = torch.linalg.qr(cloud(7, 7, 2))[0]
    plain, turned = columns_as_points(k), columns_as_points(k, turn)
    for points, metric in (plain, turned):
        torch.testing.assert_close(points @ metric @ points.T, k, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(turned[0], plain[0] @ turn.T)
    singular = gram(Linear(), cloud(5, 2, 3))
    points, metric = columns_as_points(singular)
    torch.testing.assert_close(points @ metric @ points.T, singular)
    with pytest.raises(UserError, match="orthogonal"):
        columns_as_points(k, 2 * turn)


def test_functions_have_inner_products() -> None:
    assert l2_inner(math.sin, math.cos, 0, 2 * math.pi) == pytest.approx(0, abs=1e-12)
    assert l2_inner(math.sin, math.sin, 0, 2 * math.pi) == pytest.approx(math.pi)
    assert l2_inner(lambda t: t, lambda t: t**2, 0, 1) == pytest.approx(1 / 4)
    with pytest.raises(UserError, match="interval"):
        l2_inner(math.sin, math.cos, 1, 0)
