"""What a policy server counts, as Prometheus reads it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """Counts of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        kept = {"registry": self.registry}
        self.queue = Histogram("vlrl_queue_seconds", "From arrival to the policy", buckets=SECONDS, **kept)
        self.infer = Histogram("vlrl_inference_seconds", "In the policy, a batch", buckets=SECONDS, **kept)
        self.total = Histogram("vlrl_total_seconds", "From arrival to the answer", buckets=SECONDS, **kept)
        self.spread = Histogram(
            "vlrl_observation_lateness_seconds", "On the way for longer than its connection's quickest observation",
            buckets=SECONDS, **kept,
        )  # fmt: skip
        self.batch = Histogram("vlrl_batch_size", "Observations of an inference", buckets=(1, 2, 4, 8, 16, 32), **kept)
        self.answers = Counter("vlrl_answers", "Chunks sent", **kept)
        self.stale = Counter("vlrl_stale_observations", "Dropped, for a newer one came first", **kept)
        self.refused = Counter("vlrl_refused", "Connections, messages and observations refused", ["code"], **kept)
        self.clients = Gauge("vlrl_clients", "Connected now", **kept)
        self.waiting = Gauge("vlrl_waiting", "Observations that wait", **kept)
        self.model = Gauge("vlrl_model", "The policy; always 1", ["model", "version"], **kept)

    def text(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)


class Lateness:
    """How much longer than the quickest each observation of one connection was on the way.

    The clocks of two machines differ by what nobody knows, so only differences of their differences mean anything.
    """

    def __init__(self) -> None:
        self._least = float("inf")

    def of(self, t: float, arrived: float) -> float:
        """Seconds. Args: t: when it was sent, by the client's clock; arrived: by the server's."""
        self._least = min(self._least, arrived - t)
        return arrived - t - self._least
