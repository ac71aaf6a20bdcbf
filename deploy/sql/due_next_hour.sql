-- What comes due within the next hour, by type.
--
-- Costs: reads the pending jobs of that hour, and nothing else.
-- Index: ix_due (due_time, job_id) of each shard.
SELECT biz_type,
       COUNT(*) AS jobs,
       MIN(due_time) AS first_due,
       MAX(due_time) AS last_due
  FROM toc_jobs
 WHERE due_time >= UTC_TIMESTAMP()
   AND due_time < UTC_TIMESTAMP() + INTERVAL 1 HOUR
   AND status = 0
 GROUP BY biz_type
 ORDER BY jobs DESC, biz_type;
