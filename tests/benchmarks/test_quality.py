"""The quality benchmark: its protocols, its known densities, its files and its table."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

QUALITY = Path(__file__).parents[2] / "benchmarks" / "quality"
sys.path.insert(0, str(QUALITY))

import journal  # noqa: E402
import methods  # noqa: E402
import plot  # noqa: E402
import problems  # noqa: E402
import run  # noqa: E402
import scores  # noqa: E402
import table  # noqa: E402
import tasks  # noqa: E402


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# Protocols.


def test_standard_splits_are_those_of_the_common_recipe():
    n = 1030
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    expected = [np.random.choice(range(n), n, replace=False) for _ in range(20)]  # noqa: NPY002
    np.random.set_state(state)  # noqa: NPY002
    found = tasks.standard_splits(n)
    assert len(found) == 20
    for (train, test), p in zip(found, expected, strict=True):
        assert np.array_equal(train, p[:927])
        assert np.array_equal(test, p[927:])


def test_inner_rows_are_training_rows_and_test_rows_are_not(tmp_path):
    (tmp_path / "uci").mkdir()
    rows = np.arange(100.0)[:, None] * [1.0, 10.0]
    lines = "\n".join(f"{a},{b}" for a, b in rows)
    (tmp_path / "uci" / "power.csv").write_text(f"x0,y\n{lines}\n")
    inner = tasks.TASKS["power"].load("inner", 3, tmp_path)
    test = tasks.TASKS["power"].load("test", 3, tmp_path)
    fitted, kept = set(inner.train.y[:, 0]), set(inner.scored.y[:, 0])
    assert len(kept) == 18
    assert not fitted & kept
    assert fitted | kept == set(test.train.y[:, 0])
    assert not set(test.scored.y[:, 0]) & (fitted | kept)
    assert (test.train.y == 10 * test.train.X).all()


@pytest.mark.parametrize("name", ["rows-200", "bounded", "joint-2", "gaussian_mixture-1000"])
def test_drawn_parts_share_training_rows_only(name):
    task = tasks.TASKS[name]
    inner = task.load("inner", 0, None)
    again = task.load("inner", 0, None)
    assert np.array_equal(inner.scored.y, again.scored.y)
    if name == "gaussian_mixture-1000":
        return  # its test part needs reference draws
    test, other = task.load("test", 0, None), task.load("inner", 1, None)
    assert np.array_equal(inner.train.y, test.train.y)
    assert not np.isin(inner.scored.y, test.scored.y).any()
    assert not np.isin(inner.train.y, other.train.y).any()


def test_outliers_are_in_scored_rows_only():
    data = tasks.TASKS["surprise"].load("inner", 0, None)
    assert np.abs(data.train.y).max() < 10
    assert (np.abs(data.scored.y) > 10).any(1).mean() == pytest.approx(0.02, abs=1e-3)


def test_each_table_keeps_its_protocol():
    splits = {name: task.n_splits for name, task in tasks.TASKS.items()}
    assert (splits["concrete"], splits["energy"], splits["kin8nm"], splits["power"]) == (
        20,
        20,
        5,
        5,
    )
    assert {t.name for t in tasks.TASKS.values() if t.building == "energy"} == {"energy", "enb"}
    # Whole numbers are judged by draws: a probability is no density.
    assert all(t.primary == "err_post" for t in tasks.TASKS.values() if t.whole)


def test_absent_data_are_a_reason():
    record = scores.run(tasks.TASKS["concrete"], 0, methods.METHODS["linear"], "inner", None)
    assert record["skipped"] == "uci/concrete.csv is not in --data-dir"


# Known densities.


@pytest.mark.parametrize(
    "problem",
    [problems.JointMixture(3, targets=1), problems.JointMixture(4, targets=2)],
    ids=["1", "2"],
)
def test_a_joint_mixture_is_conditioned_exactly(problem, rng):
    """Bayes' rule, with the marginal of the condition by numerical integration."""
    x, y = problem.draw(2, rng)
    weights = problem.log_weights.exp().numpy()

    def joint(c, t):
        both = np.concatenate([c, t])
        parts = zip(weights, problem.means.numpy(), problem.covariances.numpy(), strict=True)
        return sum(w * stats.multivariate_normal(m, s).pdf(both) for w, m, s in parts)

    if y.shape[1] == 1:
        marginal = integrate.quad(lambda t: joint(x[0], [t]), -30, 30, points=[-5, 0, 5])[0]
        expected = math.log(joint(x[0], y[0]) / marginal)
        assert problem.log_prob(x, y)[0] == pytest.approx(expected, abs=1e-7)
    else:
        grid = np.linspace(-12, 12, 301)
        t = np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2)
        density = np.exp(problem.log_prob(np.repeat(x[:1], len(t), 0), t))
        assert density.sum() * (grid[1] - grid[0]) ** 2 == pytest.approx(1, abs=1e-6)


