"""Settings: every ``BCO_…`` environment variable, its meaning and its default."""

from __future__ import annotations

import ipaddress
import math
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]


class Settings(BaseSettings):
    """Settings of an operator; ``bco --help`` prints this list."""

    model_config = SettingsConfigDict(env_prefix="BCO_", extra="ignore")

    database_url: str = Field(
        "sqlite:///var/bco.db", description="SQLite file or PostgreSQL, e.g. postgresql://user:secret@host/bco"
    )
    database_connections: Annotated[int, Field(ge=2)] = Field(
        6, description="most connections of one process to PostgreSQL; computing processes of a worker have their own"
    )
    host: str = Field("127.0.0.1", description="address the API listens on")
    port: Annotated[int, Field(ge=1, le=65535)] = Field(8000, description="port the API listens on")
    processes: Positive = Field(
        1, description="API processes behind one port; they share the memory of loaded posteriors"
    )
    workers: Positive = Field(1, description="worker processes that bco serve starts")
    worker_concurrency: Positive = Field(1, description="jobs a worker runs at the same time")
    threads: Positive = Field(1, description="CPU threads of each process; more than one hurts when cores are shared")
    worker_deadline_seconds: Annotated[float, Field(ge=2)] = Field(
        8.0,
        description="seconds without a heartbeat; without other signs of life a worker is dead after four times that",
    )
    max_job_seconds: Annotated[float, Field(gt=0)] = Field(
        86_400.0, description="longest running time of a job, in seconds; a job may set a lower limit"
    )
    max_queued_jobs: Positive = Field(1_000, description="most jobs waiting for a worker; further ones get 503")
    max_workspace_queued_jobs: Positive = Field(
        500, description="most jobs of one workspace waiting for a worker; further ones get 429"
    )
    max_workspace_running_jobs: NotNegative = Field(
        0, description="most running jobs of one workspace; others wait; 0 for no limit"
    )
    max_workspace_seconds_a_day: NotNegative = Field(
        0, description="seconds that jobs of one workspace may run within a day; then new ones get 429; 0 for no limit"
    )
    workspace_weights: str = Field(
        "", description="weights of workspaces when they share workers, such as planning=3,sales=0.5; others have 1"
    )
    keep_log_days: NotNegative = Field(90, description="days that logs of ended jobs are kept; 0 for ever")
    keep_parts_days: NotNegative = Field(
        0, description="days that parts of ended jobs and results of batches are kept; 0 for ever"
    )
    keep_runs_days: NotNegative = Field(
        7, description="days that the job engine's rows of ended runs are kept; 0 for ever"
    )
    webhook_hosts: str = Field(
        "",
        description="hosts that webhooks may be sent to, such as hooks.example,*.planner.example:8443; none by default",
    )
    webhook_networks: str = Field(
        "", description="private networks that webhooks may be sent to, such as 10.1.0.0/16; none by default"
    )
    keep_prescriptions_days: NotNegative = Field(
        90, description="days that logged prescriptions and their outcomes are kept; 0 for ever"
    )
    log_prescriptions: bool = Field(True, description="log every prescription and evaluation; true or false")
    log_rate: Positive = Field(
        100,
        description="prescriptions a second that each API process logs, twice as many in bursts; above that a sample",
    )
    log_max_kb: Positive = Field(
        2_000, description="largest request, and largest answer, of a logged prescription, in kB"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="DEBUG, INFO, WARNING or ERROR")

    log_format: Literal["auto", "json", "text"] = Field(
        "auto", description="json, text, or auto: text on a terminal, json elsewhere"
    )

    allow_anonymous: bool = Field(
        False, description="allow calls from this machine without a key even after one was created; true or false"
    )
    session_hours: Annotated[float, Field(gt=0, le=8_760)] = Field(
        12.0, description="hours until a browser session ends and the key is needed again"
    )
    requests_per_second: NotNegative = Field(
        200, description="requests a second with one key, in bursts up to twice as many; 0 for no limit"
    )
    max_header_kb: Positive = Field(32, description="largest headers of a request, in kB")
    max_headers: Positive = Field(100, description="most headers of a request")
    header_seconds: Annotated[float, Field(gt=0)] = Field(
        10.0, description="time limit for the headers of a request, in seconds"
    )
    body_seconds: Annotated[float, Field(gt=0)] = Field(
        20.0, description="time limit for a stalled body, in seconds; it must arrive at 1 kB a second or more"
    )
    max_connections_per_address: NotNegative = Field(
        512, description="most connections from one client address to an API process; 0 for no limit"
    )
    max_body_mb: Positive = Field(64, description="largest request body, in MB")
    max_bodies_mb: Positive = Field(256, description="total size of bodies over 64 kB in one API process, in MB")
    max_json_mb: Positive = Field(16, description="largest JSON body, in MB; send larger tables as CSV or Parquet")
    max_json_values: Positive = Field(500_000, description="most values in a JSON body")
    upload_mb: Positive = Field(
        1024, description="memory for reading an uploaded file, in MB; files that need more get 413"
    )
    upload_seconds: Annotated[float, Field(gt=0)] = Field(
        60, description="time limit for reading an uploaded file, in seconds"
    )
    max_rows: Positive = Field(1_000_000, description="largest data set, in rows")
    max_columns: Positive = Field(500, description="most columns in a data set")
    max_cells: Positive = Field(20_000_000, description="most values in a data set: rows times columns")
    max_categories: Positive = Field(100, description="most distinct values of a categorical column")
    max_series: Positive = Field(100_000, description="most series in a data set: distinct combinations of its keys")
    max_parameters: Positive = Field(1_000_000, description="largest predictor, in parameters")
    max_members: Positive = Field(64, description="most members of a posterior")
    max_particles: Positive = Field(2_000, description="most particles stored with a posterior")
    max_posterior_mb: Positive = Field(1024, description="largest posterior: particles and members, in MB")
    max_scenarios: Positive = Field(2_000, description="most scenarios in one prescription")
    max_contexts: Positive = Field(20_000, description="most contexts in one prescribe call")
    max_alternatives: Positive = Field(
        100,
        description="most alternatives of a context in an evaluate call; BCO_MAX_CONTEXTS for all contexts together",
    )
    max_included_numbers: Positive = Field(
        400_000,
        description="most contexts × scenarios × outcomes of prescribe with include; 25 times as many in a batch",
    )
    max_prescriptions: Positive = Field(
        64, description="most prescribe calls at the same time, including waiting ones; more get 503"
    )
    max_workspace_prescriptions: NotNegative = Field(
        48, description="most prescribe calls of one workspace at the same time; more get 429; 0 for no limit"
    )
    max_batched_contexts: Positive = Field(
        64, description="most contexts of waiting prescribe calls in one batch; 1 for no batching"
    )
    prescribe_seconds: Positive = Field(60, description="time limit of a prescribe call, in seconds")
    solver_processes: Positive = Field(
        3, description="solver processes of each API process, for slow calls; a workspace may use all but one"
    )
    solver_memory_mb: Positive = Field(
        1024, description="memory of a solver process for its work, in MB; calls that need more get 503"
    )
    cache_mb: Positive = Field(512, description="memory of the API for loaded posteriors, in MB")

    @field_validator("database_url")
    @classmethod
    def database_is_known(cls, url: str) -> str:
        if not url.startswith(("sqlite:///", "postgresql://", "postgresql+psycopg://", "postgres://")):
            raise ValueError("must start with sqlite:/// or postgresql://")
        return url

    @field_validator("workspace_weights")
    @classmethod
    def weights_can_be_read(cls, text: str) -> str:
        if not all(weight > 0 for weight in _weights(text).values()):
            raise ValueError("write it like planning=3,sales=0.5, with weights above 0")
        return text

    @field_validator("webhook_networks")
    @classmethod
    def networks_can_be_read(cls, text: str) -> str:
        try:
            for part in filter(None, map(str.strip, text.split(","))):
                ipaddress.ip_network(part)
        except ValueError:
            raise ValueError("write it like 10.1.0.0/16,fd00::/8") from None
        return text

    def weight(self, workspace: str) -> float:
        """Return the weight of a workspace when workspaces share workers."""
        return _weights(self.workspace_weights).get(workspace, 1.0)

    @property
    def sqlalchemy_url(self) -> str:
        """The database URL with its driver."""
        for prefix in ("postgresql://", "postgres://"):
            if self.database_url.startswith(prefix):
                return "postgresql+psycopg://" + self.database_url.removeprefix(prefix)
        return self.database_url


def _weights(text: str) -> dict[str, float]:
    """Return the weights in ``planning=3, sales=0.5``; 0 for invalid ones."""
    pairs = (pair.partition("=") for pair in text.split(",") if pair.strip())
    return {name.strip(): _positive(number) for name, _, number in pairs}


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if 0 < number < math.inf else 0.0


@lru_cache
def get_settings() -> Settings:
    """Return the settings of this process; exit with a message that names the variables if some are invalid."""
    try:
        return Settings()
    except ValidationError as error:
        wrong = [f"BCO_{str(entry['loc'][0]).upper()}: {entry['msg']}" for entry in error.errors()]
        raise SystemExit("These settings are invalid.\n" + "\n".join(wrong)) from None
