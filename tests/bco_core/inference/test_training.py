"""The training loop: optimisers, epochs, early stopping, groups and successive halving."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bco_core.errors import Diverged
from bco_core.inference.training import Epoch, TrainingOptions, TrainingResult, by_autograd, train

CENTRES = torch.tensor([[[1.0, -2.0], [30.0, 4.0], [0.0, 0.5]]], dtype=torch.float64)
ROWS = torch.arange(36).view(3, 12)


def bowl(value: Tensor, rows: Tensor, members: Tensor) -> Tensor:
    """½‖θ − c_r‖² for each member: a plain gradient step of rate 1 reaches the centre."""
    return 0.5 * (value - CENTRES[:, members]).square().sum(dim=(0, 2))


def slope(value: Tensor, rows: Tensor, members: Tensor) -> Tensor:
    """A constant gradient of −1: k plain steps of rate r add k·r to every parameter."""
    return -value.sum(dim=(0, 2))


def no_judge(value: Tensor, members: Tensor) -> Tensor:
    raise AssertionError("nobody is judged without patience")


def scripted_judge(costs: list[list[float]]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a judge that reports ``costs[r][epoch]`` for member r; epoch 0 is the start."""
    epochs = iter(range(100))

    def judge(value: Tensor, members: Tensor) -> Tensor:
        epoch = next(epochs)
        return torch.tensor([costs[r][epoch] for r in members.tolist()], dtype=torch.float64)

    return judge


def run(
    options: TrainingOptions,
    loss: Callable[[Tensor, Tensor, Tensor], Tensor] = bowl,
    judge: Callable[[Tensor, Tensor], Tensor] = no_judge,
    rows: Tensor = ROWS,
    watch: Callable[[Epoch], None] = lambda epoch: None,
) -> TrainingResult:
    initial = torch.zeros(1, len(rows), 2, dtype=torch.float64)
    return train(initial, rows, by_autograd(loss), judge, options, torch.Generator().manual_seed(0), watch=watch)


def test_plain_steps_follow_the_closed_form_with_a_rate_for_each_member() -> None:
    rates = torch.tensor([0.01, 0.1, 0.5], dtype=torch.float64)
    options = TrainingOptions(epochs=2, patience=None, learning_rate=rates, optimizer="sgd", averaging=False)
    expected = CENTRES * (1 - (1 - rates) ** 20)[:, None]
    assert torch.allclose(run(options).value, expected, rtol=1e-12)


@pytest.mark.parametrize("per_member", [False, True])
def test_adam_takes_the_steps_of_torch(per_member: bool) -> None:
    rates = [0.05, 0.2, 1.0] if per_member else [0.05] * 3
    options = TrainingOptions(
        epochs=3,
        patience=None,
        learning_rate=torch.tensor(rates, dtype=torch.float64) if per_member else 0.05,
        optimizer="adam",
        averaging=False,
    )
    trained = run(options)
    for member, rate in enumerate(rates):
        theta = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        adam = torch.optim.Adam([theta], lr=rate)
        for _ in range(30):
            adam.zero_grad()
            (0.5 * (theta - CENTRES[0, member]).square().sum()).backward()
            adam.step()
        assert torch.allclose(trained.value[0, member], theta, rtol=1e-9, atol=1e-9)


def test_the_moving_average_forgets_half_of_the_start_in_one_epoch() -> None:
    # The first step reaches the centre, so the average is 2^-epochs of the way back to the start.
    options = TrainingOptions(epochs=3, patience=None, learning_rate=1.0, optimizer="sgd", averaging=True)
    assert torch.allclose(run(options).value, CENTRES * (1 - 0.5**3), rtol=1e-12)


@pytest.mark.parametrize(("rows", "batch", "steps"), [(12, 128, 10), (12, 3, 10), (200, 10, 20), (205, 10, 21)])
def test_an_epoch_is_one_pass_over_the_rows_and_at_least_ten_steps(rows: int, batch: int, steps: int) -> None:
    options = TrainingOptions(
        epochs=1, patience=None, batch_size=batch, learning_rate=1.0, optimizer="sgd", averaging=False
    )
    trained = run(options, slope, rows=torch.arange(rows)[None])
    assert trained.value.tolist() == [[[steps, steps]]]


def test_every_member_visits_its_rows_once_before_repeating_any() -> None:
    visited: list[Tensor] = []

    def record_rows(value: Tensor, rows: Tensor, members: Tensor) -> Tensor:
        visited.append(rows)
        return bowl(value, rows, members)

    run(TrainingOptions(epochs=1, patience=None, batch_size=4), record_rows)
    passes = [torch.cat(visited[start : start + 3], dim=1) for start in (0, 3, 6)]
    for once in passes:
        assert torch.equal(once.sort(dim=1).values, ROWS)
    assert not torch.equal(passes[0], passes[1])
    assert (passes[0] - passes[0][:1]).unique(dim=0).shape[0] == 3


