"""A fit to shards: what is learned about their columns, and which rows are held out."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from condens.data import TargetColumns
from condens.data.stream import Shards
from condens.data.survey import Apart, TableColumns
from condens.errors import ArgumentError
from condens.estimator.construction import announced_transforms, combine_settings
from condens.estimator.inputs import (
    ADJUSTMENT_FRACTION,
    MIN_ADJUSTMENT_ROWS,
    Division,
    Inputs,
)
from condens.training import default_settings
from condens.training.streaming import Stream


class OpenShards(NamedTuple):
    """Shards that were surveyed: their columns, the rows in memory, and all rows as a stream."""

    inputs: Inputs
    division: Division
    stream: Stream


def open_shards(
    shards: Shards, columns: TableColumns, parameters: Mapping[str, Any], *, seed: int, test: float
) -> OpenShards:
    """Survey shards for a model with these parameters."""
    members = parameters["n_members"]
    settings = combine_settings(parameters, default_settings(shards.n_rows, members))
    fits = "fit" in (settings.spread, settings.tail) and settings.validation_fraction > 0
    adjusts = fits and shards.n_rows >= MIN_ADJUSTMENT_ROWS
    stream = Stream.open(
        shards,
        targets=columns.targets,
        conditions=columns.conditions or None,
        weights=columns.weights,
        groups=columns.groups,
        test=test,
        calibration=parameters["calibration_fraction"],
        adjustment=ADJUSTMENT_FRACTION if adjusts else 0.0,
        validation=settings.validation_fraction,
        n_members=members,
        seed=seed,
    )
    sample = stream.sample
    survey = stream.survey
    found = survey.statistics()
    # With the ends of all rows: the sample may not have them.
    ends = np.stack([found[name][survey.encoder.columns :] for name in ("lower", "upper")])
    seen = torch.cat([sample.rows.target, torch.from_numpy(ends)])
    transforms = announced_transforms(
        parameters["target_transform"],
        TargetColumns(seen, columns.targets, flat=False),
        "the table",
    )
    inputs = Inputs(survey.encoder, columns.targets, False, transforms)
    trial = combine_settings(parameters, default_settings(len(sample.rows), members))
    apart = {name: stream.apart(name) for name in ("adjustment", "calibration", "test")}
    try:
        for part in (sample, stream.apart("validation"), *apart.values()):
            if part is not None:
                inputs.supported(part.rows, "the table")
    except ArgumentError:
        stream.check_targets(transforms)  # which says in which file
        raise
    adjustment, calibration = apart["adjustment"], apart["calibration"]
    division = Division(
        sample.rows,
        None,
        None if adjustment is None else adjustment.rows,
        None if calibration is None else calibration.rows,
        stream.rows_left_out,
        None if calibration is None else _groups(calibration, columns.groups),
        None if columns.groups is None else _folds(sample, trial.validation_fraction),
    )
    return OpenShards(inputs, division, stream)


def _groups(apart: Apart, name: str | None) -> Tensor | None:
    """Return the numbers of the groups of rows."""
    if name is None:
        return None
    values = apart.table[name].to_pylist()
    numbers: dict[Any, int] = {}
    return torch.tensor([numbers.setdefault(value, len(numbers)) for value in values])


def _folds(sample: Apart, fraction: float) -> Tensor | None:
    """Return folds of a fraction of the groups each; None without validation."""
    if not fraction:
        return None
    count = int(1 / fraction)
    folds = np.floor(sample.numbers / fraction).astype(np.int64)
    # Few groups leave some folds without any.
    _, numbers = np.unique(np.where(folds < count, folds, count), return_inverse=True)
    found = torch.from_numpy(numbers)
    if not bool(found.any()):
        raise ArgumentError(
            "groups",
            got="are too few to be divided",
            expected="some to validate on and others to train on were expected",
            fix="Pass more groups, or validation_fraction=0.",
        )
    return torch.where(torch.from_numpy(folds < count), found, -1)
