"""What to make now, from limited resources and blended ingredients, to sell once demand and prices are known.

``{"products": [{"name", "unit_cost": 0, "minimum": 0, "maximum"?, "integer": false, "uses": {resource: amount},
                 "blend_of"?: [ingredients], "qualities": {quality: {"minimum"?, "maximum"?}},
                 "demand"?, "unlimited_demand": false, "price": 0, "holding_cost": 0, "shortage_cost": 0, "stock": 0}],
   "resources": [{"name", "available"}],
   "ingredients": [{"name", "unit_cost": 0, "available"?, "qualities": {quality: value}}]}``

The amount of a blend is the sum of its ingredients, and each of its qualities is the mean of theirs. Sales, holding and
shortage are decided once demand is known. The profit is maximised.
"""

from __future__ import annotations

from typing import Any

from bco_core.errors import InvalidInput
from bco_core.problems.ready.draft import (
    ModelDraft,
    Spec,
    Where,
    check_name,
    check_not_negative,
    read_field,
    read_named,
    read_number,
)


def draft(spec: Spec) -> ModelDraft:
    """Compile a production."""
    products = read_named(spec, "products", "product")
    resources = read_named(spec, "resources", "resource") if spec.get("resources") else {}
    ingredients = read_named(spec, "ingredients", "ingredient") if spec.get("ingredients") else {}
    model = ModelDraft(sense="maximize")
    used: dict[str, dict[str, float]] = {name: {} for name in (*resources, *ingredients)}
    if len(used) < len(resources) + len(ingredients):
        raise InvalidInput("a resource and an ingredient have the same name", ("ingredients",))
    for index, (product, terms) in enumerate(products.items()):
        where: Where = ("products", index)
        lowest, highest = read_field(terms, "minimum", where, 0.0, least=0.0), _maximum(terms, where)
        make = model.add_decision(
            f"make {product}",
            where,
            0.0 - read_field(terms, "unit_cost", where, 0.0),
            minimum=lowest,
            maximum=highest,
            integer=bool(terms.get("integer", False)),
        )
        for resource, amount in (terms.get("uses") or {}).items():
            place = (*where, "uses", resource)
            used[check_name(resource, resources, place, "resource")][make] = read_number(amount, place, 0.0)
        if terms.get("blend_of") is not None:
            _blend(model, product, terms, where, ingredients, used)
        elif terms.get("qualities"):
            raise InvalidInput("only a blend has qualities; list its ingredients in blend_of", (*where, "qualities"))
        _sell(model, product, terms, where)
        if terms.get("unlimited_demand") and not _is_limited(make, terms, resources, ingredients, used):
            raise InvalidInput(
                "nothing limits how much is made and sold; give a maximum, or resources that it uses",
                (*where, "unlimited_demand"),
            )
    for part, entries in (("resources", resources), ("ingredients", ingredients)):
        for index, (name, terms) in enumerate(entries.items()):
            if part == "resources" or terms.get("available") is not None:
                limit = read_field(terms, "available", (part, index), least=0.0)
                model.add_row(f"{name} available", (part, index, "available"), used[name], "<=", limit)
    return model


def _maximum(terms: Spec, where: Where) -> float | None:
    if terms.get("maximum") is None:
        return None
    highest = read_field(terms, "maximum", where, least=0.0)
    if highest < read_field(terms, "minimum", where, 0.0):
        raise InvalidInput("the maximum is below the minimum", (*where, "maximum"))
    return highest


def _blend(
    model: ModelDraft,
    product: str,
    terms: Spec,
    where: Where,
    ingredients: dict[str, Spec],
    used: dict[str, dict[str, float]],
) -> None:
    """Add the amounts of ingredients in a product, with its qualities within their limits."""
    places = list(ingredients)
    amounts: dict[str, str] = {}
    for number_of, ingredient in enumerate(terms["blend_of"]):
        place = (*where, "blend_of", number_of)
        check_name(ingredient, ingredients, place, "ingredient")
        if ingredient in amounts:
            raise InvalidInput("this ingredient is listed twice", place)
        own: Where = ("ingredients", places.index(ingredient))
        cost = read_field(ingredients[ingredient], "unit_cost", own, 0.0)
        amounts[ingredient] = model.add_decision(f"{ingredient} in {product}", place, 0.0 - cost)
        used[ingredient][amounts[ingredient]] = 1.0
    whole = dict.fromkeys(amounts.values(), 1.0) | {f"make {product}": -1.0}
    model.add_row(f"blend of {product}", (*where, "blend_of"), whole, "=", 0.0)
    for quality, limits in (terms.get("qualities") or {}).items():
        for bound, sense in (("minimum", ">="), ("maximum", "<=")):
            if (limits or {}).get(bound) is not None:
                place = (*where, "qualities", quality, bound)
                limit = read_number(limits[bound], place)
                excess = {
                    amounts[name]: _quality(ingredients[name], quality, places.index(name)) - limit for name in amounts
                }
                model.add_row(f"{bound} {quality} of {product}", place, excess, sense, 0.0)


def _quality(ingredient: Spec, quality: str, index: int) -> float:
    own = ingredient.get("qualities") or {}
    where = ("ingredients", index, "qualities")
    if quality not in own:
        raise InvalidInput(f"a blend of this ingredient limits {quality}; give the ingredient's {quality}", where)
    return read_number(own[quality], (*where, quality))


def _sell(model: ModelDraft, product: str, terms: Spec, where: Where) -> None:
    """Add the recourse of a product once demand and price are known."""
    make = f"make {product}"
    price: Any = terms.get("price")
    sell = model.add_recourse(
        f"sell {product}",
        (*where, "price"),
        model.quantity(0.0 if price is None else price, product, (*where, "price")),
    )
    hold = model.add_recourse(
        f"hold {product}", (*where, "holding_cost"), 0.0 - read_field(terms, "holding_cost", where, 0.0)
    )
    stock = read_field(terms, "stock", where, 0.0, least=0.0)
    model.add_row(f"stock of {product}", (*where, "stock"), {make: -1.0}, "=", stock, {sell: 1.0, hold: 1.0})
    if terms.get("unlimited_demand"):
        if terms.get("demand") is not None:
            raise InvalidInput(
                "unlimited demand leaves no room for a demand; leave one of them out", (*where, "demand")
            )
        return
    demand = model.quantity(terms.get("demand"), product, (*where, "demand"), 0.0)
    check_not_negative(demand, (*where, "demand"), "a demand must be at least zero, and so must its factors")
    penalty = read_field(terms, "shortage_cost", where, 0.0, least=0.0)
    short = model.add_recourse(f"short of {product}", (*where, "shortage_cost"), 0.0 - penalty)
    model.add_row(f"demand for {product}", (*where, "demand"), {}, "=", demand, {sell: 1.0, short: 1.0})


def _is_limited(
    make: str, terms: Spec, resources: dict[str, Spec], ingredients: dict[str, Spec], used: dict[str, dict[str, float]]
) -> bool:
    """Return whether a maximum, a resource or the ingredients bound the amount of a product."""
    if terms.get("maximum") is not None or any(used[name].get(make) for name in resources):
        return True
    blend = terms.get("blend_of")
    return blend is not None and all(ingredients[name].get("available") is not None for name in blend)
