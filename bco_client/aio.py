"""The asynchronous client: the same methods as :class:`bco_client.Client`, awaited."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, Unpack, overload

import anyio
import httpx

from bco_client.base_client import DEFAULT_TIMEOUT, Decider, connection, of_httpx, signed_like
from bco_client.operations import aliases, datasets, jobs, journey, posteriors, prescriptions, problems
from bco_client.options import PrescribeOptions
from bco_client.progress import make_bar
from bco_client.records import Drift, Evaluation, Posterior, Prescription
from bco_client.steps import News, Patience, Pause, Steps, patiently
from bco_client.tables import F, Row, Rows, Table

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(operation: Callable[P, Steps[T]]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A method that takes the steps of an operation and returns what they come to."""

    @wraps(operation)
    async def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await self._run(operation(*args, **kwargs))
        return result

    signed_like(method, operation)
    return method


def _handing_out(
    operation: Callable[P, Steps[Posterior]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, AsyncLearned]]:
    """The same for what gives a posterior to decide with."""

    @wraps(operation)
    async def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> AsyncLearned:
        return AsyncLearned(self, await self._run(operation(*args, **kwargs)))

    signed_like(method, operation)
    return method


class _Resource:
    def __init__(self, client: AsyncClient) -> None:
        self._run = client._run


class AsyncDatasets(_Resource):
    """Histories."""

    create = _awaited(datasets.create)
    append = _awaited(datasets.append)
    get = _awaited(datasets.read)
    rows = _awaited(datasets.rows)
    list = _awaited(datasets.list_all)
    delete = _awaited(datasets.remove)


class AsyncProblems(_Resource):
    """What is decided and what it costs."""

    create = _awaited(problems.create)
    import_model = _awaited(problems.import_model)
    mps = _awaited(problems.mps)
    mps_description = _awaited(problems.mps_description)
    get = _awaited(problems.read)
    list = _awaited(problems.list_all)
    delete = _awaited(problems.remove)


class AsyncJobs(_Resource):
    """What workers do."""

    create = _awaited(jobs.create)
    learn = _awaited(jobs.learn)
    prescribe = _awaited(jobs.prescribe)
    get = _awaited(jobs.look)
    list = _awaited(jobs.list_all)
    wait = _awaited(jobs.wait)
    cancel = _awaited(jobs.cancel)
    retry = _awaited(jobs.retry)
    log = _awaited(jobs.log)
    result = _awaited(jobs.result)
    file = _awaited(jobs.file)
    delete = _awaited(jobs.remove)


class AsyncPosteriors(_Resource):
    """What was learned."""

    get = _awaited(posteriors.read)
    list = _awaited(posteriors.list_all)
    diagnostics = _awaited(posteriors.diagnostics)
    particles = _awaited(posteriors.particles)
    drift = _awaited(posteriors.drift)
    prescribe = _awaited(posteriors.prescribe)
    evaluate = _awaited(posteriors.evaluate)
    delete = _awaited(posteriors.remove)


class AsyncAliases(_Resource):
    """Names of your own for posteriors."""

    move = _awaited(aliases.move)
    get = _awaited(aliases.read)
    list = _awaited(aliases.list_all)
    moves = _awaited(aliases.moves)
    delete = _awaited(aliases.remove)


class AsyncPrescriptions(_Resource):
    """The log of calls, and what happened then."""

    list = _awaited(prescriptions.list_all)
    get = _awaited(prescriptions.read)
    record_outcome = _awaited(prescriptions.record_outcome)
    reproduce = _awaited(prescriptions.reproduce)
    export = _awaited(prescriptions.export)


class AsyncClient:
    """A connection to the service: ``async with AsyncClient() as client: await client.learn(frame, problem)``.

    Its arguments are those of :class:`bco_client.Client`.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        patience: Patience | None = None,
        quiet: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx.AsyncClient(**connection(base_url, api_key, timeout), transport=transport)
        self._patience = patience or Patience()
        self._quiet = quiet
        self.datasets = AsyncDatasets(self)
        self.problems = AsyncProblems(self)
        self.jobs = AsyncJobs(self)
        self.posteriors = AsyncPosteriors(self)
        self.aliases = AsyncAliases(self)
        self.prescriptions = AsyncPrescriptions(self)

    learn = _handing_out(journey.learn)
    load = _handing_out(posteriors.read)
    backtest = _awaited(journey.backtest)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({str(self._http.base_url)!r})"

    async def _run(self, operation: Steps[T]) -> T:
        """Take the steps of an operation, one after another."""
        steps, bar = patiently(operation, self._patience), make_bar(self._quiet)
        try:
            step = next(steps)
            while True:
                if isinstance(step, News):
                    bar.show(step.job)
                elif isinstance(step, Pause):
                    await anyio.sleep(step.seconds)
                else:
                    try:
                        response = await self._http.send(of_httpx(self._http, step))
                    except httpx.TransportError as error:
                        step = steps.throw(error)
                    else:
                        step = steps.send(response)
                    continue
                step = next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            steps.close()
            bar.close()


class AsyncLearned(Decider):
    """A posterior to decide with."""

    def __init__(self, client: AsyncClient, posterior: Posterior) -> None:
        super().__init__(posterior)
        self._run = client._run

    @overload
    async def prescribe(
        self, data: Row, *, batch: bool | None = None, **options: Unpack[PrescribeOptions]
    ) -> Prescription: ...

    @overload
    async def prescribe(
        self, data: Rows, *, batch: bool | None = None, **options: Unpack[PrescribeOptions]
    ) -> list[Prescription]: ...

    @overload
    async def prescribe(self, data: F, *, batch: bool | None = None, **options: Unpack[PrescribeOptions]) -> F: ...

    async def prescribe(self, data: Any, *, batch: bool | None = None, **options: Unpack[PrescribeOptions]) -> Any:
        return await self._run(journey.prescribe(self.posterior, data, batch, options))

    @overload
    async def evaluate(
        self,
        data: Row,
        *,
        alternatives: Sequence[Mapping[str, Any]] | None = None,
        decisions: Any = None,
        **options: Unpack[PrescribeOptions],
    ) -> Evaluation: ...

    @overload
    async def evaluate(
        self,
        data: Table,
        *,
        alternatives: Sequence[Mapping[str, Any]] | None = None,
        decisions: Any = None,
        **options: Unpack[PrescribeOptions],
    ) -> list[Evaluation]: ...

    async def evaluate(
        self,
        data: Any,
        *,
        alternatives: Sequence[Mapping[str, Any]] | None = None,
        decisions: Any = None,
        **options: Unpack[PrescribeOptions],
    ) -> Any:
        return await self._run(journey.evaluate(self.posterior, data, alternatives, decisions, options))

    async def drift(self, *, dataset_id: str | None = None, source: Literal["dataset", "log"] | None = None) -> Drift:
        return await self._run(posteriors.drift(self.posterior.id, dataset_id=dataset_id, source=source))

    prescribe.__doc__ = journey.prescribe.__doc__
    evaluate.__doc__ = journey.evaluate.__doc__
    drift.__doc__ = posteriors.drift.__doc__
