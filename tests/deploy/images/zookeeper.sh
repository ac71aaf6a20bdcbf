#!/bin/bash
# What the entry point of the image zookeeper does with the variables that are used here.
set -euo pipefail
if [ ! -e "$ZOO_CONF_DIR/zoo.cfg" ]; then
  {
    echo "dataDir=$ZOO_DATA_DIR"
    echo "clientPort=2181"
    echo "tickTime=$ZOO_TICK_TIME"
    echo "maxClientCnxns=$ZOO_MAX_CLIENT_CNXNS"
    echo "admin.enableServer=$ZOO_ADMINSERVER_ENABLED"
    echo "4lw.commands.whitelist=${ZOO_4LW_COMMANDS_WHITELIST:-srvr}"
    printf '%s\n' ${ZOO_CFG_EXTRA:-}
  } >"$ZOO_CONF_DIR/zoo.cfg"
fi
classes=$(printf ':/usr/share/java/%s' zookeeper.jar slf4j-simple.jar netty-codec.jar netty-resolver.jar)
exec java "-Xmx${ZK_SERVER_HEAP:-1000}m" -cp "$classes" \
  org.apache.zookeeper.server.quorum.QuorumPeerMain "$ZOO_CONF_DIR/zoo.cfg"
