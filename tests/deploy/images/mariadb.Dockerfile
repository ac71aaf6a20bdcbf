# Debian's MariaDB under the name of the image mariadb, without a password.
ARG ROOT
FROM ${ROOT}
RUN groupadd --gid 999 mysql && useradd --uid 999 --gid 999 --no-create-home mysql \
    && mkdir -p /var/lib/mysql /run/mysqld && chown mysql:mysql /var/lib/mysql /run/mysqld
COPY mariadb.sh /usr/local/bin/docker-entrypoint.sh
VOLUME /var/lib/mysql
EXPOSE 3306
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["mariadbd"]
