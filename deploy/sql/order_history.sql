-- All jobs of one order, the oldest first.
--
-- toc sql --file order_history.sql --set biz_id=42
-- In a client of MySQL: SET @biz_id = 42; and then this.
--
-- Costs: a few rows. `toc sql` asks one shard only: the order's number says which.
-- Index: uq_live (biz_id, ...) of the shard.
SELECT job_id,
       biz_type,
       status_name,
       action_time,
       due_time,
       claim_time,
       late_ms,
       attempts,
       dedup_key,
       claim_token,
       gmt_create,
       gmt_modified
  FROM toc_jobs
 WHERE biz_id = @biz_id
 ORDER BY job_id;
