-- migrator. A new account needs TLS, is locked and has no password; after these statements:
-- ALTER USER 'toc_migrator'@'%' IDENTIFIED BY '…' ACCOUNT UNLOCK;
-- An existing account keeps its password and its other rights: look at them with SHOW GRANTS.
-- To require TLS of an existing account: ALTER USER 'toc_migrator'@'%' REQUIRE SSL;
-- database 0: db0:3306
CREATE USER IF NOT EXISTS 'toc_migrator'@'%' REQUIRE SSL ACCOUNT LOCK;
GRANT SELECT, CREATE, ALTER, DROP, CREATE VIEW, SHOW VIEW, LOCK TABLES, TRIGGER ON `toc`.* TO 'toc_migrator'@'%';
GRANT CREATE, INSERT, DELETE ON `toc`.`toc_meta` TO 'toc_migrator'@'%';
GRANT CREATE, INSERT, UPDATE, DELETE ON `toc`.`toc_alembic_version` TO 'toc_migrator'@'%';
