-- What people and unhappy paths did to one job, in order. A job that just ran leaves no event.
--
-- toc sql --file job_events.sql --set job_id=382329802209747211
-- In a client of MySQL: SET @job_id = 382329802209747211; and then this.
--
-- Costs: a few rows.
-- Index: ix_job (job_id, event_id) of each database.
SELECT event_time,
       what,
       from_name,
       to_name,
       attempts,
       claim_time AS attempt_began,
       actor,
       account,
       reason
  FROM toc_events
 WHERE job_id = @job_id
 ORDER BY event_time, event_id;
