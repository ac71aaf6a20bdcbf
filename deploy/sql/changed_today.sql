-- Who changed what today (UTC): people by name, processes as host:pid.
--
-- Costs: reads the whole of toc_event, once per database. It has what went wrong or was done by hand, and is
-- small beside the job tables.
-- Index: none; there is none on event_time.
SELECT actor,
       what,
       from_name,
       to_name,
       COUNT(*) AS events,
       COUNT(DISTINCT job_id) AS jobs,
       MIN(event_time) AS first_event,
       MAX(event_time) AS last_event
  FROM toc_events
 WHERE event_time >= UTC_DATE()
 GROUP BY actor, what, from_name, to_name
 ORDER BY last_event DESC, actor, what, from_name, to_name;
