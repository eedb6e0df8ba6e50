"""PyEPO's SPO+ in a separate process: ``python -m benchmarks.experiments.contextual.pyepo_process in out``.

It trains much as PyEPO's published experiments do: a linear network, Adam, batches of 32, 200 epochs for 100 rows and
20 for 1,000. The rate 0.01 is that of their knapsack; for the path they also use 0.001, not tried here.
One HiGHS model solves all programs, each from the last basis: the fastest of the free solvers here. A knapsack is
relaxed while learning, as PyEPO's own ``relax`` does, since its search would take minutes. ``in`` is an .npz of
contexts, outcomes, new contexts and the program's rows. ``out`` gets the predictions for the new contexts after each
tenth of the epochs, and the processor seconds until then, without loading packages and predicting.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import highspy
import numpy as np

from benchmarks.experiments.contextual.data import Array

RATE, BATCH, CHECKS = 0.01, 32, 10
# Rows presented in 200 epochs of 100 rows, or in 20 of 1,000.
PRESENTED = 20_000
MISSING = "PyEPO is not installed, so its SPO+ is left out; the bench extra has it."


def is_installed() -> bool:
    return find_spec("pyepo") is not None


def train_apart(
    contexts: Array,
    outcomes: Array,
    new: Array,
    matrix: Array,
    limits: Array,
    equal: bool,
    seed: int,
    presented: int = PRESENTED,
) -> tuple[Array, Array]:
    """Train in a separate process; return predictions (checks, m, d) and seconds (checks,).

    Costs are minimised over 0 ≤ z ≤ 1 with ``matrix`` z equal to ``limits``, or at most ``limits``. Training presents
    ``presented`` rows in total, each row equally often.
    """
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder) / "given.npz", Path(folder) / "found.npz"
        np.savez(
            given,
            contexts=contexts,
            outcomes=outcomes,
            new=new,
            matrix=matrix,
            limits=limits,
            equal=equal,
            seed=seed,
            presented=presented,
        )
        # PyEPO shows its own progress bars otherwise.
        quiet = os.environ | {"TQDM_DISABLE": "1"}
        subprocess.run([sys.executable, "-m", __name__, str(given), str(result)], check=True, env=quiet)
        with np.load(result) as answer:
            return answer["predictions"], answer["seconds"]


def warm_program(matrix: Array, limits: Array, equal: bool) -> highspy.Highs:
    """Return min 0 over matrix z = limits, or ≤ limits, 0 ≤ z ≤ 1, whose costs are set before each solve."""
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    # The basis is kept from one cost to the next; presolve would discard it.
    highs.setOptionValue("presolve", "off")
    width = matrix.shape[1]
    highs.addVars(width, np.zeros(width), np.ones(width))
    for row, limit in zip(matrix, limits, strict=True):
        places = np.flatnonzero(row).astype(np.int32)
        highs.addRow(limit if equal else -highspy.kHighsInf, limit, len(places), places, row[places])
    return highs


def _train(given: Any) -> tuple[Array, Array]:
    import torch
    from pyepo.data.dataset import optDataset
    from pyepo.func import SPOPlus
    from pyepo.model.opt import optModel
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    width = given["outcomes"].shape[1]
    columns = np.arange(width, dtype=np.int32)

    class Warm(optModel):
        """A linear program with PyEPO's interface."""

        def _getModel(self) -> tuple[Any, Any]:  # noqa: N802
            return warm_program(given["matrix"], given["limits"], bool(given["equal"])), list(range(width))

        def setObj(self, c: Any) -> None:  # noqa: N802
            self._model.changeColsCost(width, columns, np.asarray(c, dtype=np.float64))

        def solve(self) -> tuple[Any, float]:
            self._model.run()
            return np.array(self._model.getSolution().col_value), self._model.getInfo().objective_function_value

    torch.manual_seed(int(given["seed"]))
    began, apart = time.process_time(), 0.0
    program = Warm()
    data = optDataset(program, given["contexts"].astype(np.float32), given["outcomes"].astype(np.float32))
    network = torch.nn.Linear(given["contexts"].shape[1], width)
    loss, optimizer = SPOPlus(program), torch.optim.Adam(network.parameters(), lr=RATE)
    rows = DataLoader(data, batch_size=BATCH, shuffle=True)
    epochs = max(CHECKS, int(given["presented"]) // len(data))
    new, predictions, seconds = torch.as_tensor(given["new"], dtype=torch.float32), [], []
    for epoch in range(epochs):
        for contexts, costs, decisions, objectives in rows:
            value = loss(network(contexts), costs, decisions, objectives)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        if (epoch + 1) % (epochs // CHECKS) == 0:
            paused = time.process_time()
            seconds.append(paused - began - apart)
            with torch.no_grad():
                predictions.append(network(new).double().numpy())
            apart += time.process_time() - paused
    return np.stack(predictions), np.array(seconds)


if __name__ == "__main__":
    with np.load(sys.argv[1]) as archive:
        predictions, seconds = _train(dict(archive))
    np.savez(sys.argv[2], predictions=predictions, seconds=seconds)
