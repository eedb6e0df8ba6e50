"""The mutants: small bugs, and the tests that must notice each of them.

Add a mutant as one line in the group of its file.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """Replace ``old``, which occurs once in ``file``, by ``new``: this ``breaks`` something, and one of ``tests`` must
    fail."""

    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def group(file: str, tests: str, *mutants: tuple[str, str, str]) -> list[Mutant]:
    """Return mutants of one file, each given as (breaks, old, new), that the same tests must kill.

    ``tests`` is a test file, optionally followed by a colon and the names of the tests that suffice.
    """
    path, _, names = tests.partition(": ")
    chosen = tuple(f"{path}::{name}" for name in names.split()) or (path,)
    return [Mutant(breaks, file, old, new, chosen) for breaks, old, new in mutants]


MUTANTS = [
    *group(
        "bco_core/backtest/splits.py",
        "tests/bco_core/backtest/test_backtest.py",
        ("lead of a rolling origin", "timeline.periods <= begin - timeline.lead", "timeline.periods < begin"),
    ),
    *group(
        "bco_core/backtest/paired.py",
        "tests/bco_core/backtest/test_backtest.py",
        ("two-way clustering", "variances[0][0] + variances[1][0] - _variance", "variances[0][0] - _variance"),
        ("length of blocks", "max(lead, season, math.ceil(math.sqrt(span)))", "1"),
    ),
    *group(
        "bco_core/backtest/realised_costs.py",
        "tests/bco_core/backtest/test_backtest.py",
        ("regret against foresight", "cost[rows] - foresight_cost(problem, happened)", "cost[rows]"),
    ),
    *group(
        "app/backtests/backtest.py",
        "tests/app/backtests/test_backtests.py: test_no_change_of_later_rows_changes_an_earlier_decision",
        (
            "categories and medians of the past",
            "columns=known_columns(dataset.columns, past)",
            "columns=dataset.columns",
        ),
    ),
    *group(
        "bco_core/certificates.py",
        "tests/bco_core/test_certificate_bounds.py",
        ("union bound over λ, lemma", "math.log(len(LEMMA_GRID) / failure)", "math.log(1 / failure)"),
        ("union bound over λ, Bernstein", "math.log(len(grid) / failure)", "math.log(1 / failure)"),
        ("Maurer's 2√n", "math.log(2 * math.sqrt(rows) / failure)", "math.log(1 / failure)"),
        ("KL in PAC-Bayes-kl", "(divergence + math.log(2 *", "(math.log(2 *"),
        ("Bernstein's second term", " + 7 * log / (3 * (count - 1))", ""),
        ("second moments in the Bernstein bound", " + by_square * moments.square", ""),
        ("λ²/8 of Hoeffding's lemma", " + LEMMA_GRID / 8", ""),
        (
            "direction of the kl inversion",
            "divergence_of(observed, mean) <= budget",
            "divergence_of(mean, observed) <= budget",
        ),
        ("the number of particles", "math.log(1 / failure) / count", "math.log(1 / failure) / count**2"),
    ),
    *group(
        "bco_core/certificates.py",
        "tests/bco_core/test_certificates.py",
        ("η split between the bounds", "* failure / len(BOUNDS)", "* failure"),
        ("η split between averages", 'shares["draws"] / (2 * len(used))', 'shares["draws"]'),
        ("class prior", " + math.log(part.weight * len(classes))", ""),
        ("class prior over the used classes", "part.weight * len(classes)", "part.weight * len(used)"),
        (
            "certificate sampled from all rows",
            "rows[torch.randint(len(rows), ",
            "torch.arange(len(outcomes))[torch.randint(len(outcomes), ",
        ),
        ("margin of the draws", "Moments(estimated.risk + margins.risk, ", "Moments(estimated.risk, "),
        ("margin of the squares", "estimated.square + margins.square)", "estimated.square)"),
        ("outcomes below their bounds", "(outcomes < lower) | (outcomes > upper)", "outcomes > upper"),
        ("outcomes above their bounds", "(outcomes < lower) | (outcomes > upper)", "outcomes < lower"),
        ("costs above their bound", "max(one.worst for one in drawn) > 1", "max(one.worst for one in drawn) > 1000"),
        ("rounding of particles per member", "min(value + rounding, 1.0)", "value"),
        ("KL of the heaviest member alone", "(kl * mixture.weights.double()).sum().item()", "kl[0].item()"),
        ("the largest of the bounds", "best = min(bounds, ", "best = max(bounds, "),
    ),
    *group(
        "bco_core/inference/vi/plan.py",
        "tests/bco_core/test_certificates.py",
        ("prior scaled with all rows", "return self.sample.rows(self.scaling)", "return self.sample"),
        (
            "scaling rows counted in the certificate",
            "return shuffled[:few], shuffled[few:]",
            "return shuffled[:few], shuffled",
        ),
    ),
    *group(
        "bco_core/problems/newsvendor/problem.py",
        "tests/bco_core/test_certificates.py",
        ("largest cost of surplus", "torch.maximum(short, left).sum()", "short.sum()"),
        ("largest cost of shortage", "torch.maximum(short, left).sum()", "left.sum()"),
    ),
    *group(
        "bco_core/problems/newsvendor/item_costs.py",
        "tests/bco_core/problems/newsvendor/test_shared_rows.py",
        ("orders beyond the jump", "return under.orders + share[:, None]", "return over.orders + share[:, None]"),
        (
            "one pack too many within a row",
            "(row.limit - under.use) / row.pack",
            "(row.limit - under.use) / row.pack + 1",
        ),
        ("a limit in parts of packs", "+ 1e-9).floor() * row.pack)", ") * row.pack)"),
        ("choice of the better pack neighbour", "torch.where(rise < 0, up, down)", "torch.where(rise < 0, down, up)"),
    ),
    *group(
        "bco_core/problems/newsvendor/program.py",
        "tests/bco_core/problems/newsvendor/test_shared_rows.py",
        ("CVaR without its tail", "weights / (1 - risk.cvar_level)", "weights"),
        ("tail shortage limit", "np.array([instance.short - before])", "np.array([instance.short])"),
    ),
    *group(
        "bco_core/solvers/basis_pool.py",
        "tests/bco_core/solvers/test_basis_pool.py: test_a_basis_with_an_inaccurate_inverse_gives_no_wrong_answer",
        ("certificate of unpivoted bases", "if moved or not (bases.certified[at] and ", "if moved and ("),
    ),
    *group(
        "bco_core/solvers/cuts.py",
        "tests/bco_core/solvers/test_cuts.py: test_risk_weights_are_probabilities_that_give_the_sorted_tail "
        "test_the_remaining_gap_with_many_scenarios_is_as_stated",
        ("gap a hundred times as wide", "GAP = 1e-7", "GAP = 1e-5"),
        ("tail of CVaR", "taken = min(weights[k], left)", "taken = weights[k]"),
    ),
    *group(
        "bco_core/inference/mh/diagnostics.py",
        "tests/bco_core/inference/mh/test_method.py: "
        "test_one_unmixed_quantity_is_not_hidden_by_mixed_ones "
        "test_r_hat_is_the_maximum_of_rank_and_folded_rank_r_hat "
        "test_burn_in_losses_are_excluded_from_mixing_diagnostics",
        ("worst R-hat", "np.max(worst)", "np.min(worst)"),
        ("least bulk ESS", "np.min(bulk)", "np.max(bulk)"),
        ("least tail ESS", "np.min(tail)", "np.max(tail)"),
        ("rank-normalised R-hat", 'stats.rhat(values, method="rank"', 'stats.rhat(values, method="identity"'),
        ("split R-hat of the sampled steps", "sampled = info.risks[plan.burn_in :]", "sampled = info.risks"),
    ),
    *group(
        "bco_core/inference/mh/metropolis.py",
        "tests/bco_core/inference/mh/test_metropolis.py: test_adaptation_follows_its_recursion_step_by_step "
        "test_every_state_has_the_required_feasibility test_a_gaussian_target_has_its_known_moments",
        ("variance recursion, decay", "variance.mul_(1 - rate).addcmul_(", "variance.addcmul_("),
        ("variance recursion, weight", "addcmul_(away, away, value=rate)", "addcmul_(away, away, value=rate**2)"),
        ("mean recursion", "mean.add_(away, alpha=rate)", "mean.add_(away, alpha=0.5 * rate)"),
        ("decay of adaptation", "_DECAY = 0.6", "_DECAY = 0.9"),
        ("target acceptance rate", "ACCEPTANCE = 0.234", "ACCEPTANCE = 0.334"),
        ("adaptation beyond burn-in", "if step <= options.burn_in:", "if step <= options.burn_in + 1:"),
        ("prior of the proposal", "gain = (prior - log_prior[c]).item() - ", "gain = -"),
        (
            "allowed number of infeasible rows",
            "rejected or failures > self.allowed or",
            "rejected or failures > self.allowed + 1 or",
        ),
    ),
    *group(
        "bco_core/select.py",
        "tests/bco_core/test_select.py",
        ("standard errors in a clear gain", "if gain.mean < -errors * gain.standard_error", "if gain.mean < 0"),
        ("the smallest clear gain", "chosen = min(clear, ", "chosen = max(clear, "),
        ("cheapest share", "means.argmin()", "means.argmax()"),
    ),
    *group(
        "bco_core/regression.py",
        "tests/bco_core/inference/vi/test_warm_start.py: test_ridge_chooses_the_penalty_of_least_leave_one_out_error",
        ("ridge leverage", " / (1 - leverage.clamp_max(1 - 1e-9))[:, :, None]", ""),
        ("leverage of the intercept", "(u**2).T + 1 / count", "(u**2).T"),
        ("penalty of the first outcome for all", "error.argmin(dim=0)", "error[:, :1].argmin(dim=0)"),
    ),
    *group(
        "bco_core/predictive.py",
        "tests/bco_core/test_predictive.py",
        ("scenario offset", "return here + residuals", "return there + residuals"),
        ("shrinking of residuals", "residuals = carrier.shrink * (outcomes - there)", "residuals = outcomes - there"),
        ("middle of the strata", "torch.float64) + 0.5) / count", "torch.float64)) / count"),
        (
            "residuals scaled to the row's spread",
            "residuals / history.scales[chosen] * scales[:, None]",
            "residuals * scales[:, None]",
        ),
    ),
    *group(
        "bco_core/predictive_choice.py",
        "tests/bco_core/test_predictive_choice.py",
        ("spread in CRPS", "(2 * before + share - 1)", "(before + share - 1)"),
        ("half of the energy score", "near - 0.5 * between", "near - between"),
        ("costs in the choice of carrier", "one / unit + cost / cost_unit", "one / unit"),
        ("sharper bandwidth", "math.sqrt((1 + shrink.square().mean().item()) / 2)", "1.0"),
    ),
    *group(
        "bco_core/calibration.py",
        "tests/bco_core/test_calibration.py",
        ("ties in PIT", "torch.where(width > 0, spread.clamp(0, 1), ", "torch.where(width > 2, spread.clamp(0, 1), "),
        ("ties in coverage", "torch.where(width > 0, overlap, ", "torch.where(width > 2, overlap, "),
        ("width of central ranges", "<= level / 2", "<= level"),
    ),
    *group(
        "bco_core/inference/training.py",
        "tests/bco_core/inference/test_training.py",
        ("patience per member", " & (epoch - best_epoch[active] <= options.patience)", ""),
        ("halving", "(len(order) + 1) // 2", "len(order)"),
        ("first group survives a rung", "survivors[0] |= keep_first", "survivors[0] |= False"),
        ("only clearly beaten groups leave", "costs[0] <= CLEARLY_WORSE * costs.min()", "costs[0] >= 0"),
    ),
    *group(
        "bco_core/timeline.py",
        "tests/bco_core/test_timeline.py",
        (
            "rows known one lead before",
            "timeline.periods[rows].min() - timeline.lead",
            "timeline.periods[rows].min() - 1",
        ),
        ("a gap behind a block", "timeline.periods >= last + timeline.lead", "timeline.periods > last"),
        ("blocks split a period", "timeline.periods, right=True)", "timeline.periods)"),
    ),
    *group(
        "bco_core/features/boosted.py",
        "tests/bco_core/features/test_boosted.py",
        ("out-of-fold boosting", "(self._folds != part).nonzero()", "(self._folds >= 0).nonzero()"),
        ("boosting on earlier blocks only", "known_before(timeline, self._folds == part)", "(self._folds <= part)"),
        ("outcomes scaled by level", "label = outcome if unit is None else outcome / unit", "label = outcome"),
    ),
    *group(
        "bco_core/features/trees.py",
        "tests/bco_core/features/test_boosted.py: test_trees_as_arrays_predict_like_lightgbm",
        ("threshold comparison in trees", "<= threshold[node]", "< threshold[node] - 1"),
        ("limit on boosting rounds", "min(end, start + most)", "end"),
    ),
    *group(
        "bco_core/inference/vi/fold_mixture.py",
        "tests/bco_core/features/test_boosted.py: test_a_mixture_embedded_in_a_larger_predictor_predicts_the_same",
        ("base subtracted from slopes", "slopes[:, column, outcome] -= units[outcome]", "pass"),
    ),
    *group(
        "bco_core/inference/forward.py",
        "tests/bco_core/inference/test_forward.py",
        ("season from known rows only", "begin = -(-timeline.lead // timeline.season)", "begin = 1"),
        ("training on past rows only", "known_before(timeline, block == number).nonzero()", "(block >= 0).nonzero()"),
    ),
    *group(
        "bco_core/inference/update.py",
        "tests/bco_core/inference/test_update.py",
        ("comparison on training rows", "torch.cat([old, known]), options", "torch.cat([old, new]), options"),
        ("old posterior as prior", "centre = old.loc if options.as_prior", "centre = 0 * old.loc if options.as_prior"),
    ),
    *group(
        "bco_core/inference/held_out.py",
        "tests/bco_core/inference/test_diagnostics.py: "
        "test_outcomes_beyond_their_bounds_are_reported_as_clipped "
        "test_the_order_of_rows_is_detected_from_all_rows",
        ("outcomes beyond the upper bound", "(outcomes < bounds[0]) | (outcomes > bounds[1])", "outcomes < bounds[0]"),
        ("neighbouring rows", "following = rows[order].diff() == 1", "following = rows[order].diff() > 0"),
    ),
    *group(
        "bco_core/inference/vi/variational.py",
        "tests/bco_core/inference/vi/test_early_stopping.py",
        (
            "early stopping on own held-out rows",
            "counts = (~held_out[:, validation]).double()",
            "counts = held_out[:, validation].double()",
        ),
    ),
    *group(
        "bco_core/inference/vi/finalize.py",
        "tests/bco_core/inference/test_learn.py: test_the_history_stores_mean_predictions_not_the_modes",
        (
            "history from the mode",
            "candidate.out_of_fold.at(rows).scenarios.mean()",
            "candidate.out_of_fold.at(rows).scenarios.mode",
        ),
    ),
]
