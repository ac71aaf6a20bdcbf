#!/bin/sh
# Writes .env and the secrets with new passwords, where they are missing. It changes no file that is there.
set -eu
cd "$(dirname "$0")"
[ -e .env ] || cp .env.example .env
[ ! -e secrets ] || { echo "secrets/ is there already"; exit 0; }

# 32 hexadecimal digits: nothing that a URL or a file of settings would have to quote.
password() { od -An -N16 -tx1 /dev/urandom | tr -d ' \n'; }
mysql_password=$(password)
redis_password=$(password)

# A container reads a secret under its own user id, so the files are readable for all, and the directory is not.
umask 077
rm -rf secrets.new
mkdir secrets.new
password >secrets.new/mysql_root_password
printf '%s' "$mysql_password" >secrets.new/mysql_password
printf 'requirepass %s\n' "$redis_password" >secrets.new/redis_auth.conf
cat >secrets.new/toc.toml <<TOML
databases = ["mysql+pymysql://toc:$mysql_password@mysql:3306/toc"]
redis_url = "redis://:$redis_password@redis:6379/0"

[cluster]
auth = "toc:$(password)"
TOML
chmod 644 secrets.new/*
mv secrets.new secrets
echo "written: .env, secrets/"
