"""Learning options: each method accepts its own and refuses others, naming the field."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest

from bco_core.errors import InvalidInput
from bco_core.inference.learn import METHODS, LearningPlan, learn, resolve
from bco_core.inference.options import OPTIONS, AutoOptions, LearningOptions, MhOptions, ViOptions, make_options
from bco_core.predictors.registry import PredictorOptions
from tests.support.linear_demand import PROBLEM, STEPWISE, make_sample

SHARED = {"predictor", "family", "kl_weight", "inverse_temperature", "policy", "particles", "seed"}
OWN = {
    "auto": {"members", "epochs", "draws", "certify"}
    | {"prior_scale", "chains", "steps", "burn_in", "temperature", "scale_costs", "thinning"},
    "vi": {"members", "prior_scale", "initial_scale", "epochs", "patience", "batch_size", "optimizer", "learning_rate"}
    | {"draws", "certify"},
    "mh": {"prior_scale", "chains", "steps", "burn_in", "temperature", "scale_costs", "thinning"},
}
FOREIGN = [(method, name) for method in OWN for name in sorted(set().union(*OWN.values()) - OWN[method])]


def test_every_method_has_its_own_options() -> None:
    assert set(OPTIONS) == set(METHODS) == set(OWN)
    for method, kind in OPTIONS.items():
        assert {one.name for one in fields(kind)} == SHARED | OWN[method]


@pytest.mark.parametrize(("method", "name"), FOREIGN)
def test_an_option_of_another_method_is_refused_with_the_valid_ones(method: str, name: str) -> None:
    with pytest.raises(InvalidInput, match=f"^method {method} has no {name}; it takes ") as refusal:
        make_options(method=method, **{name: 1})
    assert refusal.value.where == (name,)
    assert set(str(refusal.value).partition("it takes ")[2].split(", ")) == SHARED | OWN[method]


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match=r"^the method must be one of auto, vi, mh$") as refusal:
        make_options(method="magic")
    assert refusal.value.where == ("method",)


@pytest.mark.parametrize(
    ("method", "name", "value", "where", "known"),
    [
        ("mh", "temperature", "warm", ("temperature",), "settle, validation"),
        ("auto", "temperature", "warm", ("temperature",), "settle, validation"),
        ("mh", "thinning", "none", ("thinning",), "support_points, regular"),
        ("auto", "thinning", "none", ("thinning",), "support_points, regular"),
        ("vi", "optimizer", "newton", ("optimizer",), "adam, sgd"),
        ("auto", "family", "cauchy", ("family",), "gaussian, laplace"),
        ("auto", "predictor", "forest", ("predictor", "kind"), "auto, linear, relu_affine, mlp, skip_mlp, boosted"),
        ("auto", "policy", "greedy", ("policy",), "averaged, blended, bcp, predictive, map, thompson"),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(
    method: str, name: str, value: str, where: tuple[str, ...], known: str
) -> None:
    with pytest.raises(InvalidInput, match=f"^the {name} must be one of {known}$") as refusal:
        make_options(**{"method": method, name: value})
    assert refusal.value.where == where


def test_unknown_features_are_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match=r"^the features must be one of standardized, boosted, products$") as refusal:
        PredictorOptions(features="magic")
    assert refusal.value.where == ("predictor", "features")


@pytest.mark.parametrize("kind", ["auto", "mlp", "skip_mlp"])
@pytest.mark.parametrize(("hidden", "words"), [((), "at least one hidden layer"), ((8, 0), "at least one unit")])
def test_impossible_hidden_layers_are_refused(kind: str, hidden: tuple[int, ...], words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refusal:
        make_options(predictor=kind, hidden=hidden)
    assert refusal.value.where == ("predictor", "hidden")


@pytest.mark.parametrize("method", OPTIONS)
def test_a_kl_weight_and_an_inverse_temperature_are_refused_for_every_method(method: str) -> None:
    with pytest.raises(InvalidInput, match=r"^give kl_weight or inverse_temperature, not both$") as refusal:
        make_options(method=method, kl_weight=0.1, inverse_temperature=10.0)
    assert refusal.value.where == ("kl_weight",)
    assert make_options(method=method, kl_weight=0.1).has_temperature
    assert make_options(method=method, inverse_temperature=10.0).has_temperature
    assert not make_options(method=method).has_temperature


@pytest.mark.parametrize(
    ("method", "name"),
    [
        *((method, name) for method in OPTIONS for name in ("kl_weight", "inverse_temperature")),
        *(("vi", name) for name in ("prior_scale", "initial_scale", "learning_rate")),
        ("mh", "prior_scale"),
    ],
)
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_scale_or_rate_must_be_positive(method: str, name: str, value: float) -> None:
    with pytest.raises(InvalidInput, match=f"^{name} must be a positive number$") as refusal:
        make_options(method=method, **{name: value})
    assert refusal.value.where == (name,)


@pytest.mark.parametrize(
    ("method", "name"),
    [
        *((method, "particles") for method in OPTIONS),
        *(("vi", name) for name in ("members", "epochs", "patience", "batch_size", "draws")),
        *(("auto", name) for name in ("members", "epochs", "draws", "chains", "steps")),
        *(("mh", name) for name in ("chains", "steps")),
    ],
)
@pytest.mark.parametrize("value", [0, -1])
def test_a_count_below_one_is_refused_at_its_field(method: str, name: str, value: int) -> None:
    with pytest.raises(InvalidInput, match=f"^{name} must be at least 1$") as refusal:
        make_options(method=method, **{name: value})
    assert refusal.value.where == (name,)


@pytest.mark.parametrize("method", ["auto", "mh"])
@pytest.mark.parametrize("chain", [{"steps": 100, "burn_in": 100}, {"burn_in": 15_000}, {"steps": 10}, {"burn_in": -1}])
def test_burn_in_must_be_shorter_than_the_chain(method: str, chain: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match=r"^burn_in must be shorter than the chain of steps$") as refusal:
        make_options(method=method, **chain)
    assert refusal.value.where == ("burn_in",)


CHAINS = {
    "prior_scale": 0.5,
    "chains": 2,
    "steps": 6000,
    "burn_in": 0,
    "temperature": "validation",
    "scale_costs": False,
}
MIXTURES = {"members": 5, "epochs": 2, "draws": 1, "certify": True}


@pytest.mark.parametrize(("name", "value"), [*CHAINS.items(), ("scale_costs", True), ("thinning", "regular")])
def test_auto_refuses_chain_options_for_a_mixture(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"auto learns a mixture, and {name} would have no effect") as refusal:
        LearningPlan.of(PROBLEM, make_sample(), make_options(**{name: value}))
    assert refusal.value.where == (name,)


@pytest.mark.parametrize(("name", "value"), [*MIXTURES.items(), ("certify", False)])
def test_auto_refuses_mixture_options_for_chains(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"auto samples chains, and {name} would have no effect") as refusal:
        LearningPlan.of(STEPWISE, make_sample(), make_options(**{name: value}))
    assert refusal.value.where == (name,)


@pytest.mark.parametrize("method", ["auto", "mh"])
@pytest.mark.parametrize("given", ["kl_weight", "inverse_temperature"])
def test_a_given_temperature_excludes_the_temperature_search(method: str, given: str) -> None:
    with pytest.raises(InvalidInput, match="leave temperature out") as refusal:
        make_options(method, temperature="validation", **{given: 0.5})
    assert refusal.value.where == ("temperature",)


def test_hidden_layers_of_a_predictor_without_layers_are_refused() -> None:
    with pytest.raises(InvalidInput, match="the linear predictor has no hidden layers") as refusal:
        make_options("auto", predictor="linear", hidden=[64])
    assert refusal.value.where == ("predictor", "hidden")


def test_options_are_refused_before_any_work() -> None:
    def work(fraction: float, message: str) -> None:
        raise AssertionError("nothing should have begun")

    with pytest.raises(InvalidInput):
        learn(PROBLEM, make_sample(), make_options(chains=3), work)
    with pytest.raises(InvalidInput):
        learn(STEPWISE, make_sample(), make_options(members=3), work)


def test_auto_passes_all_its_options_to_chains() -> None:
    shared: dict[str, Any] = {"family": "gaussian", "policy": "map", "particles": 7, "seed": 3}
    auto_options = AutoOptions(predictor=PredictorOptions("linear"), **shared, **CHAINS)
    method, own, _ = resolve(STEPWISE, auto_options)
    assert method.name == "mh"
    assert own == MhOptions(predictor=PredictorOptions("linear"), **shared, **CHAINS)
    assert resolve(STEPWISE, AutoOptions())[1] == MhOptions()


def test_auto_keeps_its_options_for_a_mixture() -> None:
    auto_options = AutoOptions(**MIXTURES)
    method, own, _ = resolve(PROBLEM, auto_options)
    assert (method.name, own) == ("auto", auto_options)


@pytest.mark.parametrize("options", [ViOptions(seed=4), MhOptions(seed=4), AutoOptions(seed=4)])
def test_changed_options_are_validated_like_new_ones(options: LearningOptions) -> None:
    assert replace(options, particles=9).particles == 9
    with pytest.raises(InvalidInput, match="particles must be at least 1"):
        replace(options, particles=0)


def test_omitted_hidden_layers_take_the_predictors_default() -> None:
    assert make_options(predictor="mlp").predictor == PredictorOptions("mlp", (128, 128))
    assert make_options(predictor="mlp", hidden=[4, 5]).predictor == PredictorOptions("mlp", (4, 5))


def test_boosted_residual_models_require_auto_and_exclude_certificates() -> None:
    assert make_options(predictor="boosted").predictor.kinds == ()
    for method in ("vi", "mh"):
        with pytest.raises(InvalidInput, match="needs the method auto") as refusal:
            make_options(method=method, predictor="boosted")
        assert refusal.value.where == ("predictor", "kind")
    with pytest.raises(InvalidInput, match="a certificate needs a prior without outcomes"):
        make_options(predictor="boosted", certify=True)
    with pytest.raises(InvalidInput, match="needs the method auto"):
        make_options(predictor="boosted").for_chains()  # type: ignore[attr-defined]
