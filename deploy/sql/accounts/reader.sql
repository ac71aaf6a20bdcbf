-- reader. A new account needs TLS, is locked and has no password; after these statements:
-- ALTER USER 'toc_reader'@'%' IDENTIFIED BY '…' ACCOUNT UNLOCK;
-- An existing account keeps its password and its other rights: look at them with SHOW GRANTS.
-- To require TLS of an existing account: ALTER USER 'toc_reader'@'%' REQUIRE SSL;
-- database 0: db0:3306
CREATE USER IF NOT EXISTS 'toc_reader'@'%' REQUIRE SSL WITH MAX_USER_CONNECTIONS 40 ACCOUNT LOCK;
GRANT SHOW VIEW ON `toc`.* TO 'toc_reader'@'%';
GRANT SELECT ON `toc`.`toc_job_0000` TO 'toc_reader'@'%';
GRANT SELECT ON `toc`.`toc_job_0001` TO 'toc_reader'@'%';
GRANT SELECT ON `toc`.`toc_jobs` TO 'toc_reader'@'%';
GRANT SELECT ON `toc`.`toc_dead_jobs` TO 'toc_reader'@'%';
GRANT SELECT ON `toc`.`toc_events` TO 'toc_reader'@'%';
GRANT SELECT ON `toc`.`toc_purges` TO 'toc_reader'@'%';
GRANT SELECT ON `toc`.`toc_meta` TO 'toc_reader'@'%';
GRANT SELECT ON `toc`.`toc_biz_type` TO 'toc_reader'@'%';
GRANT SELECT ON `toc`.`toc_dead_job` TO 'toc_reader'@'%';
GRANT SELECT ON `toc`.`toc_event` TO 'toc_reader'@'%';
GRANT SELECT ON `toc`.`toc_purge` TO 'toc_reader'@'%';
GRANT SELECT ON `toc`.`toc_declared_type` TO 'toc_reader'@'%';
GRANT SELECT ON `toc`.`toc_pause` TO 'toc_reader'@'%';
GRANT SELECT ON `toc`.`toc_token` TO 'toc_reader'@'%';
GRANT SELECT ON `toc`.`toc_audit` TO 'toc_reader'@'%';
GRANT SELECT ON `toc`.`toc_arrival` TO 'toc_reader'@'%';
GRANT SELECT ON `toc`.`toc_recurring` TO 'toc_reader'@'%';
GRANT SELECT ON `toc`.`toc_occurrence` TO 'toc_reader'@'%';
GRANT SELECT ON `toc`.`toc_mass_change` TO 'toc_reader'@'%';
GRANT SELECT ON `toc`.`toc_alembic_version` TO 'toc_reader'@'%';
GRANT REFERENCES ON `toc`.`toc_webhook` TO 'toc_reader'@'%';
