"""Novelty: finds what is planted, nearly as well as the true density would; no row is kept."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal, norm
from sklearn.metrics import roc_auc_score

from condens.errors import ArgumentError, ModelFileError, ShapeError
from condens.evaluation import Novelty

N = 1000


def tensor(array):
    return torch.from_numpy(np.asarray(array, dtype=np.float64))


def line(rng, n):
    """Return rows near a plane in five dimensions, and their true log density."""
    return (
        rng.normal(size=(n, 2)) @ np.random.default_rng(5).normal(size=(2, 5))
        + 0.1 * rng.normal(size=(n, 5)),
        multivariate_normal(
            np.zeros(5),
            (w := np.random.default_rng(5).normal(size=(2, 5))).T @ w + 0.01 * np.eye(5),
        ).logpdf,
    )


def clusters(rng, n):
    centres = np.array([[0, 0, 0], [8, 0, 0], [0, 8, 0], [8, 8, 8]])
    rows = centres[rng.integers(0, 4, n)] + rng.normal(size=(n, 3))
    return rows, lambda x: np.logaddexp.reduce(
        [multivariate_normal(centre, np.eye(3)).logpdf(x) for centre in centres]
    )


def labelled(rng, n):
    """Return a number near four times its category; the code 0 is unknown."""
    code = rng.integers(1, 4, n)
    rows = np.column_stack([rng.normal(size=n) + 4 * code, code])
    return rows, lambda x: norm.logpdf(x[:, 0] - 4 * x[:, 1]) - 100 * (x[:, 1] == 0)


def out_of_range(rows, rng):
    return rows + 4 * rows.std(0) * rng.choice([-1, 1], rows.shape[1])


def permuted(rows, rng):
    """Every column keeps its range."""
    return np.column_stack([rng.permutation(column) for column in rows.T])


def between(rows, rng):
    return np.array([4.0, 4.0, 0.0]) + 0.5 * rng.normal(size=rows.shape)


def swapped(rows, rng):
    return np.column_stack([rows[:, 0], rows[:, 1] % 3 + 1])


def unknown(rows, rng):
    return np.column_stack([rows[:, 0], np.zeros(len(rows))])


PLANTED = {
    "outside the range": (line, out_of_range, []),
    "a broken correlation": (line, permuted, []),
    "a hole between clusters": (clusters, between, []),
    "clusters, out of range": (clusters, out_of_range, []),
    "a number of another category": (labelled, swapped, [4]),
    "an unknown category": (labelled, unknown, [4]),
}


@pytest.mark.parametrize("case", PLANTED)
def test_planted_rows_are_found(case):
    draw, change, categories = PLANTED[case]
    rng = np.random.default_rng(0)
    (rows, true), (usual, _), (other, _) = (draw(rng, N) for _ in range(3))
    planted = change(other, rng)
    novelty = Novelty.fit(tensor(rows), categories=categories)
    label = np.repeat([0, 1], N)
    both = np.concatenate([usual, planted])
    found = roc_auc_score(label, novelty(tensor(both)))
    best = roc_auc_score(label, -true(both))
    assert found > max(best - 0.02, 0.95)


def test_the_fraction_of_usual_rows_is_uniform():
    rng = np.random.default_rng(1)
    rows, usual = line(rng, 5000)[0], line(rng, 5000)[0]
    found = Novelty.fit(tensor(rows))(tensor(usual)).numpy()
    assert (found > 1).mean() < 0.01
    # 1000 rows were held out: five standard errors of a quantile, and as much again for the fit.
    for level in (0.1, 0.5, 0.9):
        expected = 5 * np.sqrt(2 * level * (1 - level) / 1000)
        assert abs(np.mean(found < level) - level) < expected


def test_a_gap_is_judged_by_what_is_usual_with_it():
    """Numbers are missing where the second column is high."""
    rng = np.random.default_rng(2)

    def draw():
        gap = rng.random(N) < 0.3
        first = np.where(gap, 0.0, rng.normal(size=N))
        return np.column_stack([first, rng.normal(size=N) + 5 * gap, gap])

    novelty = Novelty.fit(tensor(draw()), gaps=[(0, 2)])
    usual, planted = draw(), draw()
    planted[:, 2] = 1 - planted[:, 2]
    planted[:, 0] = np.where(planted[:, 2], 0.0, rng.normal(size=N))
    label = np.repeat([0, 1], N)
    assert roc_auc_score(label, novelty(tensor(np.concatenate([usual, planted])))) > 0.97


def test_further_out_is_always_stranger():
    rng = np.random.default_rng(3)
    novelty = Novelty.fit(tensor(rng.normal(size=(200, 2))))
    out = tensor(np.stack([10.0 ** np.arange(1, 300, 7), np.zeros(43)], 1))
    found = novelty(out)
    assert bool(found.isfinite().all())
    assert bool((found.diff() > 0).all())
    assert found[0] > 10


def test_units_and_batches_change_nothing():
    rng = np.random.default_rng(4)
    rows, asked = clusters(rng, N)[0], tensor(clusters(rng, 300)[0] * 1.1)
    plain = Novelty.fit(tensor(rows))
    other = Novelty.fit(tensor(1e200 * rows - 1e201))
    assert_allclose(other(1e200 * asked - 1e201), plain(asked), atol=1e-6)
    assert_allclose(torch.cat([plain(part) for part in asked.split(7)]), plain(asked), rtol=1e-12)


def test_weights_and_rows_that_do_not_count():
    rng = np.random.default_rng(6)
    rows = tensor(np.concatenate([line(rng, N)[0], line(rng, N)[0] + 50]))
    weights = torch.ones(2 * N)
    weights[N:] = 0.0
    novelty = Novelty.fit(rows, weights)
    assert novelty.n_rows == N
    assert bool((novelty(rows[N:]) > 1).all())
    # A thousandth of the weight: rare, so less familiar than most.
    weights[N:] = 0.001
    found = Novelty.fit(rows, weights)(rows)
    assert found[N:].mean() > 0.97
    assert found[:N].mean() < 0.55


DEGENERATE = {
    "one row": torch.ones(1, 3),
    "two rows": torch.arange(6.0).reshape(2, 3),
    "constant rows": torch.ones(50, 2),
    "more columns than rows": torch.randn(20, 60),
    "very many columns": torch.randn(30, 400),
    "truth values": (torch.randn(100, 3) > 0).double(),
    "images": torch.randn(40, 3, 4, 4),
    "an outlier": torch.cat(
        [torch.randn(50, 2).double(), torch.full((1, 2), 1e307, dtype=torch.float64)]
    ),
}


@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_rows(case):
    rows = DEGENERATE[case]
    novelty = Novelty.fit(rows)
    found = novelty(rows)
    assert bool(found.isfinite().all())
    assert bool((found >= 0).all())
    assert found.quantile(0.5) <= 1
    moved = rows.double() + 1e3 * rows.double().abs().clamp(max=1e300) + 1e3
    # But for an outlier that is an outlier still.
    assert (novelty(moved) > 1).double().mean() > 0.9


def test_categories_alone():
    codes = torch.tensor([[1.0, 1.0], [2.0, 2.0]]).repeat(100, 1)
    novelty = Novelty.fit(codes, categories=[3, 3])
    usual, crossed, unseen = novelty(torch.tensor([[1.0, 1.0], [1.0, 2.0], [0.0, 1.0]]))
    assert usual < 1 < crossed
    assert unseen > 1


def test_refusals():
    novelty = Novelty.fit(torch.ones(5, 2), categories=[3])
    with pytest.raises(ShapeError, match="condition has 3 columns, but 2 were fitted"):
        novelty(torch.ones(5, 3))
    with pytest.raises(ArgumentError, match="condition has codes that are no categories"):
        novelty(torch.full((1, 2), 3.0))
    with pytest.raises(ArgumentError, match="condition has no row that counts"):
        Novelty.fit(torch.ones(5, 2), torch.zeros(5))


# Files.


@pytest.fixture(scope="module")
def fitted():
    rows = tensor(labelled(np.random.default_rng(0), 300)[0])
    return rows, Novelty.fit(rows, categories=[4])


def again(tensors):
    return Novelty.from_tensors(tensors, 300, 2, [4])


def test_round_trip_without_any_row(fitted):
    rows, novelty = fitted
    tensors = novelty.tensors()
    assert torch.equal(again(tensors)(rows), novelty(rows))
    kept = torch.cat([part.flatten() for part in tensors.values()])
    assert not bool(torch.isin(rows[:, 0], kept).any())
    assert len(kept) < 300


DAMAGE = {
    "a NaN": ("means", lambda t: t.fill_(torch.nan), "holds NaN or infinity in means"),
    "a scale of zero": ("scale", torch.zero_, "a scale that is not positive"),
    "falling levels": ("levels", torch.neg, "no levels in rising order"),
    "no levels": ("levels", lambda t: t[:0], "no levels in rising order"),
    "probabilities above one": ("codes.0", torch.neg, "impossible probabilities"),
    "weights": ("logits", lambda t: t - 1e9, "impossible probabilities"),
    "means": ("means", lambda t: t + 1e9, "means far from all rows"),
    "factors": ("factors", lambda t: t + 1e9, "impossible factors"),
    "other factors": ("factors", lambda t: t.repeat(1, 4), "factors of another size"),
    "a wrong shape": ("codes.0", lambda t: t[:, 1:], "3] as codes.0"),
    "another dtype": ("location", torch.Tensor.float, "torch.float32"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_tensors_are_refused(fitted, case):
    name, change, message = DAMAGE[case]
    tensors = {key: value.clone() for key, value in fitted[1].tensors().items()}
    tensors[name] = change(tensors[name])
    with pytest.raises(ModelFileError, match=f"its novelty .*{message}"):
        again(tensors)


def test_missing_and_other_tensors_are_refused(fitted):
    tensors = fitted[1].tensors()
    empty = {name: t[:0] if name in ("logits", "means", "factors", "codes.0") else t
             for name, t in tensors.items()}  # fmt: skip
    with pytest.raises(ModelFileError, match="its novelty has no components"):
        again(empty)
    for wrong in ({**tensors, "more": tensors["scale"]}, dict(list(tensors.items())[1:])):
        with pytest.raises(ModelFileError, match="its novelty is another"):
            again(wrong)
