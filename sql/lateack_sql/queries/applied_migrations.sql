-- Every migration that has been applied.
SELECT number, checksum FROM lateack.migrations
