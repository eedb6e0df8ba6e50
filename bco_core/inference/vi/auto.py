"""The method ``auto``: a fold mixture from warm starts whose every choice is made by decision cost on held-out rows.

Three families compete. A linear model and a network with a linear skip path each choose among their configurations, and
are mixed by the share whose averaged decisions cost least on held-out rows. From a thousand rows on, residual models of
a boosted rule (:mod:`bco_core.features.boosted`) compete: none, linear, or a network, on features of its trees with or
without contexts; the winner is mixed with the others in the same way. A network that a pilot finds clearly more costly
than the boosted rule is not learned.

Where rows have a time, held-out rows are later ones: every family is judged by members that learned from earlier rows
only, and learns again from all rows under the best configuration.

θ learns from up to 8,000 rows, chosen at random or evenly over time; trees use all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from bco_core.certificates import ModelClass
from bco_core.data import FOLDS, Arrays, Folds
from bco_core.distributions import Mixture
from bco_core.estimates import paired_difference
from bco_core.features.boosted import LEAST_ROWS, BoostedFeatures, BoostedFits
from bco_core.features.standardized import STANDARDIZED
from bco_core.gibbs import GibbsTarget, resolve_kl_weight
from bco_core.inference.method import Checkpoint, Learned, Method, Part, Task
from bco_core.inference.options import AutoOptions
from bco_core.inference.vi.cross_validation import (
    CandidateViews,
    OutOfFoldView,
    averaged_costs,
    judge_nested,
    out_of_fold,
    pool_views,
    stretches_of,
)
from bco_core.inference.vi.finalize import Candidate, keep_history, make_posterior
from bco_core.inference.vi.fold_mixture import embed, join_fits, learn_all
from bco_core.inference.vi.hyperparameters import (
    AS_BOOSTED,
    BESIDE_BOOSTED,
    DEPARTING,
    MANY_ROWS,
    WIDE,
    Configuration,
    at_one_temperature,
    labels,
    members_for,
    recipe_for,
    sweep_for,
)
from bco_core.inference.vi.plan import LearningSettings, MixturePlan, make_plan
from bco_core.inference.vi.variational import PASSES_A_STEP, VariationalFit, VariationalOptions
from bco_core.policies import first_policy
from bco_core.predictors.registry import BOOSTED, PREDICTORS
from bco_core.progress import Progress, part_of
from bco_core.seeds import entropy
from bco_core.select import Selection, select, share_costs

# κ at 256 rows, for priors scaled to the predictor.
KL_WEIGHT = 2e-4
EPOCHS, EPOCH_ROWS = 300, 8192
# θ gains nothing from more rows; trees do.
POSTERIOR_ROWS = 8000
# A candidate is clearly more costly beyond this difference, in standard errors and as a share.
_CLEARLY, _DEARER = 2.0, 0.05


@dataclass(frozen=True)
class ModelFamily:
    """A kind of predictor, the configurations that compete, and the boosted features of a residual model."""

    kind: str
    sweep: tuple[Configuration, ...]
    boosted: BoostedFeatures | None = None

    @property
    def label(self) -> str:
        """The name in reports."""
        if self.boosted is None:
            return self.kind
        contexts = "" if len(self.boosted.column_indices) == len(self.boosted.columns) else " and contexts"
        return f"{self.kind} on boosted{contexts}"


def _boosts(task: Task) -> bool:
    options: AutoOptions = task.options
    if options.predictor.kind == BOOSTED:
        return True
    plain = options.predictor.kind == "auto" and options.predictor.features == STANDARDIZED.name
    return plain and len(task.sample) >= LEAST_ROWS and not options.certify


def _plan(task: Task) -> MixturePlan:
    options: AutoOptions = task.options
    rows = min(len(task.sample), POSTERIOR_ROWS)

    def settle(folds: Folds) -> LearningSettings:
        variational = VariationalOptions(
            kl_weight=resolve_kl_weight(
                folds.train.shape[1], options.kl_weight, options.inverse_temperature, KL_WEIGHT
            ),
            policy=first_policy(task.problem),
            epochs=options.epochs or EPOCHS,
            batch_size=128 if rows <= 1500 else 256,
            draws=options.draws or 1,
            validation_draws=4,
            epoch_rows=EPOCH_ROWS,
        )
        kinds, in_time = options.predictor.kinds, task.sample.timeline is not None
        sweeps = {kind: sweep_for(rows, recipe_for(kind), in_time) for kind in kinds}
        if _boosts(task) and task.problem.fractiles is not None:
            # A good order is near a good prediction: wide starts gain nothing.
            sweeps = {kind: tuple(one for one in sweep if one not in WIDE) for kind, sweep in sweeps.items()}
        if options.has_temperature:
            sweeps = {kind: at_one_temperature(sweep) for kind, sweep in sweeps.items()}
        scales = {kind: recipe_for(kind).prior_scale for kind in {*kinds, "linear", "skip_mlp"}}
        return LearningSettings(variational, scales, sweeps)

    return make_plan(task, options.members or members_for(rows), settle, POSTERIOR_ROWS, _boosts(task))


def _boosting(plan: MixturePlan) -> BoostedFits | None:
    if not _boosts(plan.task):
        return None
    return BoostedFits.of(plan.task.sample, plan.rows, plan.task.problem, plan.task.options.seed)


def _split(task: Task, progress: Progress) -> list[Part]:
    """Return one part for boosting without each fold; none where one process alone is faster."""
    plan = _plan(task)
    boosting = _boosting(plan)
    if boosting is None or not plan.shared:
        return []
    return [Part(1, {"part": np.array([part])}) for part in range(boosting.parts)]


def _work(task: Task, data: Arrays, progress: Progress, checkpoint: Checkpoint | None) -> Arrays:
    boosting = _boosting(_plan(task))
    if boosting is None:
        raise RuntimeError("there is nothing to boost here")
    progress(0.0, "boosting trees")
    return boosting.fit(int(data["part"][0]))


def _fit_boosted(plan: MixturePlan, results: Sequence[Arrays], progress: Progress) -> BoostedFeatures | None:
    boosting = _boosting(plan)
    if boosting is None:
        return None
    if not results:
        fitted = []
        for part in range(boosting.parts):
            progress(part / boosting.parts, "boosting trees")
            fitted.append(boosting.fit(part))
        results = fitted
    return boosting.join(results)


def _join(task: Task, results: Sequence[Arrays], progress: Progress) -> Learned:
    plan = _plan(task)
    boosted = _fit_boosted(plan, results, part_of(progress, 0.0, 0.0 if results else 0.3))
    rest = part_of(progress, 0.0 if results or boosted is None else 0.3, 1.0)
    learned: list[Candidate] = []
    views: list[CandidateViews] = []
    residual = None
    if boosted is not None:
        residual = _compete(plan.boosted, _residual_families(plan, boosted), part_of(rest, 0.0, 0.3))
    kinds = task.options.predictor.kinds
    rest = part_of(rest, 0.0 if boosted is None else 0.3, 1.0)
    for index, kind in enumerate(kinds):
        family, is_network = ModelFamily(kind, plan.settings.sweeps[kind]), PREDICTORS[kind].is_network
        with_boosted = is_network and residual is not None
        if with_boosted and not task.options.has_temperature:
            family = replace(family, sweep=BESIDE_BOOSTED)
        part = part_of(rest, 0.0 if index == 0 else 0.1, 1.0 if index == len(kinds) - 1 else 0.1)
        if with_boosted or (is_network and len(plan.rows) > MANY_ROWS):
            chosen = _pilot(plan, family, residual, part_of(part, 0.0, 0.5))
            if chosen is None:
                continue
            family, part = replace(family, sweep=(chosen,)), part_of(part, 0.5, 1.0)
        candidate, view = _compete(plan.beside_boosted if with_boosted else plan, [family], part)
        learned.append(candidate)
        views.append(view)
    if residual is not None:
        learned.append(residual[0])
        views.append(residual[1])
    final = learned[0]
    for other in learned[1:]:
        final = _mix(plan, final, other, boosted)
    final = replace(final, candidates=[row for one in learned for row in one.candidates])
    stored = keep_history(plan, final)
    policy_results = judge_nested(final.target, views, stored, plan.judging, plan.generator)
    return make_posterior(plan, final, stored, policy_results.under(task.options.policy))


def _residual_families(plan: MixturePlan, boosted: BoostedFeatures) -> list[ModelFamily]:
    """Return the families that compete on boosted features, the plain boosted rule first."""
    narrow = boosted.only(contexts=False)
    sweep: tuple[Configuration, ...] = DEPARTING
    if plan.task.options.has_temperature:
        sweep = at_one_temperature(sweep)
    families = [ModelFamily("linear", (AS_BOOSTED, *sweep), narrow), ModelFamily("linear", sweep, boosted)]
    if len(plan.rows) <= MANY_ROWS:
        families.append(ModelFamily("skip_mlp", (sweep[0],), boosted))
    return families


def _compete(
    plan: MixturePlan, families: Sequence[ModelFamily], progress: Progress
) -> tuple[Candidate, CandidateViews]:
    """Select among the configurations of some families, and learn the winner.

    Without time, networks compete on the first partition, and the winner learns on all; linear members are cheap and
    compete on all partitions. With time they compete forward, and the winner learns again from all rows.
    """
    generator, options = plan.generator, plan.settings.variational
    tried: list[tuple[ModelFamily, Configuration, GibbsTarget, VariationalFit, OutOfFoldView]] = []
    several = len(families) > 1 or not PREDICTORS[families[0].kind].is_network
    competing = plan.judging if plan.forward or several else plan.folds[:FOLDS]
    for index, family in enumerate(families):
        target = plan.target(family.kind, family.boosted)
        recipe = recipe_for(family.kind, family.boosted is not None)
        part = part_of(progress, 0.8 * index / len(families), 0.8 * (index + 1) / len(families))
        fits = learn_all(target, competing, recipe, family.sweep, options, generator, part)
        for one, fit in zip(family.sweep, fits, strict=True):
            tried.append((family, one, target, fit, out_of_fold(target, competing, fit.mixture, generator)))
    costs = [averaged_costs(target, seen) for _, _, target, _, seen in tried]
    rows = [row for family in families for row in labels(family.label, family.sweep)]
    choice = select(costs, rows)
    family, best, target, fit, seen = tried[choice.best]
    recipe = recipe_for(family.kind, family.boosted is not None)
    folds = plan.folds
    if plan.forward or len(folds.train) > len(competing.train):
        later = folds if plan.forward else folds[len(competing.train) :]
        (again,) = learn_all(target, later, recipe, [best], options, generator, part_of(progress, 0.8, 1.0))
        fit = again if plan.forward else join_fits([fit, again])
        seen = seen if plan.forward else out_of_fold(target, folds, fit.mixture, generator)
    views = CandidateViews([view for *_, view in tried], costs, choice.best, seen, target)
    return _candidate(plan, best, target, fit, seen, choice), views


def _candidate(
    plan: MixturePlan,
    best: Configuration,
    target: GibbsTarget,
    fit: VariationalFit,
    seen: OutOfFoldView,
    choice: Selection,
) -> Candidate:
    kl_weight = plan.kl_weight * best.whole_kl_factor
    return Candidate(target, fit.mixture, [ModelClass(target, fit.mixture, 1.0)], seen, [fit], kl_weight, choice.table)


def _pilot(
    plan: MixturePlan, family: ModelFamily, residual: tuple[Candidate, CandidateViews] | None, progress: Progress
) -> Configuration | None:
    """Return the configuration of least cost for one member of a network on some of its rows; None where it is clearly
    more costly than a boosted rule on the same rows."""
    folds, target = plan.pilot, plan.target(family.kind)
    options = replace(plan.settings.variational, peers=1)
    generator = torch.Generator().manual_seed(entropy(plan.task.options.seed, 1))
    fits = learn_all(target, folds, recipe_for(family.kind), family.sweep, options, generator, progress)
    seen = [out_of_fold(target, folds, fit.mixture, generator) for fit in fits]
    costs = [averaged_costs(target, view) for view in seen]
    chosen = select(costs, labels(family.kind, family.sweep)).best
    if residual is not None:
        rule, rows = residual[0], seen[chosen].rows
        boosted_costs = averaged_costs(rule.target, rule.out_of_fold.at(rows))
        more = paired_difference(costs[chosen], boosted_costs)
        # With time, a network that is no better now falls behind later, because trees gain from more rows.
        room = 0.0 if plan.forward else max(_CLEARLY * more.standard_error, _DEARER * boosted_costs.mean().item())
        if more.mean > room:
            return None
    return family.sweep[chosen]


def _mix(plan: MixturePlan, first: Candidate, second: Candidate, boosted: BoostedFeatures | None) -> Candidate:
    """Mix two candidates by the share whose averaged decisions cost least on held-out rows, in one parameter space."""
    sample, rows = first.target.sample, first.out_of_fold.rows
    stretches = stretches_of(second.target, rows) if plan.forward else None
    shares = share_costs(
        first.target.problem,
        first.out_of_fold.scenarios,
        second.out_of_fold.scenarios,
        sample.outcomes[rows],
        stretches,
    )
    share = shares.best()
    classes = [replace(one, weight=one.weight * (1 - share)) for one in first.classes]
    classes += [replace(one, weight=one.weight * share) for one in second.classes]
    departs = second.target.predictor.features.bases is not None
    used = [one for one in classes if one.weight > 0]
    target = _common_target(plan, [one.target for one in used], boosted)
    parts = [embed(one.target, one.mixture, target, _columns(one.target, target)) for one in used]
    mixture = Mixture(
        parts[0].family,
        torch.cat([part.weights * one.weight for part, one in zip(parts, used, strict=True)]),
        torch.cat([part.loc for part in parts]),
        torch.cat([part.scale for part in parts]),
    )
    heavier = second if share > 0.5 else first
    return Candidate(
        target,
        mixture,
        classes,
        pool_views(first.out_of_fold, second.out_of_fold, share),
        first.fits + second.fits,
        heavier.kl_weight if departs else second.kl_weight,
        share=first.share if departs else share,
        shares=first.shares if departs else shares.table(),
        boosted_share=share if departs else None,
    )


def _common_target(plan: MixturePlan, targets: Sequence[GibbsTarget], boosted: BoostedFeatures | None) -> GibbsTarget:
    """Return the smallest target into which all targets can be embedded."""
    if len(targets) == 1:
        return targets[0]
    kind = "skip_mlp" if any(target.predictor.is_network for target in targets) else "linear"
    if boosted is not None and any(target.predictor.features.bases is not None for target in targets):
        return plan.target(kind, boosted)
    return next(target for target in targets if target.predictor.kind == kind)


def _columns(source: GibbsTarget, onto: GibbsTarget) -> list[int]:
    """Return the places of one target's features among those of another."""
    mine, theirs = source.predictor.features, onto.predictor.features
    if isinstance(mine, BoostedFeatures) and isinstance(theirs, BoostedFeatures):
        return [theirs.column_indices.index(column) for column in mine.column_indices]
    return list(range(mine.width))


def _vectors(options: AutoOptions, rows: int) -> int:
    """Count a location and a scale for each member of each family."""
    boosted = options.predictor.kind == BOOSTED or (options.predictor.kind == "auto" and rows >= LEAST_ROWS)
    families = len(options.predictor.kinds) + boosted
    return 2 * (options.members or members_for(min(rows, POSTERIOR_ROWS))) * families


def _passes(options: AutoOptions, rows: int) -> float:
    used = min(rows, POSTERIOR_ROWS)
    configurations = sum(len(sweep_for(used, recipe_for(kind))) for kind in options.predictor.kinds)
    count = options.members or members_for(used)
    share = used / rows
    return PASSES_A_STEP * (options.epochs or EPOCHS) * count * (options.draws or 1) * max(configurations, 1) * share


_REASON = "variational inference, because decisions have a gradient with respect to predictions"
AUTO = Method("auto", "vi", _REASON, True, _split, _work, _join, _vectors, _passes)
