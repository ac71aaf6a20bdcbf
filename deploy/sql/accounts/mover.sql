-- mover. A new account needs TLS, is locked and has no password; after these statements:
-- ALTER USER 'toc_mover'@'%' IDENTIFIED BY '…' ACCOUNT UNLOCK;
-- An existing account keeps its password and its other rights: look at them with SHOW GRANTS.
-- To require TLS of an existing account: ALTER USER 'toc_mover'@'%' REQUIRE SSL;
-- database 0, the old server: db0:3306
SET SESSION sql_log_bin = 0;
CREATE USER IF NOT EXISTS 'toc_mover'@'%' REQUIRE SSL ACCOUNT LOCK;
GRANT PROCESS, CONNECTION_ADMIN, SESSION_VARIABLES_ADMIN ON *.* TO 'toc_mover'@'%';
GRANT SELECT, ALTER ON `toc`.* TO 'toc_mover'@'%';
GRANT INSERT, DELETE ON `toc`.`toc_meta` TO 'toc_mover'@'%';
-- database 0, the new server: not in the settings (moving.N)
SET SESSION sql_log_bin = 0;
CREATE USER IF NOT EXISTS 'toc_mover'@'%' REQUIRE SSL ACCOUNT LOCK;
GRANT PROCESS, RELOAD, REPLICATION CLIENT, REPLICATION_SLAVE_ADMIN, SYSTEM_VARIABLES_ADMIN ON *.* TO 'toc_mover'@'%';
GRANT SELECT, ALTER ON `toc`.* TO 'toc_mover'@'%';
GRANT INSERT, DELETE ON `toc`.`toc_meta` TO 'toc_mover'@'%';