def test_each_member_keeps_its_best_epoch_and_leaves_after_its_patience() -> None:
    costs = [
        [4.0, 3.0, 1.0, 2.0, 1.0, math.nan, math.nan],
        [9.5, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0],
        [2.0, 1.0, 2.0, 3.0, math.nan, math.nan, math.nan],
    ]
    rates = torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64)
    options = TrainingOptions(epochs=6, patience=2, learning_rate=rates, optimizer="sgd", averaging=False)
    seen: list[float | None] = []
    trained = run(options, slope, scripted_judge(costs), watch=lambda epoch: seen.append(epoch.held_out_cost))
    assert trained.best_epochs == [2, 6, 1]
    assert trained.stopped_early == [True, False, True]
    assert trained.cost.tolist() == [1, 4, 1]
    assert trained.value[0, :, 0].tolist() == pytest.approx([20 * 0.1, 60 * 1.0, 10 * 10.0])
    assert seen == pytest.approx([13 / 3, 11 / 3, 4, 7 / 2, 5, 4])


def test_the_earlier_of_two_equal_epochs_is_kept() -> None:
    options = TrainingOptions(epochs=4, patience=4, learning_rate=1.0, optimizer="sgd", averaging=False)
    trained = run(options, slope, scripted_judge([[3.0, 2.0, 1.0, 1.0, 1.0]]), rows=ROWS[:1])
    assert trained.best_epochs == [2]
    assert trained.value.tolist() == [[[20, 20]]]


def test_a_start_that_learning_does_not_improve_is_kept() -> None:
    options = TrainingOptions(epochs=9, patience=3, learning_rate=1.0, optimizer="sgd", averaging=False)
    trained = run(options, slope, scripted_judge([[1.0, 2.0, 1.5, 1.0]]), rows=ROWS[:1])
    assert trained.best_epochs == [0]
    assert trained.stopped_early == [True]
    assert trained.cost.tolist() == [1]
    assert not trained.value.any()


def test_training_ends_when_the_last_member_has_stopped() -> None:
    options = TrainingOptions(epochs=50, patience=1, learning_rate=1.0, optimizer="sgd")
    numbers: list[int] = []
    costs = [[2.0, 1.0, 2.0]] * 3
    trained = run(options, slope, scripted_judge(costs), watch=lambda epoch: numbers.append(epoch.number))
    assert numbers == [1, 2]
    assert trained.stopped_early == [True, True, True]


def test_one_diverging_member_raises() -> None:
    rates = torch.tensor([0.1, 0.1, 1e200], dtype=torch.float64)
    options = TrainingOptions(epochs=2, patience=None, learning_rate=rates, optimizer="sgd")
    with pytest.raises(Diverged, match="a smaller learning_rate usually helps"):
        run(options)


def test_an_infinite_loss_raises_even_with_a_finite_gradient() -> None:
    def endless(value: Tensor, rows: Tensor, members: Tensor) -> Tensor:
        return bowl(value, rows, members) + math.inf

    with pytest.raises(Diverged):
        run(TrainingOptions(epochs=1, patience=None), endless)


def in_groups(options: TrainingOptions, costs: list[list[float]], together: int) -> TrainingResult:
    """Train one member per scripted cost sequence, in groups."""
    rows = torch.arange(12).repeat(len(costs), 1)
    initial = torch.zeros(1, len(costs), 2, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    return train(initial, rows, by_autograd(slope), scripted_judge(costs), options, generator, together=together)


def test_a_members_best_epoch_does_not_depend_on_its_groups_duration() -> None:
    """The first member stops improving at once and improves later only because the second keeps the group going."""
    stopped, going = [5, 4, 9, 9, 9, 1, 1, 1, 1, 1], [5, 4, 3, 2, 1, 0.9, 0.8, 0.7, 0.6, 0.5]
    found = in_groups(TrainingOptions(epochs=9, patience=2, optimizer="sgd"), [stopped, going], together=2)
    assert found.best_epochs == [1, 9]
    assert found.cost.tolist() == [4.0, 0.5]


@pytest.mark.parametrize(
    ("levels", "last_epochs"),
    [
        # Slightly worse than the better half. It must be clearly beaten to leave, so it stays.
        ([11.9, 11.0, 10.0, 11.5, 11.8], [8, 8, 8, 2, 2]),
        # Clearly beaten.
        ([14.0, 13.0, 10.0, 11.0], [2, 2, 8, 8]),
    ],
)
def test_after_a_rung_the_better_half_and_the_first_group_continue(levels: list[float], last_epochs: list[int]) -> None:
    costs = [[level - 0.01 * epoch for epoch in range(9)] for level in levels]
    options = TrainingOptions(epochs=8, patience=20, optimizer="sgd", rungs=(2,))
    assert in_groups(options, costs, together=1).best_epochs == last_epochs


def test_groups_are_judged_at_a_rung_by_the_mean_of_their_members() -> None:
    levels = [10.0, 10.0, 1.0, 30.0, 9.0, 9.0]
    costs = [[level - 0.01 * epoch for epoch in range(9)] for level in levels]
    options = TrainingOptions(epochs=8, patience=20, optimizer="sgd", rungs=(3,))
    assert in_groups(options, costs, together=2).best_epochs == [8, 8, 3, 3, 8, 8]


def test_an_epoch_uses_at_most_the_allowed_rows() -> None:
    met: list[int] = []

    def count_rows(value: Tensor, rows: Tensor, members: Tensor) -> Tensor:
        met.append(rows.shape[1])
        return slope(value, rows, members)

    rows = torch.arange(1000)[None]
    run(TrainingOptions(epochs=2, patience=None, batch_size=10, epoch_rows=200), count_rows, rows=rows)
    assert met == [10] * 40
