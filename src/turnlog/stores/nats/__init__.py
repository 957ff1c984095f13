"""The JetStream store: threads as subjects of a replicated stream, on servers of NATS."""

from turnlog.stores.nats.store import NatsStore

__all__ = ["NatsStore"]
