-- tokens. A new account needs TLS, is locked and has no password; after these statements:
-- ALTER USER 'toc_tokens'@'%' IDENTIFIED BY '…' ACCOUNT UNLOCK;
-- An existing account keeps its password and its other rights: look at them with SHOW GRANTS.
-- To require TLS of an existing account: ALTER USER 'toc_tokens'@'%' REQUIRE SSL;
-- database 0: db0:3306
CREATE USER IF NOT EXISTS 'toc_tokens'@'%' REQUIRE SSL ACCOUNT LOCK;
GRANT SELECT ON `toc`.* TO 'toc_tokens'@'%';
GRANT INSERT (token_id, token_hash, owner, scopes, biz_types, tenant, created_time, expiry_time), UPDATE (revoked_time) ON `toc`.`toc_token` TO 'toc_tokens'@'%';
GRANT INSERT (audit_time, token_id, owner, address, action, target, calls, rows_changed, outcome, request_id) ON `toc`.`toc_audit` TO 'toc_tokens'@'%';
