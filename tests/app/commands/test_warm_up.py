"""Warm-up: compiled kernels and frozen startup objects."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.commands import api
from app.settings import Settings

SCRIPT = """
from bco_core.compile_kernels import warm_up
from bco_core import batch_kernels
from bco_core.predictors import base
from bco_core.prescribe import PrescribeOptions, prescribe
from tests.bco_core.test_batch_kernels import contexts_of, newsvendor, posterior_of

def compiled():
    names = ("_mean", "_sum", "_exp_affine", "_sample_near")
    kernels = [base._layer_outputs, *(getattr(batch_kernels, name) for name in names)]
    return [len(one.signatures) for one in kernels]

assert compiled() == [0] * 5
warm_up()
before = compiled()
for way in (("scaled", None), ("stretch", 0.2)):
    prescribe(posterior_of("skip_mlp", *way), newsvendor(), contexts_of(), PrescribeOptions("averaged"))
assert compiled() == before, (before, compiled())
"""


@pytest.mark.slow
def test_warm_up_compiles_all_kernels(repository: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(repository)}
    subprocess.run((sys.executable, "-c", SCRIPT), cwd=repository, env=environment, check=True)


@pytest.mark.slow
def test_startup_objects_are_frozen_for_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def run(self: Any, sockets: Any = None) -> None:
        seen.append(gc.get_freeze_count())

    monkeypatch.setattr(api.Server, "run", run)
    monkeypatch.setattr("app.prescriptions.cache.give_back_early", lambda: None)
    try:
        api.run(Settings())
    finally:
        gc.unfreeze()
    assert seen[0] > 100_000
