-- reader. A new account needs TLS, is locked and has no password; after these statements:
-- ALTER USER 'toc_reader'@'%' IDENTIFIED BY '…' ACCOUNT UNLOCK;
-- An existing account keeps its password and its other rights: look at them with SHOW GRANTS.
-- To require TLS of an existing account: ALTER USER 'toc_reader'@'%' REQUIRE SSL;
-- database 0: db0:3306
CREATE USER IF NOT EXISTS 'toc_reader'@'%' REQUIRE SSL WITH MAX_USER_CONNECTIONS 40 ACCOUNT LOCK;
GRANT SELECT, SHOW VIEW ON `toc`.* TO 'toc_reader'@'%';
