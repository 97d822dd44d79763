-- The clock that decides.
SELECT lateack.now() AS now
