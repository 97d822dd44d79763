-- The schema, and the list of the migrations that have been applied to it.
CREATE SCHEMA IF NOT EXISTS lateack;
CREATE TABLE IF NOT EXISTS lateack.migrations (
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
