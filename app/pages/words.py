"""What technical words mean, for who looks at a page: shown beside the word where it is used."""

from __future__ import annotations

WORDS = {
    "posterior": "What was learned: many plausible models, each weighed by how well it decides.",
    "context": "What is known when the decision is made, such as the weekday or the weather.",
    "outcome": "What is not known yet when the decision is made, such as demand.",
    "scenario": "One way in which things may turn out; a decision is judged over many of them.",
    "held-out": "Judged on rows of the history that were kept away from learning.",
    "forward": "Judged on later rows, by models that knew only what came before them.",
    "MAP": "The single most plausible model. Deciding by it alone does not hedge.",
    "hedging": "Choosing what does well over many ways in which things may turn out, not only the likeliest.",
    "CVaR": "The mean cost of the worst cases: at 95 %, of the worst one in twenty.",
    "regret": "What a decision costs more than the best one would have for who knows what will happen.",
    "service level": "The share of cases in which demand is met in full.",
    "policy": "The rule by which a decision is made from what was learned.",
    "R-hat": "Whether independent chains agree; 1 is perfect, above 1.05 they have not met yet.",
    "ESS": "How many independent draws the chains' draws are worth.",
    "KL": "How far what was learned has moved away from what was assumed before.",
    "certificate": "A bound on the expected cost that holds with the stated probability, whatever the data.",
    "coverage": "How often what happened was inside the range that was promised.",
    "standard error": "How much a mean may be off by chance; twice it is a usual margin.",
    "digest": "A fingerprint of the content: the same digest means exactly the same object.",
    "revision": "The state of a data set after rows were appended so many times.",
    "alias": "A name of your own for a posterior that can be moved to a newer one.",
    "drift": "The world changing away from what the history has shown.",
    "seed": "The number that random draws begin from: the same seed gives the same answer.",
    "lead": "How many periods ahead the decision is made.",
    "Shapley value": "The fair share of each input in a prediction; the shares add up to it.",
}
