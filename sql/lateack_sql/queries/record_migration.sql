-- A migration has been applied. $1 number  $2 name  $3 checksum
INSERT INTO lateack.migrations (number, name, checksum) VALUES ($1, $2, $3)
