"""The blocking client."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, Unpack, overload

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


def _blocking(operation: Callable[P, Steps[T]]) -> Callable[Concatenate[Any, P], T]:
    """A method that takes the steps of an operation and returns what they come to."""

    @wraps(operation)
    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._run(operation(*args, **kwargs))
        return result

    signed_like(method, operation)
    return method


def _handing_out(operation: Callable[P, Steps[Posterior]]) -> Callable[Concatenate[Any, P], Learned]:
    """The same for what gives a posterior to decide with."""

    @wraps(operation)
    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Learned:
        return Learned(self, self._run(operation(*args, **kwargs)))

    signed_like(method, operation)
    return method


class _Resource:
    def __init__(self, client: Client) -> None:
        self._run = client._run


class Datasets(_Resource):
    """Histories."""

    create = _blocking(datasets.create)
    append = _blocking(datasets.append)
    get = _blocking(datasets.read)
    rows = _blocking(datasets.rows)
    list = _blocking(datasets.list_all)
    delete = _blocking(datasets.remove)


class Problems(_Resource):
    """What is decided and what it costs."""

    create = _blocking(problems.create)
    import_model = _blocking(problems.import_model)
    mps = _blocking(problems.mps)
    mps_description = _blocking(problems.mps_description)
    get = _blocking(problems.read)
    list = _blocking(problems.list_all)
    delete = _blocking(problems.remove)


class Jobs(_Resource):
    """What workers do."""

    create = _blocking(jobs.create)
    learn = _blocking(jobs.learn)
    prescribe = _blocking(jobs.prescribe)
    get = _blocking(jobs.look)
    list = _blocking(jobs.list_all)
    wait = _blocking(jobs.wait)
    cancel = _blocking(jobs.cancel)
    retry = _blocking(jobs.retry)
    log = _blocking(jobs.log)
    result = _blocking(jobs.result)
    file = _blocking(jobs.file)
    delete = _blocking(jobs.remove)


class Posteriors(_Resource):
    """What was learned."""

    get = _blocking(posteriors.read)
    list = _blocking(posteriors.list_all)
    diagnostics = _blocking(posteriors.diagnostics)
    particles = _blocking(posteriors.particles)
    drift = _blocking(posteriors.drift)
    prescribe = _blocking(posteriors.prescribe)
    evaluate = _blocking(posteriors.evaluate)
    delete = _blocking(posteriors.remove)


class Aliases(_Resource):
    """Names of your own for posteriors."""

    move = _blocking(aliases.move)
    get = _blocking(aliases.read)
    list = _blocking(aliases.list_all)
    moves = _blocking(aliases.moves)
    delete = _blocking(aliases.remove)


class Prescriptions(_Resource):
    """The log of calls, and what happened then."""

    list = _blocking(prescriptions.list_all)
    get = _blocking(prescriptions.read)
    record_outcome = _blocking(prescriptions.record_outcome)
    reproduce = _blocking(prescriptions.reproduce)
    export = _blocking(prescriptions.export)


class Client:
    """A connection to the service: ``with Client("http://127.0.0.1:8000") as client: client.learn(frame, problem)``.

    Without arguments, BCO_URL and BCO_API_KEY say where the service is and who is calling. ``timeout`` is for each
    request, in seconds; ``patience`` says how often lost requests are sent again; ``quiet`` shows no progress bars.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        patience: Patience | None = None,
        quiet: bool = False,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(**connection(base_url, api_key, timeout), transport=transport)
        self._patience = patience or Patience()
        self._quiet = quiet
        self.datasets = Datasets(self)
        self.problems = Problems(self)
        self.jobs = Jobs(self)
        self.posteriors = Posteriors(self)
        self.aliases = Aliases(self)
        self.prescriptions = Prescriptions(self)

    learn = _handing_out(journey.learn)
    load = _handing_out(posteriors.read)
    backtest = _blocking(journey.backtest)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({str(self._http.base_url)!r})"

    def _run(self, operation: Steps[T]) -> T:
        """Take the steps of an operation, one after another."""
        steps, bar = patiently(operation, self._patience), make_bar(self._quiet)
        try:
            step = next(steps)
            while True:
                if isinstance(step, News):
                    bar.show(step.job)
                elif isinstance(step, Pause):
                    time.sleep(step.seconds)
                else:
                    try:
                        response = self._http.send(of_httpx(self._http, step))
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


class Learned(Decider):
    """A posterior to decide with."""

    def __init__(self, client: Client, posterior: Posterior) -> None:
        super().__init__(posterior)
        self._run = client._run

    @overload
    def prescribe(
        self, data: Row, *, batch: bool | None = None, **options: Unpack[PrescribeOptions]
    ) -> Prescription: ...

    @overload
    def prescribe(
        self, data: Rows, *, batch: bool | None = None, **options: Unpack[PrescribeOptions]
    ) -> list[Prescription]: ...

    @overload
    def prescribe(self, data: F, *, batch: bool | None = None, **options: Unpack[PrescribeOptions]) -> F: ...

    def prescribe(self, data: Any, *, batch: bool | None = None, **options: Unpack[PrescribeOptions]) -> Any:
        return self._run(journey.prescribe(self.posterior, data, batch, options))

    @overload
    def evaluate(
        self,
        data: Row,
        *,
        alternatives: Sequence[Mapping[str, Any]] | None = None,
        decisions: Any = None,
        **options: Unpack[PrescribeOptions],
    ) -> Evaluation: ...

    @overload
    def evaluate(
        self,
        data: Table,
        *,
        alternatives: Sequence[Mapping[str, Any]] | None = None,
        decisions: Any = None,
        **options: Unpack[PrescribeOptions],
    ) -> list[Evaluation]: ...

    def evaluate(
        self,
        data: Any,
        *,
        alternatives: Sequence[Mapping[str, Any]] | None = None,
        decisions: Any = None,
        **options: Unpack[PrescribeOptions],
    ) -> Any:
        return self._run(journey.evaluate(self.posterior, data, alternatives, decisions, options))

    def drift(self, *, dataset_id: str | None = None, source: Literal["dataset", "log"] | None = None) -> Drift:
        return self._run(posteriors.drift(self.posterior.id, dataset_id=dataset_id, source=source))

    prescribe.__doc__ = journey.prescribe.__doc__
    evaluate.__doc__ = journey.evaluate.__doc__
    drift.__doc__ = posteriors.drift.__doc__
