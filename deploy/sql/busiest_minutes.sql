-- The busiest minutes of the next 24 hours: when will most jobs come due?
--
-- Costs: reads the pending jobs of those 24 hours.
-- Index: ix_due (due_time, job_id) of each shard.
SELECT DATE_FORMAT(due_time, '%Y-%m-%d %H:%i') AS due_minute,
       COUNT(*) AS jobs,
       COUNT(DISTINCT biz_type) AS types
  FROM toc_jobs
 WHERE due_time >= UTC_TIMESTAMP()
   AND due_time < UTC_TIMESTAMP() + INTERVAL 1 DAY
   AND status = 0
 GROUP BY due_minute
 ORDER BY jobs DESC, due_minute
 LIMIT 10;