def test_kl_of_the_truth_itself_is_zero_and_of_a_wider_one_is_known(rng):
    """For N(0, s²) in place of N(0, 1) in each of D dimensions: D(log s + 1/2s² − 1/2)."""
    data = tasks.Data(
        tasks.Rows(np.zeros((2, 1)), np.zeros((2, 2))),
        tasks.Rows(np.zeros((40_000, 1)), rng.standard_normal((40_000, 2))),
        lambda _, y: stats.norm.logpdf(y).sum(-1),
    )
    for scale in (1.0, 2.0):

        def predict(X, scale=scale):  # noqa: N803
            loc = torch.zeros(len(X), 2, dtype=torch.float64)
            return torch.distributions.MultivariateNormal(
                loc, scale_tril=scale * torch.eye(2, dtype=torch.float64).expand(len(X), 2, 2)
            )

        found = scores.score_rows(predict, data)
        exact = 2 * (math.log(scale) + 0.5 / scale**2 - 0.5)
        assert abs(found["regret"] - exact) < 4 * found["regret_error"] + 1e-12
        inside = stats.chi2.cdf(stats.chi2.ppf(0.5, 2) * scale**2, 2)
        assert found["coverage_50"] == pytest.approx(inside, abs=4 * 0.5 / math.sqrt(2000))


@pytest.mark.parametrize(
    ("noise", "log2_angles"), [(0.1, 17), pytest.param(0.05, 22, marks=pytest.mark.slow)]
)
def test_the_evidence_of_the_arm_is_that_of_direct_quadrature(noise, log2_angles):
    arm, step = problems.Arm(noise, log2_angles), 1.5 * noise  # in deviations of the angles
    z = np.arange(-4.5, 4.5, step)
    weight = stats.norm.pdf(z) * step
    second, third = np.meshgrid(z, z, indexing="ij")
    y = np.array([[1.6, 0.4], [0.9, -1.0], [1.2, 1.1]])
    scale, total = np.array([noise, math.hypot(noise, 0.25)]), np.zeros(len(y))
    for first, w in zip(z, weight, strict=True):
        x = 0.5 * np.stack([0 * second, 0 * second + first, second, third], -1)
        gap = (y[:, None, None] - arm.forward(x)) / scale
        density = np.exp(-0.5 * (gap**2).sum(-1)) / (2 * np.pi * scale.prod())
        total += w * np.einsum("i,j,yij->y", weight, weight, density)
    assert arm.log_evidence(y) == pytest.approx(np.log(total), abs=5e-3)


def test_the_optimum_of_the_arm_is_its_conditional_entropy(rng):
    """H(x | y) = H(x) + H(y | x) − H(y), within five standard errors."""
    arm = problems.Arm(0.1, 19)
    y, x = arm.draw(20_000, rng)
    nll = -arm.log_prob(y, x)
    gaussian = 0.5 * (1 + math.log(2 * math.pi))
    known = np.log(problems.ARM_SCALES).sum() + 4 * gaussian + 2 * (gaussian + math.log(0.1))
    marginal = -arm.log_evidence(y)
    gap = nll + marginal - known
    assert abs(gap.mean()) < 5 * gap.std() / math.sqrt(len(gap))


