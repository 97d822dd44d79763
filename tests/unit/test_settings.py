"""Settings come from the environment, and what cannot work is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from lateack.errors import DeclarationError
from lateack_core.settings import Settings, environment_of, from_environment


def test_defaults_are_the_documented_ones() -> None:
    """Design §4, §5, §10."""
    settings = from_environment({})
    assert (settings.lease, settings.heartbeat, settings.reclaim_idle) == (30, 10, 45)
    assert settings.pending_timeouts == {"": 1800}
    assert (settings.cleanup_interval, settings.leader_ttl) == (600, 15)
    assert (settings.max_worker_losses, settings.unpublished_timeout) == (3, 86_400)
    assert settings.caps == {}


def test_variables_and_flags() -> None:
    """A flag comes before its variable; what was not given does not."""
    environ = {"DATABASE_URL": "postgresql://db", "LATEACK_GRACE": "60", "LATEACK_POOL_SIZE": "4"}
    settings = from_environment(environ, grace=0.0, pool_size=None)
    assert (settings.database_url, settings.grace, settings.pool_size) == ("postgresql://db", 0, 4)


def test_by_queue() -> None:
    settings = from_environment(
        {
            "LATEACK_PENDING_TIMEOUT": "60, documents=0,gpu=7200",
            "LATEACK_MAX_PENDING": "documents=20",
        }
    )
    assert settings.pending_timeouts == {"": 60, "documents": 0, "gpu": 7200}
    assert settings.caps == {"documents": 20}


def test_a_secret_in_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text("postgresql://secret\n")
    assert (
        from_environment({"DATABASE_URL_FILE": str(secret)}).database_url == "postgresql://secret"
    )


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LATEACK_LEASE", "soon"),
        ("LATEACK_POOL_SIZE", "1.5"),
        ("LATEACK_TRUST_TENANT_HEADER", "maybe"),
        ("LATEACK_AUTH", "none"),
        ("LATEACK_MAX_PENDING", "many"),
        ("LATEACK_MAX_PENDING", "-1"),
        ("LATEACK_MAX_PENDING", "no queue=5"),
        ("LATEACK_PENDING_TIMEOUT", "nan"),
        ("LATEACK_PENDING_TIMEOUT", "a=1=2"),
        ("LATEACK_LEASE", "nan"),
        ("LATEACK_LEADER_TTL", "-1"),
        ("LATEACK_REAP_INTERVAL", "0"),
        ("LATEACK_UNPUBLISHED_TIMEOUT", "inf"),
        ("LATEACK_HEARTBEAT", "20"),
        ("LATEACK_RECLAIM_IDLE", "30"),
    ],
)
def test_an_error_names_its_variable(variable: str, value: str) -> None:
    with pytest.raises(DeclarationError, match=variable):
        from_environment({variable: value})


def test_a_child_gets_the_same() -> None:
    settings = from_environment(
        {"REDIS_URL": "redis://r", "LATEACK_LEASE": "40.5", "LATEACK_TRUST_TENANT_HEADER": "1"}
    )
    assert from_environment(environment_of(settings)) == settings
    assert from_environment(environment_of(Settings())) == Settings()
