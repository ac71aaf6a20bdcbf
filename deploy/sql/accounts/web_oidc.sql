-- web_oidc. A new account needs TLS, is locked and has no password; after these statements:
-- ALTER USER 'toc_web_oidc'@'%' IDENTIFIED BY '…' ACCOUNT UNLOCK;
-- An existing account keeps its password and its other rights: look at them with SHOW GRANTS.
-- To require TLS of an existing account: ALTER USER 'toc_web_oidc'@'%' REQUIRE SSL;
-- database 0: db0:3306
CREATE USER IF NOT EXISTS 'toc_web_oidc'@'%' REQUIRE SSL ACCOUNT LOCK;
GRANT SELECT ON `toc`.* TO 'toc_web_oidc'@'%';
GRANT INSERT, UPDATE ON `toc`.`toc_job_0000` TO 'toc_web_oidc'@'%';
GRANT INSERT, UPDATE ON `toc`.`toc_job_0001` TO 'toc_web_oidc'@'%';
GRANT INSERT ON `toc`.`toc_biz_type` TO 'toc_web_oidc'@'%';
GRANT INSERT, DELETE ON `toc`.`toc_dead_job` TO 'toc_web_oidc'@'%';
GRANT INSERT (event_time, job_id, what, from_status, to_status, attempts, claim_time, actor, reason, run_id, related_job_id) ON `toc`.`toc_event` TO 'toc_web_oidc'@'%';
GRANT INSERT ON `toc`.`toc_arrival` TO 'toc_web_oidc'@'%';
GRANT INSERT, UPDATE, DELETE ON `toc`.`toc_recurring` TO 'toc_web_oidc'@'%';
GRANT INSERT, DELETE ON `toc`.`toc_occurrence` TO 'toc_web_oidc'@'%';
GRANT INSERT, UPDATE (value) ON `toc`.`toc_meta` TO 'toc_web_oidc'@'%';
GRANT INSERT (name, version, settings, declared_time, change_id, actor, reason, copied) ON `toc`.`toc_declared_type` TO 'toc_web_oidc'@'%';
GRANT INSERT (target, version, settings, changed_time, change_id, actor, reason, copied, peak_per_min), UPDATE (peak_per_min) ON `toc`.`toc_pause` TO 'toc_web_oidc'@'%';
GRANT INSERT (token_id, token_hash, owner, scopes, biz_types, tenant, created_time, expiry_time), UPDATE (last_used_time, revoked_time) ON `toc`.`toc_token` TO 'toc_web_oidc'@'%';
GRANT INSERT (audit_time, token_id, owner, address, action, target, calls, rows_changed, outcome, request_id) ON `toc`.`toc_audit` TO 'toc_web_oidc'@'%';
GRANT INSERT, UPDATE, DELETE ON `toc`.`toc_mass_change` TO 'toc_web_oidc'@'%';
