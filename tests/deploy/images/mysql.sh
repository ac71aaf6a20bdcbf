#!/bin/bash
# What the entry point of the image mysql does with the variables that are used here.
set -euo pipefail
[ "${1:0:1}" != - ] || set -- mysqld "$@"
shift
run=(mysqld --no-defaults --datadir=/var/lib/mysql --socket=/var/run/mysqld/mysqld.sock
     --secure-file-priv=NULL "$@")
if [ "$(id -u)" = 0 ]; then
  chown mysql:mysql /var/lib/mysql
  run+=(--user=mysql)
fi
if [ ! -e /var/lib/mysql/mysql ]; then
  root_password=${MYSQL_ROOT_PASSWORD_FILE:+$(cat "$MYSQL_ROOT_PASSWORD_FILE")}
  init=/tmp/init.sql
  ( umask 077; {
    echo "CREATE USER root@'%' IDENTIFIED BY '$root_password';"
    echo "GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;"
    echo "ALTER USER root@localhost IDENTIFIED BY '$root_password';"
    if [ -n "${MYSQL_DATABASE:-}" ]; then
      echo "CREATE DATABASE $MYSQL_DATABASE;"
      echo "CREATE USER $MYSQL_USER@'%' IDENTIFIED BY '$(cat "$MYSQL_PASSWORD_FILE")';"
      echo "GRANT ALL ON $MYSQL_DATABASE.* TO $MYSQL_USER@'%';"
    fi
  } >$init )
  [ "$(id -u)" != 0 ] || chown mysql:mysql $init
  "${run[@]}" --initialize-insecure --init-file=$init
  rm $init
fi
exec "${run[@]}"
