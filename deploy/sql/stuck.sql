-- What is stuck: pending jobs that nobody took, and running ones whose lease is over; the oldest first.
--
-- A minute is more than any of them should wait: the scanner takes what is overdue by scanner.grace_s (30 s).
--
-- Costs: reads the live jobs that are overdue; on a healthy system there are few.
-- Index: ix_due (due_time, job_id) of each shard. Ended jobs have no due_time. Running rows whose lease holds
-- are read and left out.
SELECT shard,
       job_id,
       biz_id,
       biz_type,
       status_name,
       due_time,
       lease_end_time,
       TIMESTAMPDIFF(SECOND, due_time, UTC_TIMESTAMP()) AS overdue_s,
       attempts,
       claim_token
  FROM toc_jobs
 WHERE due_time < UTC_TIMESTAMP() - INTERVAL 1 MINUTE
   AND (status = 0 OR lease_end_time < UTC_TIMESTAMP() - INTERVAL 1 MINUTE)
 ORDER BY due_time, job_id
 LIMIT 100;
