-- client. A new account needs TLS, is locked and has no password; after these statements:
-- ALTER USER 'toc_client'@'%' IDENTIFIED BY '…' ACCOUNT UNLOCK;
-- An existing account keeps its password and its other rights: look at them with SHOW GRANTS.
-- To require TLS of an existing account: ALTER USER 'toc_client'@'%' REQUIRE SSL;
-- database 0: db0:3306
CREATE USER IF NOT EXISTS 'toc_client'@'%' REQUIRE SSL ACCOUNT LOCK;
GRANT SELECT ON `toc`.* TO 'toc_client'@'%';
GRANT INSERT, UPDATE ON `toc`.`toc_job_0000` TO 'toc_client'@'%';
GRANT INSERT, UPDATE ON `toc`.`toc_job_0001` TO 'toc_client'@'%';
GRANT INSERT ON `toc`.`toc_biz_type` TO 'toc_client'@'%';
GRANT DELETE ON `toc`.`toc_dead_job` TO 'toc_client'@'%';
GRANT INSERT (event_time, job_id, what, from_status, to_status, attempts, claim_time, actor, reason, run_id, related_job_id) ON `toc`.`toc_event` TO 'toc_client'@'%';
GRANT INSERT ON `toc`.`toc_arrival` TO 'toc_client'@'%';
GRANT INSERT, UPDATE, DELETE ON `toc`.`toc_recurring` TO 'toc_client'@'%';
GRANT INSERT, DELETE ON `toc`.`toc_occurrence` TO 'toc_client'@'%';
