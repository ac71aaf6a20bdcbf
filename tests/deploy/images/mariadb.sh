#!/bin/sh
# What the entry point of the image mariadb does with MARIADB_ALLOW_EMPTY_ROOT_PASSWORD.
set -eu
: "${MARIADB_ALLOW_EMPTY_ROOT_PASSWORD:?}"
run="--no-defaults --user=mysql --datadir=/var/lib/mysql"
chown mysql:mysql /var/lib/mysql
mariadb-install-db $run --auth-root-authentication-method=normal --skip-test-db
{
  # MariaDB reads one statement from a line.
  echo "CREATE USER root@'%';"
  echo "GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;"
} >/tmp/init.sql
exec mariadbd $run --init-file=/tmp/init.sql
