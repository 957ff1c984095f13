"""The PostgreSQL store: a row a turn, for many processes on many machines. Extra `postgres`."""

from turnlog.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
