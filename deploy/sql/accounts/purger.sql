-- purger. A new account needs TLS, is locked and has no password; after these statements:
-- ALTER USER 'toc_purger'@'%' IDENTIFIED BY '…' ACCOUNT UNLOCK;
-- An existing account keeps its password and its other rights: look at them with SHOW GRANTS.
-- To require TLS of an existing account: ALTER USER 'toc_purger'@'%' REQUIRE SSL;
-- database 0: db0:3306
CREATE USER IF NOT EXISTS 'toc_purger'@'%' REQUIRE SSL ACCOUNT LOCK;
GRANT SELECT ON `toc`.* TO 'toc_purger'@'%';
GRANT DELETE ON `toc`.`toc_job_0000` TO 'toc_purger'@'%';
GRANT DELETE ON `toc`.`toc_job_0001` TO 'toc_purger'@'%';
GRANT DELETE ON `toc`.`toc_dead_job` TO 'toc_purger'@'%';
GRANT DELETE ON `toc`.`toc_event` TO 'toc_purger'@'%';
GRANT DELETE ON `toc`.`toc_arrival` TO 'toc_purger'@'%';
GRANT INSERT, UPDATE, DELETE ON `toc`.`toc_purge` TO 'toc_purger'@'%';
GRANT DELETE ON `toc`.`toc_declared_type` TO 'toc_purger'@'%';
GRANT DELETE ON `toc`.`toc_pause` TO 'toc_purger'@'%';
GRANT DELETE ON `toc`.`toc_token` TO 'toc_purger'@'%';
GRANT DELETE ON `toc`.`toc_audit` TO 'toc_purger'@'%';