@pytest.mark.parametrize(
    "problem",
    [
        problems.Noisy(),
        problems.HeavyTails(),
        problems.Steps(),
        problems.TwoBranches(),
        problems.Ring(),
        problems.Bounded(),
    ],
    ids=lambda problem: type(problem).__name__,
)
def test_made_densities_integrate_to_one_and_are_those_of_the_draws(problem, rng):
    x, y = problem.draw(4000, rng)
    wide = isinstance(problem, problems.HeavyTails)
    # Densities on a grid whose tangent reaches far; on the unit square a plain one.
    u = (np.arange(800) + 0.5) / 800
    if isinstance(problem, problems.Bounded):
        grid, weight = u, np.full(800, 1 / 800)
    else:
        grid = 0.3 * np.tan(np.pi * (u - 0.5))
        weight = 0.3 * np.pi / np.cos(np.pi * (u - 0.5)) ** 2 / 800
    t = np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2)
    mass = (weight[:, None] * weight).ravel()
    centre = y[0] if not isinstance(problem, problems.Bounded) else 0.0
    density = np.exp(problem.log_prob(np.repeat(x[:1], len(t), 0), t + centre))
    assert density @ mass == pytest.approx(1, abs=5e-3 if wide else 1e-3)
    # Draws from another density would not be at their own log density on average: its expectation
    # is known from the grid, at the first condition.
    expected = special.xlogy(density, density) @ mass
    if isinstance(problem, problems.Bounded):
        truth = stats.truncnorm(*((np.array([0, 1]) - x[0]) / 0.15), x[0], 0.15)
        near = np.abs(x[:, 0] - x[0]) < 0.01
        assert stats.kstest(y[near, 0], truth.cdf).pvalue > 1e-3
        return
    same = type(problem)()
    same.conditions = lambda rows, _: np.repeat(x[:1], rows, 0)
    found = same.log_prob(*same.draw(4000, rng))
    assert abs(found.mean() - expected) < 5 * found.std() / math.sqrt(4000) + 0.02 * wide


# Simulators.


def test_ballistics_lands_where_the_definition_says(rng):
    """The last of 1500 times in [0, 6] before the height changes its sign."""
    ball = problems.Ballistics()
    y, x = ball.draw(500, rng)
    g, k, m = 9.81, 0.25, 0.2
    t = np.linspace(0, 6, 1500)
    across, up, angle, speed = (column[:, None] for column in x.T)
    decay = np.exp(-k * t / m) - 1
    xs = across - speed * np.cos(angle) * m / k * decay
    ys = up - m / k**2 * ((g * m + speed * np.sin(angle) * k) * decay + g * t * k)
    ys = np.where(np.arange(1500) < ys.argmax(1)[:, None], 0.1, ys)
    place = np.diff(np.signbit(ys), axis=1).argmax(1)
    assert np.allclose(y[:, 0], xs[np.arange(500), place], rtol=0, atol=1e-12)
    assert (x[:, 3] == x[:, 3].round()).all()
    assert abs(x[:, 3].mean() - 15) < 5 * math.sqrt(15 / 500)


def test_the_arm_reaches_where_its_joints_lead():
    x = np.array([[0.1, 0.3, -0.2, 0.7]])
    across = 0.5 * math.cos(0.3) + 0.5 * math.cos(0.1) + math.cos(0.8)
    up = 0.1 + 0.5 * math.sin(0.3) + 0.5 * math.sin(0.1) + math.sin(0.8)
    assert problems.Arm().forward(x)[0] == pytest.approx([across, up], abs=1e-12)


def test_two_moons_is_sbibms(rng):
    """Undo the map: what remains is the crescent, and posterior draws come back to x."""
    task = problems.TwoMoons()
    x, theta = task.draw(4000, rng)
    c, s = math.cos(-math.pi / 4), math.sin(-math.pi / 4)
    across, up = c * theta[:, 0] - s * theta[:, 1], s * theta[:, 0] + c * theta[:, 1]
    u, v = x[:, 0] + np.abs(across) - 0.25, x[:, 1] - up
    radius, angle = np.hypot(u, v), np.arctan2(v, u)
    assert stats.kstest(radius, stats.norm(0.1, 0.01).cdf).pvalue > 1e-3
    assert stats.kstest(angle, stats.uniform(-math.pi / 2, math.pi).cdf).pvalue > 1e-3
    drawn = task.posterior(np.array([-0.6, 0.1]), 2000, rng)
    across, up = c * drawn[:, 0] - s * drawn[:, 1], s * drawn[:, 0] + c * drawn[:, 1]
    radius = np.hypot(-0.6 + np.abs(across) - 0.25, 0.1 - up)
    assert stats.kstest(radius, stats.norm(0.1, 0.01).cdf).pvalue > 1e-3
    assert abs((across > 0).mean() - 0.5) < 5 * 0.5 / math.sqrt(2000)
    assert (np.abs(drawn) <= 1).all()


