-- Whether the ledger has ever been migrated.
SELECT to_regclass('lateack.migrations') IS NOT NULL AS present
