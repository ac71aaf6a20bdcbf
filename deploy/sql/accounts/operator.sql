-- operator. A new account needs TLS, is locked and has no password; after these statements:
-- ALTER USER 'toc_operator'@'%' IDENTIFIED BY '…' ACCOUNT UNLOCK;
-- An existing account keeps its password and its other rights: look at them with SHOW GRANTS.
-- To require TLS of an existing account: ALTER USER 'toc_operator'@'%' REQUIRE SSL;
-- database 0: db0:3306
CREATE USER IF NOT EXISTS 'toc_operator'@'%' REQUIRE SSL ACCOUNT LOCK;
GRANT SELECT ON `toc`.* TO 'toc_operator'@'%';
GRANT INSERT, UPDATE ON `toc`.`toc_job_0000` TO 'toc_operator'@'%';
GRANT INSERT, UPDATE ON `toc`.`toc_job_0001` TO 'toc_operator'@'%';
GRANT INSERT ON `toc`.`toc_biz_type` TO 'toc_operator'@'%';
GRANT INSERT, DELETE ON `toc`.`toc_dead_job` TO 'toc_operator'@'%';
GRANT INSERT (event_time, job_id, what, from_status, to_status, attempts, claim_time, actor, reason, run_id, related_job_id) ON `toc`.`toc_event` TO 'toc_operator'@'%';
GRANT INSERT ON `toc`.`toc_arrival` TO 'toc_operator'@'%';
GRANT INSERT, UPDATE, DELETE ON `toc`.`toc_recurring` TO 'toc_operator'@'%';
GRANT INSERT, DELETE ON `toc`.`toc_occurrence` TO 'toc_operator'@'%';
GRANT INSERT, UPDATE (value) ON `toc`.`toc_meta` TO 'toc_operator'@'%';
GRANT INSERT (name, version, settings, declared_time, change_id, actor, reason, copied) ON `toc`.`toc_declared_type` TO 'toc_operator'@'%';
GRANT INSERT (target, version, settings, changed_time, change_id, actor, reason, copied, peak_per_min) ON `toc`.`toc_pause` TO 'toc_operator'@'%';
GRANT INSERT, UPDATE ON `toc`.`toc_webhook` TO 'toc_operator'@'%';
