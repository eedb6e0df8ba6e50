"""Where a posterior came from: names and values for a list of facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.pages.posteriors.charts import kind_words
from app.pages.posteriors.figures import part, value
from app.pages.posteriors.forward_charts import clock_of, periods
from app.pages.render import number, percent

_FAMILIES = {
    "laplace": "Laplace",
    "gaussian": "Gaussian",
    "matrix_gaussian": "Gaussian around a regression",
    "chains": "draws of chains, as they are",
}
_METHODS = {
    "auto": "chosen automatically",
    "vi": "variational inference",
    "mh": "Metropolis–Hastings chains",
}


@dataclass(frozen=True)
class ProvenanceView:
    """A fact; ``word`` is a word that explains itself, ``link`` where there is more, ``code`` for what is copied."""

    name: str
    value: str
    note: str = ""
    word: str = ""
    link: str = ""
    code: bool = False


def provenance(posterior: Any, told: Any, dataset: Any, job: Any) -> list[ProvenanceView]:
    """All that is known, in the order in which one asks."""
    found = [*_data(posterior, told, dataset, job), *_learning(posterior, told, job), *_features(posterior)]
    found.append(ProvenanceView("Digest of the posterior", posterior["digest"], word="digest", code=True))
    versions = part(told, "origin", "versions")
    if isinstance(versions, dict) and versions:
        found.append(ProvenanceView("Versions", ", ".join(f"{name} {of}" for name, of in versions.items())))
    return found


def revision_of(posterior: Any, told: Any, job: Any) -> float | None:
    """The revision of its data set that a posterior was learned from, as far as that is known."""
    noted = value(posterior, "recipe", "revision") or value(told, "origin", "revision")
    return noted or value(job, "spec", "revision")


def _data(posterior: Any, told: Any, dataset: Any, job: Any) -> list[ProvenanceView]:
    if dataset is None:
        return [ProvenanceView("Data", "not here", "the posterior was imported, or its data set is gone")]
    revision, newest = revision_of(posterior, told, job), dataset["revision"]
    rows = value(posterior, "recipe", "rows")
    words = f"{number(dataset['rows'], 9)} rows now" if rows is None else f"learned from {number(rows, 9)} rows"
    left_out = value(posterior, "recipe", "left_out")
    words += f", {number(left_out, 9)} left out that have nothing before them" if left_out else ""
    found = [ProvenanceView("Data", dataset["name"] or dataset["id"], words, link=f"/datasets/{dataset['id']}")]
    if revision is not None:
        later = "the newest" if revision == newest else f"the newest is {newest}"
        found.append(ProvenanceView("Revision", number(revision, 9), later, word="revision"))
    digest = part(told, "origin", "dataset_digest") or (dataset["digest"] if revision == newest else None)
    if digest:
        found.append(ProvenanceView("Digest of the data", digest, word="digest", code=True))
    return found


def _learning(posterior: Any, told: Any, job: Any) -> list[ProvenanceView]:
    description = posterior["description"]
    method, why = str(part(told, "method") or ""), str(part(told, "inference_reason") or "")
    found = [ProvenanceView("Method", _METHODS.get(method, method or "not known"), why)]
    predictor = str(part(description, "predictor", "kind") or "")
    if predictor:
        trees = part(description, "predictor", "features", "kind") == "boosted"
        found.append(ProvenanceView("Predictor", kind_words(predictor) + (" on boosted trees" if trees else "")))
    family = str(part(description, "family") or "")
    if family:
        found.append(ProvenanceView("Family of the posterior", _FAMILIES.get(family, family)))
    found.append(ProvenanceView("What counts", posterior["loss_meaning"] or posterior["loss"]))
    seed = value(description, "seed")
    if seed is not None:
        found.append(ProvenanceView("Seed", str(int(seed)), word="seed"))
    temperature = value(told, "inverse_temperature")
    if temperature is not None:
        scale = value(told, "cost_scale")
        units = "" if scale is None else f"for costs divided by {number(scale)}"
        found.append(ProvenanceView("Inverse temperature", number(temperature), units, word="inverse temperature"))
    found.append(ProvenanceView("Stored draws", number(posterior["particles"], 9)))
    found += _before(told, job)
    if job is not None:
        found.append(ProvenanceView("Job", job["name"] or job["id"], _took(job), link=f"/jobs/{job['id']}"))
    else:
        found.append(ProvenanceView("Job", "not here", "the posterior was imported"))
    return found


def _took(job: Any) -> str:
    attempts = int(job.get("attempts") or 1)
    return "" if attempts == 1 else f"begun {attempts} times"


def _before(told: Any, job: Any) -> list[ProvenanceView]:
    """The posterior that it was learned on from."""
    before = part(told, "update", "from_posterior")
    if not before:
        return []
    new = value(told, "update", "new_rows")
    words = "" if new is None else f"with {number(new, 9)} new rows"
    if part(job, "spec", "from_posterior", "as_prior"):
        forgotten = value(job, "spec", "from_posterior", "forgetting") or 0.0
        words += ", as the prior" + (f", {percent(forgotten)} of it forgotten" if forgotten else "")
    return [ProvenanceView("Learned on from", str(before), words, link=f"/posteriors/{before}")]


def _features(posterior: Any) -> list[ProvenanceView]:
    """The recipe of features of time, in words."""
    recipe = part(posterior, "recipe", "recipe")
    if not isinstance(recipe, dict):
        return []
    unit = periods(posterior["recipe"])
    words = []
    for name, text in (
        ("calendar", "calendar: {}"),
        ("lags", f"outcomes {{}} {unit} ago"),
        ("windows", f"means and quantiles over {{}} {unit}"),
    ):
        given = recipe.get(name)
        if given:
            words.append(text.format(", ".join(map(str, given))))
    words += ["trend"] * bool(recipe.get("trend"))
    words += [f"public holidays of {recipe['holidays']}"] * bool(recipe.get("holidays"))
    keys = part(posterior, "recipe", "keys")
    words += [f"series by {', '.join(keys)}"] * bool(keys)
    found = [ProvenanceView("Features of time", "; ".join(words) or "none")]
    lead = value(recipe, "lead")
    if lead is not None:
        found.append(ProvenanceView("Decided ahead", f"{number(lead, 9)} {unit[:-1] if lead == 1 else unit}", word="lead"))
    until, clock = value(posterior, "recipe", "learned_until"), clock_of(posterior["recipe"])
    if until is not None and clock is not None:
        found.append(ProvenanceView("Last row learned from", clock.text(int(until))))
    return found
