-- Whether the ledger answers.
SELECT 1
