-- Why jobs died in the last 7 days: by type and the first line of the last error, the most frequent first.
--
-- Costs: reads the dead letters of those 7 days, with their errors.
-- Index: ix_dead_time (dead_time, job_id) of each database.
SELECT biz_type,
       SUBSTRING_INDEX(error, '\n', 1) AS first_line,
       COUNT(*) AS jobs,
       MIN(dead_time) AS first_death,
       MAX(dead_time) AS last_death
  FROM toc_dead_jobs
 WHERE dead_time >= UTC_TIMESTAMP() - INTERVAL 7 DAY
 GROUP BY biz_type, first_line
 ORDER BY jobs DESC, biz_type, first_line
 LIMIT 50;
