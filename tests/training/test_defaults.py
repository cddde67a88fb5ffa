"""Defaults by the number of rows."""

import math

import pytest

from condens.errors import ArgumentError
from condens.training import default_components, default_settings
from condens.training.batches import batch_size


@pytest.mark.parametrize("rows", [1, 5, 40, 500, 5000, 20_000, 10**6])
@pytest.mark.parametrize(("members", "enough"), [(1, 6000), (5, 10_000)])
def test_enough_steps_within_bounds(rows, members, enough):
    settings = default_settings(rows, members)
    steps = settings.epochs * math.ceil(rows / batch_size(settings, rows))
    assert 100 <= settings.epochs <= 800
    # Fewer than enough only where there are all the epochs, more only where there are fewest.
    assert steps > 0.97 * enough or settings.epochs == 800
    assert steps <= enough or settings.epochs == 100
    assert settings.patience == math.ceil(0.12 * settings.epochs)
    assert settings.learning_rate == (8e-3 if rows < 40_000 else 3e-3)
    assert settings.condition_noise == 0
    assert members > 1 or settings.validation_fraction == 0.1


def test_fewer_components_for_fewer_rows():
    found = [
        default_components(rows) for rows in (1, 499, 500, 9999, 10_000, 39_999, 40_000, 10**6)
    ]
    assert found == [3, 3, 5, 5, 10, 10, 20, 20]


def test_members_validate_on_ten_rows_at_least_and_a_fifth_at_most():
    found = [default_settings(rows, 5).validation_fraction for rows in (10, 80, 200, 10**5)]
    assert found == pytest.approx([0.2, 0.125, 0.05, 0.05])


def test_no_rows_are_refused():
    with pytest.raises(ArgumentError, match=r"n_rows is 0.*at least 1"):
        default_settings(0)
