-- How many rows there are of each type and status.
--
-- Costs: reads every row of every shard: about a second per million rows and database, and what else lives in
-- the buffer pool makes room. Mind the time limit of `toc sql` (--timeout), or ask a replica.
-- Index: none.
SELECT biz_type,
       status_name,
       COUNT(*) AS jobs
  FROM toc_jobs
 GROUP BY biz_type, status_name
 ORDER BY biz_type, status_name;
