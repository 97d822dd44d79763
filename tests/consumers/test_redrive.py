"""What a job's effects are worth to the job that runs it again, with a real worker."""

from __future__ import annotations

from pathlib import Path

from lateack_core.ground import Ground
from lateack_core.redrive import Redrives
from lateack_core.settings import Settings
from tests.consumers.conftest import result_of
from tests.consumers.test_effects import calling, working


async def test_an_effect_is_taken_once_over_a_redrive(
    ground: Ground, settings: Settings, tmp_path: Path
) -> None:
    """RTY-10, DEL-09: the first job charged and died with its only attempt. Its successor starts
    with a fresh budget, meets the step in doubt, asks the outside under the first job's token, and
    charges nothing; and whoever runs that one again is told that it succeeded."""
    path = tmp_path / "effects"
    async with calling(ground, path) as effects, working(settings, tmp_path / "log"):
        old = await effects.run("dies_in_doubt", str(path), True, max_retries=0)
        assert (old.status, old.error_code, old.attempt) == ("failed", "WorkerLost", 1)
        assert await effects.outcomes(old.job_id) == ["lost"]

        accepted = await Redrives(ground).one("default", old.job_id)
        assert accepted is not None
        new = await effects.until(accepted.job.job_id)
        assert (new.status, new.attempt, new.retry_of) == ("succeeded", 1, old.job_id)
        token = f"{old.job_id}:charge"
        assert result_of(new) == {"receipt": token, "found": True}
        assert effects.charges == [f"charged {token}"]
        assert await effects.job(old.job_id) == old


async def test_a_finished_step_is_not_run_again_by_a_redrive(
    ground: Ground, settings: Settings, tmp_path: Path
) -> None:
    """RTY-10: it retries, with the charge behind it, and has no attempt left; its successor goes on
    from there."""
    path = tmp_path / "effects"
    async with calling(ground, path) as effects, working(settings, tmp_path / "log"):
        old = await effects.run("charges_then_retries", str(path), max_retries=0)
        assert (old.status, old.attempt) == ("failed", 1)
        accepted = await Redrives(ground).one("default", old.job_id)
        assert accepted is not None
        # With max_retries 0, and a first attempt that asks for a retry, it fails in the same way.
        new = await effects.until(accepted.job.job_id)
        assert (new.status, new.error_code) == (old.status, old.error_code)
        assert effects.charges == [f"charged {old.job_id}:charge"]
