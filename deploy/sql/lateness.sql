-- How late jobs were started, by type and day: those of the last 7 days that ran at the first attempt.
--
-- Costs: reads all rows made in the last 8 days, a range of the primary key (an id begins with the moment
-- at which it was made). Jobs that were made earlier are not counted. About a second per million rows.
-- Index: PRIMARY (job_id) of each shard.
SELECT biz_type,
       DATE(action_time) AS action_day,
       COUNT(*) AS jobs,
       ROUND(AVG(late_ms)) AS average_ms,
       MAX(late_ms) AS most_ms,
       SUM(late_ms > 1000) AS over_1_s,
       SUM(late_ms > 60000) AS over_1_min
  FROM toc_jobs
 WHERE job_id >= TIMESTAMPDIFF(SECOND, '2024-01-01', UTC_DATE() - INTERVAL 8 DAY) * 1000 * 4194304
   AND action_time >= UTC_DATE() - INTERVAL 7 DAY
   AND claim_time IS NOT NULL
   AND attempts = 1
 GROUP BY biz_type, action_day
 ORDER BY action_day, biz_type;
