-- An account for people who look: it can read, and nothing else. Enough for every query in this directory,
-- for `toc sql` and for EXPLAIN over the views.
--
-- Run it once on each server, as an administrator. Put in the password, the hosts that people come from
-- ('10.0.%'), and the name of the database (here `toc`). Then give `toc sql` URLs with this account:
-- TOC_DATABASES=mysql+pymysql://toc_read:...@db0/toc,...
--
-- `toc sql` opens 4 connections per database and person (--parallel); the limit leaves room for all others.
CREATE USER IF NOT EXISTS 'toc_read'@'%' IDENTIFIED BY 'change-me' WITH MAX_USER_CONNECTIONS 40;
GRANT SELECT, SHOW VIEW ON `toc`.* TO 'toc_read'@'%';
