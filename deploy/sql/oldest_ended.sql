-- The oldest jobs that have ended: is retention keeping up?
--
-- Costs: walks the primary key of each shard from its start until it has met 20 ended jobs, which is soon,
-- except where old live ones stand in front. Over the view of one database, without `toc sql`, it reads all
-- ended rows.
-- Index: PRIMARY (job_id) of each shard: ids are in the order in which they were made.
SELECT job_id,
       shard,
       biz_type,
       status_name,
       gmt_create,
       gmt_modified,
       TIMESTAMPDIFF(DAY, gmt_modified, UTC_TIMESTAMP()) AS days_ago
  FROM toc_jobs
 WHERE status >= 2
 ORDER BY job_id
 LIMIT 20;
