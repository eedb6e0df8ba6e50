"""The demonstration: a bakery's history, a posterior learned from it, and three mornings' orders.

All calls go over HTTP, like those of a planning system.
"""

from __future__ import annotations

import time
from typing import Any

import httpx
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from app.commands.serve import LocalService, free_port, port_is_free
from app.demo import HELD_OUT, MORNINGS, example_problem, new_dataset, new_job, split_history
from app.settings import Settings
from bco_core.estimates import paired_difference


class DemoError(Exception):
    """The service refused a request of the demonstration."""


def demonstrate(settings: Settings, console: Console, stay: bool) -> int:
    """Start a service, run the demonstration and, if ``stay``, wait for Ctrl-C; return the exit status."""
    port = settings.port if port_is_free("127.0.0.1", settings.port) else free_port()
    with LocalService(port) as service, httpx.Client(base_url=service.url, timeout=120) as client:
        console.print(f"[bold]Service[/]: {service.url} on {settings.database_url.split('://')[0]}")
        if not run_demo(client, console):
            console.print("[red]The decisions were not better than plain SAA on held-out days.[/]")
            return 1
        if stay:
            docs = f"[link]{service.url}/docs[/]"
            console.print(f"\nThe service is running. Docs and 'Try it out': {docs}  (Ctrl-C stops it)")
            try:
                service.wait()
            except KeyboardInterrupt:
                console.print("Stopping.")
    return 0


def run_demo(client: httpx.Client, console: Console) -> bool:
    """Learn, prescribe and print; return whether the decisions beat plain SAA on held-out days."""
    history, held_out = split_history()
    items = example_problem()["spec"]["items"]
    problem = _post(client, "/v1/problems", example_problem())
    dataset = _post(client, "/v1/datasets", new_dataset(history))
    console.print(f"[bold]History[/]: {dataset['rows']} days, {len(dataset['columns'])} columns → {dataset['id']}")
    job = _follow(client, _post(client, "/v1/jobs", new_job(problem["id"], dataset["id"])), console)
    if job["state"] != "succeeded":
        console.print(f"[red]The job {job['state']}: {job['error']}[/]")
        return False

    answer = _post(client, f"/v1/posteriors/{job['posterior_id']}/prescribe", {"contexts": MORNINGS})
    console.print(_decision_table(answer))
    return _check_on_held_out_days(client, job["posterior_id"], items, history, held_out, console)


def _post(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post(path, json=body)
    if response.is_error:
        raise DemoError(f"POST {path} was refused: {response.json()['detail']}")
    answer: dict[str, Any] = response.json()
    return answer


def _follow(client: httpx.Client, job: dict[str, Any], console: Console) -> dict[str, Any]:
    columns = (TextColumn("[bold]Learning[/]"), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("waiting for a worker", total=1.0)
        while job["state"] in ("queued", "running"):
            time.sleep(0.2)
            job = client.get(f"/v1/jobs/{job['id']}").json()
            bar.update(task, completed=job["progress"], description=job["message"])
    return job


def _decision_table(answer: dict[str, Any]) -> Table:
    table = Table(title=f"Orders for three mornings ({answer['policy']}, {answer['scenarios']['count']} scenarios)")
    for heading in ("morning", "order", "expected\ncost", "cost\n5 % – 95 %", "MAP order", "hedging\nbuys"):
        table.add_column(heading, justify="left" if heading == "morning" else "right")
    for morning, prescription in zip(MORNINGS, answer["prescriptions"], strict=True):
        words = f"{morning['weekday']}, {morning['temperature']:g} °C, rain {morning['rain']:g} mm"
        words += "\npromotion" * morning["promotion"] + "\nholiday" * morning["holiday"]
        low, high = prescription["cost_quantiles"]["0.05"], prescription["cost_quantiles"]["0.95"]
        table.add_row(
            words,
            _amounts(prescription["decision"]),
            f"{prescription['expected_cost']:.2f}",
            f"{low:.2f} – {high:.2f}",
            _amounts(prescription["map"]["decision"]),
            f"{prescription['hedging_gain']:+.2f}",
        )
    return table


def _amounts(decision: dict[str, float]) -> str:
    return "\n".join(f"{amount:.0f} {name}" for name, amount in decision.items())


def _check_on_held_out_days(
    client: httpx.Client,
    posterior_id: str,
    items: list[dict[str, Any]],
    history: list[dict[str, Any]],
    held_out: list[dict[str, Any]],
    console: Console,
) -> bool:
    """Compare with plain SAA, the best constant order, on held-out days."""
    import torch

    contexts = [{name: row[name] for name in MORNINGS[0]} for row in held_out]

    def orders(**choice: str) -> Any:
        answer = _post(client, f"/v1/posteriors/{posterior_id}/prescribe", {"contexts": contexts, **choice})
        return np.array([list(one["decision"].values()) for one in answer["prescriptions"]])

    def outcomes(rows: list[dict[str, Any]]) -> Any:
        return np.array([[row[item["name"]] for item in items] for row in rows], dtype=float)

    under = np.array([item["underage_cost"] for item in items])
    over = np.array([item["overage_cost"] for item in items])
    fractiles = under / (under + over)
    constant = [np.quantile(d, f, method="inverted_cdf") for d, f in zip(outcomes(history).T, fractiles, strict=True)]

    def costs(decisions: Any) -> Any:
        short = outcomes(held_out) - decisions
        return torch.from_numpy(np.where(short > 0, under * short, -over * short).sum(axis=1))

    ours = costs(orders())
    console.print(f"[bold]{HELD_OUT} held-out days[/]: {ours.mean():.2f} a day")
    for name, others in (
        ("plain SAA", costs(np.array(constant))),
        ("MAP, without hedging", costs(orders(policy="map"))),
    ):
        difference = paired_difference(ours, others)
        console.print(
            f"  against {others.mean():.2f} for {name}: {difference.mean / others.mean() * 100:+.0f} %, "
            f"paired difference {difference.mean:+.2f} ± {difference.standard_error:.2f}"
        )
    return bool(ours.mean() < costs(np.array(constant)).mean())