@pytest.mark.parametrize("task", [problems.GaussianLinear(), problems.GaussianMixture()])
def test_posterior_draws_of_sbibm_have_the_density_of_bayes_rule(task, rng):
    """Rank of the true θ among posterior draws by log density: uniform, over simulations."""
    x, theta = task.draw(150, rng)
    ranks = []
    for seen, true in zip(x, theta, strict=True):
        drawn = task.posterior(seen, 200, rng)
        around = task.log_prob(np.repeat(seen[None], 200, 0), drawn)
        ranks.append((around < task.log_prob(seen[None], true[None])).mean())
    assert stats.kstest(ranks, "uniform").pvalue > 1e-3
    dimensions = theta.shape[1]
    expected = {10: 0.1, 2: 0.5 * (1 + 0.01)}[dimensions]
    noise = ((x - theta) ** 2).mean()
    assert noise == pytest.approx(expected, rel=0.35 if dimensions == 2 else 0.2)


def test_rejected_posteriors_are_those_of_noisy_observations(rng):
    y = np.array([1.5, 0.4])
    drawn = problems.Arm().posterior(y, 1000, 0.01, rng)
    gap = problems.Arm.forward(drawn) - y
    # Noise of the tolerance on either side, prior and likelihood nearly flat at that scale.
    assert gap.std(0) == pytest.approx([0.01, 0.01], rel=0.15)


def test_mmd_is_the_direct_sum(rng):
    a, b = rng.standard_normal((7, 3)), rng.standard_normal((5, 3)) + 1

    def kernel(u, v):
        square = ((u - v) ** 2).sum()
        return sum(1 / (1 + square / h**2) for h in (0.05, 0.2, 0.9))

    def mean(us, vs, *, own):
        pairs = [kernel(u, v) for i, u in enumerate(us) for j, v in enumerate(vs) if own or i != j]
        return np.mean(pairs)

    expected = mean(a, a, own=False) + mean(b, b, own=False) - 2 * mean(a, b, own=True)
    assert scores.mmd_squared(*map(torch.from_numpy, (a, b))) == pytest.approx(expected, abs=1e-12)


def test_a_density_cut_at_bounds_is_the_truncated_one():
    torch.manual_seed(0)
    loc = torch.tensor([[0.0], [0.9]], dtype=torch.float64)
    root = torch.full((2, 1, 1), 0.5, dtype=torch.float64)
    whole = torch.distributions.MultivariateNormal(loc, scale_tril=root)
    cut = methods.of_distribution(whole, (0.0, 1.0))
    at = torch.tensor([[0.3], [0.3]], dtype=torch.float64)
    exact = [stats.truncnorm(-m / 0.5, (1 - m) / 0.5, m, 0.5).logpdf(0.3) for m in (0.0, 0.9)]
    # The part inside is counted from 200 draws.
    assert cut.log_prob(at).tolist() == pytest.approx(exact, abs=0.4)
    assert cut.log_prob(at + 1).tolist() == [-math.inf, -math.inf]
    drawn = cut.sample((2000,))[..., 0].numpy()
    assert ((drawn >= 0) & (drawn <= 1)).all()
    for column, m in zip(drawn.T, (0.0, 0.9), strict=True):
        truth = stats.truncnorm(-m / 0.5, (1 - m) / 0.5, m, 0.5)
        assert stats.kstest(column, truth.cdf).pvalue > 1e-3


# Runs.

QUICKLY = ["--tasks", "linnerud", "rows-200", "--methods", "marginal", "linear", "--splits", "3"]


