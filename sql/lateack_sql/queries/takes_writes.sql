-- Whether the ledger takes writes: it does not while it is a standby, or set to be read-only.
SELECT NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off' AS writable
