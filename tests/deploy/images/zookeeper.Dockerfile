# Debian's ZooKeeper under the name of the image zookeeper: its user id, its directories and its variables.
ARG ROOT
FROM ${ROOT}
ENV ZOO_CONF_DIR=/conf ZOO_DATA_DIR=/data ZOO_TICK_TIME=2000 ZOO_MAX_CLIENT_CNXNS=60 ZOO_ADMINSERVER_ENABLED=true
RUN groupadd --gid 1000 zookeeper && useradd --uid 1000 --gid 1000 --no-create-home zookeeper \
    && mkdir /data /datalog /logs /conf && chown zookeeper:zookeeper /data /datalog /logs /conf
COPY zookeeper.sh /docker-entrypoint.sh
VOLUME ["/data", "/datalog", "/logs"]
EXPOSE 2181
ENTRYPOINT ["/docker-entrypoint.sh"]