@pytest.mark.slow
def test_a_killed_run_resumes_without_loss_or_repetition(tmp_path):
    path = tmp_path / "runs.jsonl"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, QUALITY / "run.py", tmp_path, *QUICKLY],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + 60
    while (not path.exists() or path.read_bytes().count(b"\n") < 2) and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = path.read_bytes()
    whole = before[: before.rfind(b"\n") + 1]
    assert 2 <= whole.count(b"\n") < 12
    path.write_bytes(before + b'{"task": "linn')  # cut off in the middle of a line
    run.main([str(tmp_path), *QUICKLY])
    assert path.read_bytes().startswith(whole)
    records = journal.read(path)
    keys = [journal.key_of(record) for record in records]
    assert len(keys) == len(set(keys)) == 12
    assert {r["split"] for r in records} == set(range(3))
    assert not any("failed" in r for r in records)
    after = path.read_bytes()
    run.main([str(tmp_path), *QUICKLY])
    assert path.read_bytes() == after


def test_test_rows_stay_hidden_and_every_look_is_counted(tmp_path, capsys):
    few = [str(tmp_path), "--tasks", "linnerud", "--only", "marginal", "--splits", "1"]
    run.main(few)
    assert [path.name for path in tmp_path.glob("final*")] == []
    run.main([*few, "--final"])
    run.main([*few, "--final"])
    uses = journal.read(tmp_path / "final_uses.jsonl")
    assert [use["use"] for use in uses] == [1, 2]
    assert uses[0]["version"] == methods.METHODS["condens"].version
    (inner,), (test,) = (journal.read(tmp_path / f"{n}.jsonl") for n in ("runs", "final"))
    assert (inner["part"], inner["n_train"]) == ("inner", 13)
    assert (test["part"], test["n_train"]) == ("test", 16)
    assert "looked at 2 time(s)" in (tmp_path / "final.md").read_text()
    assert "2/1" not in capsys.readouterr().out


def test_a_missing_package_and_no_time_leave_runs_out(tmp_path, capsys, monkeypatch):
    absent = methods.Method("absent", methods.fit_zuko, "no-such-package")
    monkeypatch.setitem(methods.METHODS, "absent", absent)
    few = [str(tmp_path), "--tasks", "linnerud", "--splits", "1"]
    run.main([*few, "--only", "absent"])
    assert "absent is left out: no-such-package is not installed." in capsys.readouterr().out
    run.main([*few, "--only", "marginal", "--hours", "1e-12"])
    assert journal.read(tmp_path / "runs.jsonl") == []


def test_other_settings_and_other_code_are_other_runs():
    plain = methods.find_method("condens")
    other = methods.find_method("condens:depth=3,covariance=tied")
    assert other.fit.keywords == {"depth": 3, "covariance": "tied"}
    assert other.ours
    assert not methods.find_method("diagonal").ours
    assert plain.version != methods.METHODS["linear"].version
    with pytest.raises(SystemExit):
        run.parse(["out", "--methods", "nonsense"])


def test_gaps_are_left_to_those_who_read_them():
    data = tasks.TASKS["joint-5-gaps"].load("inner", 0, None)
    assert np.isnan(data.train.y).mean() == pytest.approx(0.3, abs=0.02)
    assert not np.isnan(data.scored.y).any()
    with pytest.raises(methods.UnsuitedError, match="gaps"):
        methods.fit(methods.METHODS["lightgbm"], data.train, tasks.TASKS["joint-5-gaps"], 0)


def test_one_writer_at_a_time(tmp_path):
    with journal.Journal(tmp_path / "runs.jsonl"), pytest.raises(SystemExit, match="Another run"):
        journal.Journal(tmp_path / "runs.jsonl")


# The table.


def made(task, method, split, nll, *, version="1", coverage=(0.5, 0.9), rows=1000):
    return {
        "task": task,
        "split": split,
        "method": method,
        "version": version,
        "part": "inner",
        "revision": 1,
        "n_train": 100,
        "n_drawn": rows,
        "nll": nll,
        "coverage_50": coverage[0],
        "coverage_90": coverage[1],
    }


