"""Chains as values: where they are, what they left behind, and how they are dealt to processes and joined again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bco_core.data import Arrays


class Adaptation(NamedTuple):
    """What proposals are made with: ``mean`` and ``variance`` (C, d) and ``log_scale`` (C,)."""

    mean: Tensor
    variance: Tensor
    log_scale: Tensor


class MetropolisState(NamedTuple):
    """Where C chains are after ``step`` steps: all that the next step depends on.

    ``theta`` (C, d), its scaled ``risk`` and ``log_prior`` (C,), how many rows its decisions fail, ``failures`` (C,),
    the ``order`` (C, n) in which rows are visited, and the state of the chains' random numbers, ``generators`` (C, ·).
    """

    step: int
    theta: Tensor
    risk: Tensor
    log_prior: Tensor
    failures: Tensor
    order: Tensor
    adaptation: Adaptation
    generators: Tensor


class MetropolisInfo(NamedTuple):
    """What some steps of C chains left behind: ``accepted`` and ``risks`` (steps, C), the ``kept`` draws (k, C, d), and
    how often a proposal was rejected ``unseen``, or ``early``, with rows to go (C,)."""

    accepted: Tensor
    risks: Tensor
    kept: Tensor
    unseen: Tensor
    early: Tensor

    @staticmethod
    def of(pieces: Sequence[MetropolisInfo]) -> MetropolisInfo:
        """What stretches of steps, one after the other, left behind together."""
        growing = (torch.cat([getattr(one, name) for one in pieces]) for name in ("accepted", "risks", "kept"))
        counts = (torch.stack([getattr(one, name) for one in pieces]).sum(dim=0) for name in ("unseen", "early"))
        return MetropolisInfo(*growing, *counts)


class Chains(NamedTuple):
    """C chains: where they are, and what they left behind on the way."""

    state: MetropolisState
    info: MetropolisInfo

    def to_arrays(self) -> Arrays:
        """Plain arrays; :meth:`from_arrays` restores exactly these chains."""
        state, info = self.state._asdict(), self.info._asdict()
        step, adaptation = state.pop("step"), state.pop("adaptation")._asdict()
        return {name: value.numpy() for name, value in (state | adaptation | info).items()} | {"step": np.array([step])}

    @staticmethod
    def from_arrays(arrays: Arrays) -> Chains:
        def tensors(kind: type[NamedTuple]) -> dict[str, Any]:
            return {name: torch.from_numpy(np.array(arrays[name])) for name in kind._fields if name in arrays}

        adaptation = Adaptation(**tensors(Adaptation))
        state = tensors(MetropolisState) | {"step": int(arrays["step"][0]), "adaptation": adaptation}
        return Chains(MetropolisState(**state), MetropolisInfo(**tensors(MetropolisInfo)))


def dealt(chains: Chains) -> list[Chains]:
    """Every chain by itself."""
    state, info = chains

    def one(chain: int) -> Chains:
        def own(value: Tensor) -> Tensor:
            return value[chain, None]

        adaptation = Adaptation(*map(own, state.adaptation))
        fields = {name: own(value) for name, value in state._asdict().items() if name not in ("step", "adaptation")}
        growing = (value[:, chain, None] for value in info[:3])
        return Chains(
            MetropolisState(step=state.step, adaptation=adaptation, **fields),
            MetropolisInfo(*growing, *map(own, info[3:])),
        )

    return [one(chain) for chain in range(len(state.theta))]


def joined(parts: Sequence[Chains]) -> Chains:
    """All chains again, in their order."""
    states, infos = [part.state for part in parts], [part.info for part in parts]
    adaptation = Adaptation(*(torch.cat(values) for values in zip(*(s.adaptation for s in states), strict=True)))
    fields = {
        name: torch.cat([getattr(state, name) for state in states])
        for name in MetropolisState._fields
        if name not in ("step", "adaptation")
    }
    growing = (torch.cat(values, dim=1) for values in zip(*(info[:3] for info in infos), strict=True))
    counts = (torch.cat(values) for values in zip(*(info[3:] for info in infos), strict=True))
    return Chains(
        MetropolisState(step=states[0].step, adaptation=adaptation, **fields), MetropolisInfo(*growing, *counts)
    )
