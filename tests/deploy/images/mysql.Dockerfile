# Debian's MySQL under the name of the image mysql: its user id, its directories and its variables.
ARG ROOT
FROM ${ROOT}
RUN groupadd --gid 999 mysql && useradd --uid 999 --gid 999 --no-create-home mysql \
    && mkdir -p /var/lib/mysql /var/run/mysqld && chown mysql:mysql /var/lib/mysql /var/run/mysqld \
    && chmod 1777 /var/lib/mysql /var/run/mysqld
COPY mysql.sh /usr/local/bin/docker-entrypoint.sh
VOLUME /var/lib/mysql
EXPOSE 3306
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["mysqld"]