RECORDS = [
    made("concrete", "condens", 0, 9.0, version="0"),  # of an earlier version
    made("concrete", "condens", 0, 2.0, coverage=(0.6, 0.9), rows=300),
    made("concrete", "condens", 1, 3.0, coverage=(0.6, 0.9), rows=300),
    made("concrete", "linear", 0, 2.5),
    made("concrete", "linear", 1, 3.5),
    made("concrete", "ngboost", 1, 2.9),
    made("energy", "condens", 0, 0.1),
    made("energy", "linear", 0, 0.2),
    made("enb", "condens", 0, 1.0),
    made("enb", "linear", 0, 0.8),
    made("power", "condens", 0, "inf"),
    made("power", "linear", 0, 3.0),
    {**made("diabetes", "ngboost", 0, 0.0), "failed": "ValueError: no"},
]


def test_the_tally_compares_common_splits_and_counts_buildings_once():
    runs = table.Runs(RECORDS)
    assert runs.value("concrete", "condens", "nll") == table.Value(2.5, 0.5)
    gap, peer = runs.difference("concrete", "condens", "nll")
    assert (gap, peer) == (pytest.approx(0.1), "ngboost")  # on split 1 alone
    found = table.standing(runs)
    # concrete: behind ngboost; energy ahead but enb behind; power infinite.
    assert (found.ahead, found.compared) == (0, 3)
    assert found.behind["enb"] == pytest.approx(0.1)  # nats per target, of two
    assert next(iter(found.behind)) == "power"
    assert found.worst_off == {"concrete": pytest.approx(0.1)}
    without = [r for r in RECORDS if r["method"] != "ngboost" and r["task"] != "enb"]
    assert table.standing(table.Runs(without))[:2] == (2, 3)


def test_a_task_is_shown_at_the_version_that_ran_last_on_it(tmp_path):
    """Never a mean over versions; and the page says which task has which."""
    later = made("concrete", "condens", 1, 4.0, version="2")
    runs = table.Runs([*RECORDS, later])
    assert runs.values("concrete", "condens", "nll") == {1: 4.0}
    assert runs.values("energy", "condens", "nll") == {0: 0.1}
    lines = "".join(json.dumps(record) + "\n" for record in [*RECORDS, later])
    (tmp_path / "runs.jsonl").write_text(lines)
    text = table.write(tmp_path).read_text()
    assert "- condens: 2 (concrete)\n" in text
    assert "- condens: 1 (energy, enb, power)\n" in text
    assert "- linear: 1\n" in text


def test_the_page_shows_scores_sources_and_reasons(tmp_path):
    lines = "".join(json.dumps(record) + "\n" for record in RECORDS)
    (tmp_path / "runs.jsonl").write_text(lines)
    text = table.write(tmp_path).read_text()
    assert "| concrete | 100 | 1 | 2 of 20 | NLL | 2.50 ± 0.50 | 3.00 ± 0.50 | **2.9** (1)" in text
    assert "2.9 TabResFlow" in text
    assert "ngboost on diabetes: failed: ValueError: no" in text
    assert "ahead of every peer on 0 of 3 tasks" in text
    assert "∞" in text
    assert "Test" not in text


def test_the_picture_and_the_bold_type_compare_common_splits():
    """A hard split that only condens ran puts it behind nobody."""
    records = [
        made("enb", "condens", 0, 1.0),
        made("enb", "condens", 1, 9.0),
        made("enb", "linear", 0, 3.0),
        made("enb", "ngboost", 0, 2.0),
        made("power", "condens", 0, "inf"),
        made("power", "linear", 0, 3.0),
    ]
    runs = table.Runs(records)
    assert plot.points(runs) == {"enb": {"condens": -0.5, "linear": 0.5, "ngboost": 0.0}}
    assert "| **5.0 ± 4.0** | 3 (1) | 2 (1) | -1 (ngboost) |" in table.markdown(
        runs, final=False, uses=0
    )


def test_a_coverage_is_pooled_by_rows():
    records = [
        made("concrete", "condens", 0, 1.0, coverage=(0.2, 0.9), rows=100),
        made("concrete", "condens", 1, 1.0, coverage=(0.6, 0.9), rows=300),
    ]
    assert table.Runs(records).coverage("concrete", "condens", "coverage_50") == (0.5, 400)
