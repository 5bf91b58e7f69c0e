"""The server's metrics in the Prometheus format."""

import re
from collections.abc import Iterator, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from legos.errors import EngineError
from legos.protocols import Engine

_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    """Metrics of one application, in a registry of its own.

    Attributes:
        requests: number of answered requests, by route and status.
        hung_up: number of requests whose client left before the end of the answer, by route.
        latency_s: seconds from the start of a request to the end of its response, by route.
        first_token_s: seconds from the start of a streamed request to its first token.
        running: number of completions that were requested and are not finished.
        refused: number of requests rejected because of a limit, by limit.
        loop_lag_s: seconds by which the event loop turned late, at four checks a second.
    """

    def __init__(self, engine: Engine) -> None:
        self._registry = registry = CollectorRegistry()
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, buckets=_SECONDS, registry=registry)
        self.requests: Counter = counter(
            "legos_requests", "Requests answered.", ["route", "status"]
        )
        self.hung_up: Counter = counter(
            "legos_hung_up", "Requests whose client left before the end of the answer.", ["route"]
        )
        self.latency_s = histogram("legos_request_seconds", "From request to answer.", ["route"])
        self.first_token_s = histogram(
            "legos_first_token_seconds", "From a streamed request to its first token."
        )
        self.running = Gauge(
            "legos_completions_running", "Completions asked for.", registry=registry
        )
        self.refused: Counter = counter(
            "legos_refused", "Requests refused because of a limit.", ["limit"]
        )
        self.loop_lag_s = histogram("legos_loop_lag_seconds", "By which the event loop was late.")
        registry.register(_EngineNumbers(engine))

    def text(self) -> bytes:
        """All metrics as text."""
        return generate_latest(self._registry)


class _EngineNumbers:
    """The engine's counters and adapter versions, read each time they are collected."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yield the engine's metrics."""
        stats: Mapping[str, float] = {}
        versions: Mapping[str, int] = {}
        up = GaugeMetricFamily("legos_engine_up", "Whether the engine answers.")
        try:
            stats = self._engine.stats()
            versions = self._engine.versions()
            up.add_metric([], 1.0)
        except EngineError:
            up.add_metric([], 0.0)
        yield up
        for name, value in stats.items():
            known = re.sub(r"\W", "_", name)
            family = GaugeMetricFamily(f"legos_engine_{known}", "Of the engine.")
            family.add_metric([], value)
            yield family
        live = GaugeMetricFamily("legos_adapter_version", "Live.", labels=["adapter"])
        for name, version in versions.items():
            live.add_metric([name], version)
        yield live
