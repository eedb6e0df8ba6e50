"""Features fitted to outcomes, between contexts and θ. Here: the outcome of the nearest row.

Honest features take the nearest row of another fold. Leaky ones take the nearest row, which is the row itself: a model
of pure noise then looks perfect in training and is worthless on new rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from bco_core.data import FOLDS, Sample, Standardizer, fold_numbers
from bco_core.errors import InvalidInput
from bco_core.features.base import FeatureKind
from bco_core.features.registry import FEATURES
from bco_core.features.standardized import STANDARDIZED
from bco_core.inference.learn import learn
from bco_core.inference.mh.diagnostics import ChainDiagnostics
from bco_core.inference.options import AutoOptions, LearningOptions, MhOptions, ViOptions
from bco_core.posterior import Posterior, digest
from bco_core.predictors.registry import PredictorOptions, build_predictor
from bco_core.prescribe import PrescribeOptions, prescribe
from tests.support.linear_demand import PROBLEM, STEPWISE, constant_cost, learn_diagnostics, learn_mixture, mean_cost


@dataclass(frozen=True)
class Nearest:
    """The outcome of the nearest row, in standard deviations."""

    kind: str
    contexts: Tensor
    outcomes: Tensor
    folds: Tensor

    bases: ClassVar[None] = None
    base_columns: ClassVar[tuple[int, ...]] = ()
    shrink: ClassVar[Tensor] = torch.ones(1, dtype=torch.float64)

    @property
    def context_dim(self) -> int:
        return self.contexts.shape[1]

    @property
    def width(self) -> int:
        return self.outcomes.shape[1]

    @property
    def spread(self) -> Tensor:
        return self.outcomes.std(dim=0, correction=0)

    def of_new(self, contexts: Tensor) -> Tensor:
        flat = contexts.reshape(-1, self.context_dim)
        return self._outcome(torch.cdist(flat, self.contexts)).view(*contexts.shape[:-1], self.width)

    def of_history(self, sample: Sample) -> Tensor:
        distance = torch.cdist(sample.contexts, self.contexts)
        if self.kind == "honest":
            distance[self.folds[:, None] == self.folds] = torch.inf
        return self._outcome(distance)

    def _outcome(self, distance: Tensor) -> Tensor:
        return Standardizer.fit(self.outcomes).apply(self.outcomes[distance.argmin(dim=1)])

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"rows": len(self.folds)}, {"near": self.contexts, "met": self.outcomes, "folds": self.folds}


def fit(kind: str, sample: Sample, folds: Tensor) -> Nearest:
    return Nearest(kind, sample.contexts, sample.outcomes, folds)


def restore(kind: str, description: dict[str, Any], arrays: dict[str, Tensor]) -> Nearest:
    assert description["rows"] == len(arrays["folds"])
    return Nearest(kind, arrays["near"], arrays["met"], arrays["folds"])


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("honest", "leaky"):
        monkeypatch.setitem(FEATURES, kind, FeatureKind(kind, partial(fit, kind), partial(restore, kind), True))


def noise(rows: int = 150, seed: int = 0) -> Sample:
    """Draw demand independent of the context."""
    draw = torch.Generator().manual_seed(seed)
    contexts = torch.randn(rows, 3, generator=draw, dtype=torch.float64)
    return Sample(contexts, 100 + 10 * torch.randn(rows, 1, generator=draw, dtype=torch.float64))


def options_with(features: str, kind: str = "linear") -> PredictorOptions:
    return PredictorOptions(kind, (8,), features)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [AutoOptions, partial(ViOptions, members=5, learning_rate=0.02)], ids=["auto", "vi"]
)
def test_features_that_respect_folds_do_not_overstate_a_model_of_noise(options: Any) -> None:
    history, fresh = noise(), noise(2000, seed=1)
    constant = constant_cost(history, history)
    posterior, honest = learn_mixture(history, options(predictor=options_with("honest"), epochs=40))
    assert honest.held_out_cost["averaged"].mean > 0.9 * constant
    assert honest.held_out_cost["averaged"].mean == pytest.approx(mean_cost(posterior, fresh, "averaged"), rel=0.25)
    # Without folds the same features look like a perfect model: this is the leak that folds prevent.
    deceived, leaky = learn_mixture(history, options(predictor=options_with("leaky"), epochs=40))
    assert leaky.held_out_cost["averaged"].mean < 0.5 * constant
    assert mean_cost(deceived, fresh, "averaged") > 0.95 * constant_cost(history, fresh)


def test_chains_learn_from_out_of_fold_features() -> None:
    losses = {}
    for features in ("honest", "leaky"):
        options = MhOptions(
            predictor=options_with(features), chains=2, steps=400, burn_in=200, inverse_temperature=300.0
        )
        diagnostics = learn(STEPWISE, noise(), options).diagnostics
        assert isinstance(diagnostics, ChainDiagnostics)
        losses[features] = sum(diagnostics.chains.mean_loss) / 2
    constant = constant_cost(noise(), noise())
    assert losses["honest"] > 0.9 * constant
    assert losses["leaky"] < 0.5 * constant


@pytest.mark.parametrize(
    "options", [AutoOptions(seed=3, epochs=1), ViOptions(seed=3, epochs=1), MhOptions(seed=3, steps=20, burn_in=10)]
)
def test_features_are_fitted_to_every_row_with_the_folds_of_the_seed(
    options: LearningOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[tuple[Sample, Tensor]] = []

    def spy(sample: Sample, folds: Tensor) -> Nearest:
        met.append((sample, folds))
        return fit("honest", sample, folds)

    monkeypatch.setitem(FEATURES, "honest", FeatureKind("honest", spy, partial(restore, "honest"), True))
    history = noise(53)
    problem = STEPWISE if options.method == "mh" else PROBLEM
    learn(problem, history, replace(options, predictor=options_with("honest")))
    assert met
    for sample, folds in met:
        assert torch.equal(sample.outcomes, history.outcomes)
        assert torch.equal(folds, fold_numbers(53, 3))


def test_fold_numbers_are_balanced_random_and_seeded() -> None:
    folds = fold_numbers(53, 1)
    assert sorted(folds.bincount(minlength=FOLDS).tolist()) == [10, 10, 11, 11, 11]
    assert torch.equal(folds, fold_numbers(53, 1))
    assert not torch.equal(folds, fold_numbers(53, 2))
    assert not torch.equal(folds, torch.arange(53) % FOLDS)


@pytest.mark.parametrize("kind", ["linear", "relu_affine", "mlp", "skip_mlp"])
def test_a_predictor_encodes_contexts_by_its_features(kind: str) -> None:
    history = noise(40)
    features = fit("honest", history, fold_numbers(40, 0))
    predictor = build_predictor(kind, history, (4,) if "mlp" in kind else (), features)
    assert predictor.widths[0] == 1
    theta = torch.randn(3, predictor.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    contexts = noise(6, seed=2).contexts
    nearest = [min(range(40), key=lambda row: (history.contexts[row] - one).norm().item()) for one in contexts]
    met = history.outcomes[nearest]
    seen = (met - history.outcomes.mean()) / history.outcomes.std(correction=0)
    torch.testing.assert_close(predictor.predict(theta, contexts), predictor.forward(theta, seen))
    with pytest.raises(InvalidInput, match="a context needs 3 columns and has 2"):
        predictor.predict(theta, contexts[:, :2])


def test_prescribing_encodes_new_contexts_by_the_features() -> None:
    history, fresh = noise(), noise(9, seed=4)
    posterior, _ = learn_mixture(history, ViOptions(predictor=options_with("honest"), members=2, epochs=3))
    nearest = torch.cdist(fresh.contexts, history.contexts).argmin(dim=1)
    spread, mean = history.outcomes.std(correction=0), history.outcomes.mean()
    seen = (history.outcomes[nearest, 0] - mean) / spread
    slopes, biases = posterior.particles.double().T
    predictions = mean + spread * (slopes * seen[:, None] + biases)
    found = prescribe(posterior, PROBLEM, fresh.contexts, PrescribeOptions("averaged"))
    torch.testing.assert_close(found.decisions[:, 0], predictions.mean(dim=1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("problem", "options", "kind"),
    [
        (PROBLEM, AutoOptions(epochs=2), "auto"),
        (PROBLEM, ViOptions(epochs=2), "mlp"),
        (STEPWISE, MhOptions(chains=2, steps=40, burn_in=20), "linear"),
    ],
    ids=["auto", "vi", "mh"],
)
def test_features_round_trip_in_a_stored_posterior(problem: Any, options: LearningOptions, kind: str) -> None:
    posterior = learn(problem, noise(60), replace(options, predictor=options_with("honest", kind))).posterior
    description, arrays = posterior.to_arrays()
    assert description["predictor"]["features"] == {"kind": "honest", "rows": 60}
    restored = Posterior.from_arrays(json.loads(json.dumps(description)), arrays)
    assert digest(*restored.to_arrays()) == digest(description, arrays)
    contexts = noise(9, seed=4).contexts
    for first, second in zip(
        *(vars(p.scenarios(contexts, p.draws())).values() for p in (posterior, restored)), strict=True
    ):
        assert torch.equal(first, second)


def test_default_features_add_nothing_to_a_stored_posterior() -> None:
    posterior, _ = learn_mixture(noise(), ViOptions(predictor=PredictorOptions("linear"), epochs=1))
    assert "features" not in posterior.to_arrays()[0]["predictor"]
    assert posterior.predictor.features.kind == STANDARDIZED.name


@pytest.mark.parametrize("options", [AutoOptions, ViOptions])
def test_a_certificate_is_refused_if_features_have_seen_outcomes(options: Any) -> None:
    with pytest.raises(InvalidInput, match="a certificate needs a prior without outcomes") as refusal:
        learn(PROBLEM, noise(), options(predictor=options_with("honest"), certify=True))
    assert refusal.value.where == ("certify",)
    assert learn_diagnostics(noise(), options(predictor=options_with("honest"), epochs=1)).certificate.bound is None


def wave(rows: int = 120, seed: int = 0) -> Sample:
    draw = torch.Generator().manual_seed(seed)
    contexts = torch.rand(rows, 1, generator=draw, dtype=torch.float64)
    noise = 5 * torch.randn(rows, 1, generator=draw, dtype=torch.float64)
    return Sample(contexts, 100 + 30 * torch.sin(6 * contexts) + noise)


def test_chain_decisions_for_training_rows_do_not_use_their_own_outcomes() -> None:
    options = MhOptions(predictor=options_with("honest"), chains=2, steps=400, burn_in=200, inverse_temperature=300.0)
    diagnostics = learn(STEPWISE, wave(), options).diagnostics
    assert isinstance(diagnostics, ChainDiagnostics)
    assert diagnostics.history.cost.mean > 0.9 * sum(diagnostics.chains.mean_loss) / 2


@pytest.mark.slow
def test_the_chains_predictor_is_chosen_on_its_final_features(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    build = build_predictor

    def spy(kind: str, sample: Sample, hidden: tuple[int, ...] = (), features: Any = None) -> Any:
        seen.append(features.kind)
        return build(kind, sample, hidden, features)

    monkeypatch.setattr("bco_core.inference.mh.starts.build_predictor", spy)
    learn(STEPWISE, wave(60), MhOptions(predictor=options_with("honest", "auto"), chains=1, steps=20, burn_in=10))
    assert seen == ["honest", "honest"]
